"""Logs are explained in one line each, with what to do.

The log lines were written for these tests in the formats of CANN. ``data/fault.plog`` follows the example in torchair's
``superkernel_cases.md``, with other names.
"""

import bz2
import gzip
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sktune.ascend.cann_log import FAILURES, MAX_LINE_LENGTH, TABLE, Kind, cause, code, explain, explain_files
from sktune.core.errors import BadInputError
from tests.builders import TESTS

DATA = TESTS / "data"
EVENT = "[EVENT] GE(4711,python3):2026-03-28-11:30:00.000.001 [super_kernel_pass.cc:131]4712 Run: "
ERROR = "[ERROR] GE(4711,python3):2026-03-28-11:30:00.000.001 [super_kernel_pass.cc:300]4712 SelectFusionScope: "
REASON = "maybe it is tbe or tik operator, please replace to ascendc operator and specify super_kernel_scope"


def unfusable(number: int, kind: str = "Cast", spelling: str = "can not", scope: str = "layers.0") -> list[str]:
    """Return the lines that GE writes for one operator that it cannot fuse."""
    return [
        (
            f"{EVENT}find super kernel sub op {kind}_{number}({kind}) {spelling} fusion, {REASON}, "
            f"local_memory_size 0, super_scope_name {scope}, stream_id 0, cur_pos {number}, topo id {number}, "
            "so delete attr"
        ),
        (
            f"{EVENT}node {kind}_{number} {spelling} fusion, {REASON}, local_memory_size 0. "
            f"stream id 0 index {number}, target scope {scope}, topo id is {number}."
        ),
    ]


@pytest.mark.parametrize("spelling", ["can not", "cannot"])
def test_operators_of_one_type_are_one_line_with_a_count(spelling: str) -> None:
    """58 casts that split a scope for the same reason are one line, in either spelling."""
    lines = [line for number in range(58) for line in unfusable(number, spelling=spelling)]
    (only,) = explain(lines)
    assert (only.kind, only.scope, only.operator, only.operator_type) == ("unfusable", "layers.0", "Cast_0", "Cast")
    assert only.count == 58
    assert "scope layers.0 holds 58 x Cast that cannot be fused" in only.message


def test_the_same_log_on_every_rank_counts_once() -> None:
    """Operators are counted, not lines."""
    lines = unfusable(3) + unfusable(9)
    assert explain(lines * 16) == explain(lines)


def test_scopes_and_types_are_distinguished() -> None:
    """Each scope and each type of operator has its own line."""
    lines = unfusable(1) + unfusable(2, "Add") + unfusable(3, scope="layers.1") + unfusable(4, scope="layers.1")
    assert [(each.scope, each.operator_type, each.count) for each in explain(lines)] == [
        ("layers.0", "Cast", 1),
        ("layers.0", "Add", 1),
        ("layers.1", "Cast", 2),
    ]


def test_a_foreign_operator_gets_its_type_from_the_graph() -> None:
    """Lines about a cut only name the operator."""
    line = (
        f"{EVENT}node Transpose_5 cannot fusion, please check your super_kernel_scope, local_memory_size 0. stream "
        "id 0 index 7, target scope a, topo id is 7."
    )
    (only,) = explain([line], types={"Transpose_5": "Transpose"})
    assert (only.kind, only.scope, only.operator_type) == ("foreign", "a", "Transpose")
    assert "1 x Transpose run between the operators of scope a" in only.message


