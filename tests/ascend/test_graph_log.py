"""The log of a captured graph's fusion, in lines as graph-autofusion writes them."""

import json
from pathlib import Path

import pytest

from sktune.ascend.fusion import describe
from sktune.ascend.graph_log import FUSED, LEFT, fusion_of_log
from sktune.core.errors import BadInputError
from tests.builders import sktune_command, succeeded

KERNELS = {0: "RmsNorm_1a", 4: "MatMulV2_2b", 5: "MoeInit_3c", 6: "Swiglu_4d", 10: "Cast_5e", 14: "MatMulV2_6f"}


def line(source: str, function: str, text: str) -> str:
    """Return a line with the logger's prefix."""
    return f"2026-11-27 10:18:37.963 [22882:140554439727040] [INFO] [{source}] [{function}] {text}\n"


def kernel(task: int) -> str:
    """Return a kernel as it is logged."""
    place = f"[nodeId:{task}, streamId:1, streamIdxInGraph:0, nodeIdxInStream:{task}]"
    return (
        f"{place} - KernelInfos{{funcName:{KERNELS[task]}, kernelType:AIV_ONLY, taskRatio:[1,0], cap:0, numBlocks:4}}"
    )


def written(folder: Path) -> Path:
    """Write the log of a scope that became three SuperKernels, and of kernels that were left."""
    home = folder / "sk_meta" / "7" / "model_1_1"
    home.mkdir(parents=True)
    formed = [("sk_0_s_start_MatMulV2_2b_end_MatMulV2_2b", (4,)), ("sk_2_s_start_MatMulV2_6f_end_MatMulV2_6f", (14,))]
    formed.insert(1, ("sk_1_s_start_Swiglu_4d_end_Swiglu_4d", (6,)))
    lines = []
    for number, (name, tasks) in enumerate(formed):
        header = f"  SK Function: {name}, scope id: {number}, Node Count: {len(tasks)}"
        lines.append(line("sk_optimizer.cpp:32", "PrintSKNodesDetail", header))
        lines += [line("sk_optimizer.cpp:34", "PrintSKNodesDetail", f"    [0] {kernel(task)}") for task in tasks]
    (home / FUSED).write_text("".join(lines))
    reasons = {0: "NOT_IN_SCOPE", 5: "OP_UNSUPPORT [BINDMAP_INIT_EMPTY]", 10: "IN_UNFUSIBLE_SCOPE"}
    lines = [line("sk_graph.cpp:1317", "DumpFusionFailReasons", "unfusible kernel:")]
    lines += [
        line("sk_graph.cpp:1319", "DumpFusionFailReasons", f"Node {kernel(task)}: reason: {reason}, reasonDetail: text")
        for task, reason in reasons.items()
    ]
    scopes = [
        "original scopes before fusion:", "  scopeId=0, scopeFlags=1, scopeNames=[s], totalNodes=5",
        "    nodeIds: [4, 5, 6]", "    continued: 10, 14]", "[PrintFusedScopes] scopes after fusion: X=disabled",
        "  scopeId=0, scopeBitFlag=1", "    fusedNodeIds=[4];", "    scopeStatus=SUCCESS",
        ("    breakReason=[breakReason=UNFUSIBLE_NODE, triggerNode=5, triggerStream=0], breakReasonDetail=it cannot be "
        "fused, scopeName=[s]"),
    ]  # fmt: skip
    lines += [line("sk_dump_json.cpp:683", "PrintOriginalScopes", text) for text in scopes]
    (home / LEFT).write_text("".join(lines))
    return home


def test_a_scope_is_shown_with_what_was_left_of_it(tmp_path: Path) -> None:
    """SuperKernels with their kernels, what is not in them and why; not what lies outside of all scopes."""
    fusion = fusion_of_log(written(tmp_path))
    (scope,) = fusion.scopes
    assert (scope.label, [len(each.operators) for each in scope.superkernels]) == ("s", [1, 1, 1])
    assert [each.name for each in scope.left_out] == ["MoeInit_3c", "Cast_5e"]
    assert describe(fusion) == [
        (
            "s: 3 SuperKernels (MatMulV2_2b to MatMulV2_2b, 1 operator; Swiglu_4d to Swiglu_4d, 1 operator; "
            "MatMulV2_6f to MatMulV2_6f, 1 operator); 2 ran outside (1 MoeInit, 1 Cast)"
        ),
        "  not fused, kernel not built for SuperKernels: MoeInit_3c",
        "  not fused, in a scope named None: Cast_5e",
        "  a SuperKernel ends before MoeInit_3c: it cannot be fused",
    ]


def test_the_command_takes_the_folder(tmp_path: Path) -> None:
    """Alone; a folder without a log, or with several, gets one line."""
    home = written(tmp_path)
    done = succeeded("fusion", str(tmp_path), "--json", folder=tmp_path)
    event = json.loads(done.stdout.splitlines()[-1])
    assert [scope["label"] for scope in event["scopes"]] == ["s"]
    done = sktune_command("fusion", str(home), "--log", str(home / LEFT), folder=tmp_path)
    assert done.returncode == 2 and "needs no other file" in done.stderr
    fused = (home / FUSED).read_text()
    (home / FUSED).unlink()
    with pytest.raises(BadInputError, match=r"though SuperKernels were formed; give the whole folder"):
        fusion_of_log(home)
    (home / FUSED).write_text(fused)
    with pytest.raises(BadInputError, match=r"has no sk_fused_nodes\.log or"):
        fusion_of_log(home.parents[2] / "nothing")
    second = home.with_name("model_2_1")
    second.mkdir()
    (second / FUSED).write_text("")
    with pytest.raises(BadInputError, match=r"has the logs of 2 graphs; give one of sk_meta/7/model_1_1, sk_meta"):
        fusion_of_log(tmp_path)