OPTION = "EB0500: [Super Kernel] Invalid compile option: {}[FUNC:raise][FILE:common.py][LINE:1]"
SIMPLE: list[tuple[str, Kind, str]] = [
    (OPTION.format("stream-funsion option is not supported."), "option", "did you mean 'stream-fusion'"),
    (OPTION.format("early-start option is not supported."), "option", "does not support early-start: leave it out"),
    (OPTION.format("split-mode option should between (0, 64], 65 is invalid."), "option", "split-mode is 1 to 64"),
    (OPTION.format("early-start option has been set."), "option", "early-start option has been set"),
    ("E EB0500: early start of sub kernel differs", "option", "early start of sub kernel differs"),
    (
        f"{ERROR}In abort check scene, node Cast_3 can not fusion, {REASON}, target scope layers.0",
        "aborted",
        "scope layers.0 cannot be one SuperKernel: Cast_3 is in the way",
    ),
    (
        f"{EVENT}current node Cast_3 can not fusion, {REASON}, target scope layers.0",
        "bypassed",
        "scope layers.0 was dropped entirely at Cast_3",
    ),
    (
        "ERROR: super kernel do not support more than 2 real stream: oplist: [te_add, te_mul]",
        "streams",
        "do not support more than 2 real stream",
    ),
    ("ERROR: exists send-recv event pair within 1 op", "streams", "end it where the stream changes"),
    (
        ("[ERROR] FE(1,python3): SuperKernel node[MatMul_2, MatMulV3] that has reused binary is not going into the "
        "tiling sink procedure, SK procedure failed."),
        "tiling",
        "MatMul_2 (MatMulV3) needs tiling on the device; compile with tiling_schedule_optimize=True",
    ),
    ("Superkernel check: current soc Ascend310P do not support", "product", "use Atlas A3"),
    (
        "[ERROR] FE(1,python3): [GenTask][GenerateTask] Op[sk_a_start_X_end_Y][SuperKernel] compile subkernel failed.",
        "compile",
        "compiling a subkernel of sk_a_start_X_end_Y failed",
    ),
    (
        "[INFO] GE(1,python3): SuperKernelPass only support static graph[graph_1]",
        "dynamic",
        "graph graph_1 has dynamic shapes",
    ),
    ("[INFO] GE(1,python3): graph [graph_1] has no super kernel scope", "unmarked", "graph graph_1 has no scope"),
    ("[WARNING] HCCL(1,p): no support alg, del superKernelScope attr", "collective", "HCCL_OP_EXPANSION_MODE=AIV"),
    ("scope layers.0 split before node MatMul_7", "deadlock", "scope layers.0 was split before MatMul_7"),
    ("scope a split before node MatMul_7 (topo_id 9), reason 0", "deadlock", "streams would deadlock"),
    ("scope a split before node MatMul_7 (topo_id 9), reason 1", "sync_all", "a SyncAll needs other cores"),
    ("exclude node MatMul_7 from scope due to deadlock", "deadlock", "MatMul_7 was left out of its scope"),
    ("deadlock check did not converge after 10 rounds", "deadlock", "make the scopes smaller"),
    ("EI0006: Getting socket times out.", "communication", "give all the same plan"),
    ("[ERROR] HCCL(1,python3): wait for notify timeout, remote rank 3", "communication", "HCCL timeout"),
    (
        "EZ9999[PID: 1] 2026-07-07-07:20:43.817.613 (EZ9999):  Kernel task happen error, retCode=0x26.[FUNC:a][FILE:b]",
        "fault",
        "a kernel failed (507015)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("line", "kind", "part"), SIMPLE)
def test_a_line_is_explained(line: str, kind: Kind, part: str) -> None:
    """Every family of messages has its kind and one readable line."""
    (only,) = explain([line], labels=["a"])
    assert only.kind == kind
    assert part in only.message
    assert "\n" not in only.message


FAULT = (DATA / "fault.plog").read_text(encoding="utf-8").splitlines()


def test_a_fault_names_the_sub_kernel_that_failed() -> None:
    """The three lookups of superkernel_cases.md in one: kernel, scope, sub-kernel; the one on most cores first."""
    first, second = explain(FAULT, labels=["sp_start_1"])
    assert (first.kind, first.scope, first.operator_type, first.count) == (
        "timeout", "sp_start_1", "quantbatchmatmulv3", 2
    )  # fmt: skip
    assert first.sub_kernel == f"te_quantbatchmatmulv3_{'ab' * 32}__kernel0_middle_split3"
    assert "scope sp_start_1 timed out (507014) in quantbatchmatmulv3 on 2 cores; try feed-sync-all=1" in first.message
    assert second.operator_type == "add"


def test_a_log_that_is_read_twice_counts_cores_once() -> None:
    """The console repeats the content of plog."""
    assert explain(FAULT * 2, labels=["sp_start_1"]) == explain(FAULT, labels=["sp_start_1"])


def test_a_timeout_that_a_collective_reports_is_still_a_timeout() -> None:
    """HCCL forwards the runtime's error."""
    (only,) = explain(["[ERROR] HCCL(1,python3): stream sync failed, retCode is 507014, aicore timeout"])
    assert only.kind == "timeout"


def test_a_rank_that_only_waited_is_not_blamed() -> None:
    """If one process names the kernel, a timeout of another adds nothing."""
    other = "[ERROR] RUNTIME(99,python3): Kernel task happen error, retCode=0x25, [aicore timeout]."
    assert explain([other, *FAULT], labels=["sp_start_1"]) == explain(FAULT, labels=["sp_start_1"])


def test_a_fault_outside_superkernels_is_not_blamed_on_a_scope() -> None:
    """Timeouts also happen without scopes."""
    (only,) = explain(["rts failed, retCode is 507014", "fault kernel_name=MoeDistributeDispatchV2_1, ext=none"])
    assert (only.kind, only.scope) == ("timeout", "")
    assert "MoeDistributeDispatchV2_1 timed out (507014) and does not appear to be a SuperKernel" in only.message


def test_the_cause_comes_before_its_consequences() -> None:
    """A rejected option is also reported by every caller of the compiler."""
    lines = [*unfusable(1), SIMPLE[11][0], SIMPLE[0][0]]
    explanations = explain(lines)
    assert [each.kind for each in explanations] == ["option", "compile", "unfusable"]
    assert cause(explanations) == explanations[0]
    assert cause(explain(unfusable(1))) is None
    assert "unfusable" not in FAILURES


def test_unrelated_lines_are_ignored() -> None:
    """A setting with "timeout" in its name is not a timeout."""
    assert (
        explain(["HCCL_EXEC_TIMEOUT=1200", "op_timeout set to 507013", "SuperKernelPass start graph is [g]", ""]) == ()
    )


@given(st.lists(st.tuples(st.sampled_from([*FAULT, *(line for line, _, _ in SIMPLE)]), st.integers(0, 400))))
def test_truncated_lines_are_read(lines: list[tuple[str, int]]) -> None:
    """A process that dies leaves half a line."""
    for each in explain(line[:length] for line, length in lines):
        assert each.message
        assert "\n" not in each.message


def test_files_are_read_one_after_another(tmp_path: Path) -> None:
    """Bytes that are not text, as crashed processes leave behind, do not stop the reader."""
    for rank in range(2):
        text = "\n".join(unfusable(rank))
        (tmp_path / f"plog-{rank}.log").write_bytes(b"\xff\xfe\x00 broken\n" + text.encode())
    (only,) = explain_files(sorted(tmp_path.iterdir()))
    assert only.count == 2
    with pytest.raises(BadInputError, match="cannot be read"):
        explain_files([tmp_path / "none.log"])


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("Kernel task happen error, retCode=0x30, [vector core timeout].", "507034"),
        ("rtStreamSynchronize execute failed, reason=[vector core timeout]", "507034"),
        ("synchronize stream failed, runtime result = 507034[FUNC:R][FILE:l.cpp][LINE:161]", "507034"),
        ("NPU function error: AclrtSynchronizeStreamWithTimeout(copy_stream), error code is 507048", "507048"),
        ("rtStreamSynchronizeWithTimeout execute failed, reason=[fftsplus timeout]", "507048"),
        ("[api_c.cc:661]1 rtStreamSynchronize:ErrCode=507017, desc=[aicpu timeout], InnerCode=0x715002a", "507017"),
        ("[ERROR] HCCL(1,python3): stream sync failed, retCode is 507034, vector core timeout", "507034"),
        ("错误码为507034。", "507034"),
        ("返回值: 507034", "507034"),
        ("ACL error 507034", "507034"),
        ("rtStreamSynchronize failed with 507034", "507034"),
        ("failed, rtRet=0x7BC9A", "507034"),
        ("Kernel task happen error, retCode: 0x30", "507034"),
        ("Vector Core Timeout", "507034"),
    ],
)
def test_a_timeout_of_any_core_is_a_timeout(line: str, code: str) -> None:
    """Vector cores, AI CPUs and tasks of several cores time out like AI Cores, in numbers, words and retCodes."""
    kernel = "[ERROR] RUNTIME(1,p): Aicore kernel execute failed, fault kernel_name=te_superkernel_9c, ext=none"
    origin = "[ERROR] GE(1,p): Error happened, origin_op_name [sk_a_start_X_end_Y], op_name [sk_a_start_X_end_Y]"
    (only,) = explain([line, kernel, origin], labels=["a"])
    assert (only.kind, only.scope) == ("timeout", "a")
    assert f"scope a timed out ({code}); try feed-sync-all=1" in only.message


@pytest.mark.parametrize(
    ("line", "kind", "part"),
    [
        ("EH9999  [Init][Env]init env failed![FUNC:R]", "runtime", "EH9999 (ACL): an internal error: [Init][Env]init"),
        ("E18888: Parse param failed, digit str:a", "runtime", "E18888 (GE): an internal error: Parse param failed"),
        ("EZ9903: [PID: 1] 2026-01-21-17:28:55.945.983 no device id", "runtime", "EZ9903 (operators and aclnn): an"),
        (
            "[PID: 1] 2026-01-21-17:28:55.945.983 Execution_Error(EZ9903): no device id",
            "runtime",
            "time: no device id;",
        ),
        (
            "(Worker pid=9) ERROR 09-07 [x.py:5] EL0004: [PID: 5] Failed to allocate",
            "runtime",
            "EL0004 (driver): memory",
        ),
        ("EE1002: Stream synchronize timeout.", "timeout", "EE1002 (runtime): a stream did not finish in time"),
        ("EI0011: Failed to allocate 64 bytes of NPU memory.", "communication", "EI0011 (HCCL): the device is out of"),
        ("E22001: Compilation result for operator X not found.", "compile", "E22001 (FE): the result of a compilation"),
        ("X(stream), error code is 507011", "runtime", "507011 (return code): a model could not be executed"),
        ("launch failed for Equal, errno:561000.", "runtime", "561000 (return code): an internal error of an aclnn"),
        (
            "[ERROR] A(1,p):2026-01-01 [a.cc:1]2 E40099: what is new",
            "compile",
            "E40099 (TEFusion): not in sktune's table",
        ),
        ("EX1234: what is new", "runtime", "EX1234: not in sktune's table of codes: what is new"),
        ("[EX1234] what is new", "runtime", "EX1234: not in sktune's table of codes: what is new"),
        ("报错EX1234。新的错误", "runtime", "EX1234: not in sktune's table of codes: 新的错误"),
        ("(PID:1, RankID:-1) ERR01100 OPS call acl api failed.", "runtime", "ERR01100: not in sktune's table of codes"),
        ("错误码E10501。算子", "runtime", "E10501 (GE): GE does not know the operator: 算子;"),
        ("E10501, op X", "runtime", "E10501 (GE): GE does not know the operator: op X;"),
        ("E10501", "runtime", "E10501 (GE): GE does not know the operator;"),
        ("code=EZ9903", "runtime", "EZ9903 (operators and aclnn): an aclnn call failed"),
        ("\x1b[31mEJ0002\x1b[0m link down", "communication", "EJ0002 (HCCP): a network port is down: link down;"),
        ("错误码EB0500。选项非法", "option", "the compiler rejects the options (EB0500): 选项非法"),
        ("\x1b[1mE40021\x1b[0m: Failed to compile Op \x1b[1m[a]\x1b[0m", "compile", "compiling a failed (E40021)"),
        ("stream failed, error code is 507999", "runtime", "507999 (return code): not in sktune's table"),
        (
            "{'errCode': 'EB0000', 'message': 'bad'}",
            "compile",
            "EB0000 (TBE): an operator's code is invalid: {'errCode'",
        ),
    ],
)
def test_a_code_is_explained_or_shown_as_it_stands(line: str, kind: Kind, part: str) -> None:
    """What CANN documents is said with what to do; a code that it does not have keeps its line."""
    (only,) = explain([line])
    assert only.kind == kind
    assert part in only.message


def test_an_operator_that_failed_to_compile_blames_its_scope() -> None:
    """E40021 ends its message in another line than it begins, and is repeated without its code."""
    name = "sk_a_start_TransQuantParamV2_end_QuantBatchMatmulV3_2"
    lines = [
        f"[PID: 1] 2026-01-21-17:28:55.945.983 Compilation_Error(E40021): Failed to compile Op [{name}]. (oppath: [",
        "Compile super_kernel.py failed with errormsg/stack: raise Exception('undefined symbol')",
        "], optype: [SuperKernel])",
        f"        Compile op[{name}] failed, oppath[super_kernel.py], optype[SuperKernel], taskID[9].[FUNC:R]",
    ]
    (only,) = explain(lines, labels=["a"])
    assert (only.kind, only.scope, only.operator) == ("compile", "a", name)
    assert "E40021" in only.message
    (only,) = explain(["E20001: Operator QuantBatchMatmulV3 compilation failed. Optype is QuantBatchMatmulV3."])
    assert (only.kind, only.operator) == ("compile", "QuantBatchMatmulV3")


def test_an_internal_error_comes_after_its_cause() -> None:
    """Its first line has no message: the next line has, and alone it is said as far as it is known."""
    lines = ["EH9999: Inner Error!", "        init env failed[FUNC:R]", "EE1001: The argument is invalid. Reason: no."]
    assert [each.message.split()[0] for each in explain(lines)] == ["EE1001", "EH9999"]
    assert "an internal error: init env failed;" in explain(lines)[1].message
    (only,) = explain(["EZ9999: Inner Error!"])
    assert only.message == "EZ9999 (operators and aclnn): an internal error; the lines before it say where it began"


@pytest.mark.parametrize(
    "line",
    [
        "colour #E10003",
        "commit E40021a",
        "report error module_type=5, module_name=EZ9999",
        "batch result 123456",
        "E4002",
    ],
)
def test_what_only_resembles_a_code_is_ignored(line: str) -> None:
    """Names, colours and numbers are no codes."""
    assert explain([line]) == ()


def test_every_code_has_a_kind_and_says_what_to_do() -> None:
    """The table is complete where it says something, and its codes are those of their families."""
    for letter, family in {**TABLE["families"], "": TABLE["return_codes"]}.items():
        for name, entry in family.get("codes", {}).items():
            known = code(str(name))
            assert known.kind in FAILURES and known.means and known.action and len(entry) in (2, 3), name
            assert str(name)[1] == letter or 100000 <= int(name) < 600000


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
}


@pytest.mark.parametrize("head", ["日志", "上一条错误信息只有中文\n" * 400])
@pytest.mark.parametrize(
    ("compression", "encoding"),
    [
        *(("", encoding) for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "gbk")),
        *((compression, encoding) for compression in ("gz", "xz", "bz2") for encoding in ("utf-8", "utf-16")),
    ],
)
def test_logs_are_read_compressed_and_in_other_encodings(
    tmp_path: Path, encoding: str, compression: str, head: str
) -> None:
    """Plogs are sent in archives, and copied by editors of Windows; their text is kept."""
    lines = [head, *FAULT, "错误码EX1234。上下文"]
    path = tmp_path / "plog.log"
    path.write_bytes(COMPRESSORS[compression]("\n".join(lines).encode(encoding)))
    assert explain_files([path], ["sp_start_1"]) == explain(lines, ["sp_start_1"])


def test_logs_that_were_joined_are_read(tmp_path: Path) -> None:
    """Windows appends UTF-16 to what was not; a compressed log may be compressed again."""
    path = tmp_path / "plog.log"
    path.write_bytes(b"started\n" * 1000 + "\n".join(FAULT).encode("utf-16"))
    assert explain_files([path], ["sp_start_1"]) == explain(FAULT, ["sp_start_1"])
    path.write_bytes(gzip.compress(gzip.compress("\n".join(FAULT).encode())))
    assert explain_files([path], ["sp_start_1"]) == explain(FAULT, ["sp_start_1"])


def test_an_archive_is_refused(tmp_path: Path) -> None:
    """What cannot be read as a log is not taken for one that says nothing."""
    path = tmp_path / "plog.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("plog.log", "\n".join(FAULT))
    with pytest.raises(BadInputError, match="it is an archive, unpack it first"):
        explain_files([path])


def test_a_code_in_a_long_line_is_read_wherever_it_stands(tmp_path: Path) -> None:
    """Long lines are read in pieces, between words."""
    path = tmp_path / "plog.log"
    for length in range(MAX_LINE_LENGTH - 9, MAX_LINE_LENGTH + 1):
        path.write_text(f"{'x' * length} EJ0002: link down {'x' * 2 * MAX_LINE_LENGTH}", encoding="utf-8")
        assert explain_files([path])[0].message.startswith("EJ0002 (HCCP)")


def test_a_compressed_log_that_ends_early_is_read_so_far(tmp_path: Path) -> None:
    """What is before the cut counts; what is no gzip at all is an error with its name."""
    path = tmp_path / "plog.gz"
    path.write_bytes(gzip.compress("\n".join(FAULT).encode() + bytes(1000))[:-10])
    assert explain_files([path], ["sp_start_1"])
    path.write_bytes(b"\x1f\x8b not gzip")
    with pytest.raises(BadInputError, match=r"plog.gz cannot be read: .*give a plog"):
        explain_files([path])
