"""How scopes were fused is read from dumps, a profile and logs.

The graph and its dumps are those of ``test_ge_graph.py``; profiles are made here, with the columns of sktune's kernel
table.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sktune.ascend.cann_log import Explanation
from sktune.ascend.fusion import describe, fused_scopes, realised_fusion
from sktune.ascend.ge_graph import GeGraph, GeOperator, read_ge_graph
from sktune.ascend.kernel_name import SuperKernelName, parse_superkernel_name
from sktune.ascend.superkernel_pass import PassCut
from sktune.backends.npu import backend as npu
from sktune.core.events.scopes import NamedOperator, Split
from sktune.core.fused_scopes import FusedPart
from sktune.core.layout import Layout, Unit
from sktune.core.plan import Option, Options, Plan
from sktune.targets.base import Target
from tests.builders import TESTS

DATA = TESTS / "data"
MARKED = read_ge_graph(DATA / "torchair_dump.txt")
FUSED = [read_ge_graph(path) for path in sorted(DATA.glob("ge_proto_*.txt"))]
FIRST = "sk_mlp_start_0_split_2_4_start_MatMul_end_MatMul"
SECOND = "sk_mlp_start_0_split_4_7_start_Muls_end_Cast"
THIRD = "sk_out_start_Cast_1_end_MatMul_1"
STEP = [
    (FIRST, "SuperKernel"), ("SoftmaxV2", "SoftmaxV2"), (SECOND, "SuperKernel"), (THIRD, "SuperKernel"),
    ("Relu", "Relu"), ("Add", "Add"),
]  # fmt: skip


def profile(rows: Sequence[tuple[str, str]], steps: int = 1, marked_steps: bool = True) -> pd.DataFrame:
    """Return a kernel table of ``steps`` equal steps on two devices."""
    return pd.DataFrame(
        [
            {
                "step": step if marked_steps else -1,
                "device": device,
                "stream": 2,
                "name": name,
                "type": kind,
                "core": "MIX_AIC" if kind == "SuperKernel" else "AI_VECTOR_CORE",
                "start_us": 1000.0 * step + 10.0 * place,
                "duration_us": 8.0,
                "wait_us": 2.0,
            }
            for device in (0, 1)
            for step in range(steps)
            for place, (name, kind) in enumerate(rows)
        ]
    )


def test_marks_alone_show_only_what_is_marked() -> None:
    """Before GE it is not known what will be fused."""
    fusion = realised_fusion(marked=MARKED)
    assert fusion.evidence == ("marks",)
    assert not fusion.is_known
    mlp, out = fusion.scopes
    assert [operator.name for operator in mlp.marked] == ["MatMul", "SoftmaxV2", "Muls", "Cast"]
    assert (mlp.options, out.options) == ("stream-fusion=1", "")
    assert describe(fusion)[0] == (
        "mlp_start_0: 4 operators marked (1 MatMul, 1 SoftmaxV2, 1 Muls, 1 Cast); "
        "what was fused is not known; give GE's AfterSkGraph dump or a profile"
    )


def test_what_a_scope_became_is_counted_part_by_part() -> None:
    """With the marks and GE's dumps; with the marks alone nothing is claimed."""
    assert fused_scopes(realised_fusion(marked=MARKED)) == ()
    mlp, out = fused_scopes(realised_fusion(marked=MARKED, fused=FUSED))
    own = FusedPart(1, types=("SoftmaxV2",))
    assert mlp.parts == (FusedPart(1, "SuperKernel"), own, FusedPart(2, "SuperKernel"))
    assert (mlp.labels, mlp.superkernels) == (("mlp_start_0",), 2)
    assert out.parts == (FusedPart(4, "SuperKernel"),), "GE removed one of five"
    seen = fused_scopes(realised_fusion(marked=MARKED, kernels=profile(STEP)))
    assert seen[0].parts == mlp.parts


def test_the_step_that_is_looked_at_is_a_usual_one() -> None:
    """A profile may begin with a prefill, which has no SuperKernel."""
    prefill = profile([("Prefill", "MatMulV2")]).assign(step=0)
    steps = profile(STEP, steps=3)
    steps["step"] += 1
    kernels = pd.concat([prefill, steps.assign(start_us=steps["start_us"] + 5000)])
    assert fused_scopes(realised_fusion(marked=MARKED, kernels=kernels)) == fused_scopes(
        realised_fusion(marked=MARKED, kernels=profile(STEP))
    )


def test_ge_dumps_show_what_is_in_each_superkernel() -> None:
    """One operator cut a scope on both its streams."""
    fusion = realised_fusion(marked=MARKED, fused=FUSED)
    mlp, out = fusion.scopes
    assert [(each.first, each.last, each.is_split) for each in mlp.superkernels] == [
        ("MatMul", "MatMul", True),
        ("Muls", "Cast", True),
    ]
    assert mlp.splits == (Split("SoftmaxV2", "SoftmaxV2", PassCut.LEFT_OUT),)
    assert mlp.left_out == (NamedOperator("SoftmaxV2", "SoftmaxV2"),)
    (whole,) = out.superkernels
    assert not whole.is_split
    assert [each.name for each in whole.operators] == ["Cast_1", "Mul", "Cast_3", "MatMul_1"]
    first, second = describe(fusion)
    assert first.startswith("mlp_start_0: 4 operators marked (1 MatMul, 1 SoftmaxV2, 1 Muls, 1 Cast); 2 SuperKernels")
    assert "(MatMul to MatMul, 1 operator; Muls to Cast, 2 operators); split at 1 SoftmaxV2 " in first
    assert "SoftmaxV2 (left out by the compiler); 1 ran outside" in first
    assert second == (
        "out: 5 operators marked (3 Cast, 1 Mul, 1 MatMul); 1 SuperKernel (Cast_1 to MatMul_1, 4 operators)"
    )


def test_an_operator_on_the_scopes_other_stream_is_what_cut_it() -> None:
    """A SuperKernel runs on one stream, but its scope had operators on two, and was cut on both."""

    def moved(operator: GeOperator) -> GeOperator:
        return replace(operator, stream="7") if operator.name in ("MatMul", "SoftmaxV2") else operator

    fused = [replace(graph, operators=tuple(map(moved, graph.operators))) for graph in FUSED]
    (mlp, _) = realised_fusion(marked=MARKED, fused=fused).scopes
    assert mlp.splits == (Split("SoftmaxV2", "SoftmaxV2", PassCut.LEFT_OUT),)


@pytest.mark.parametrize("marked_steps", [True, False])
def test_a_profile_shows_what_ran(marked_steps: bool) -> None:
    """One step is used, however many were profiled, with or without the profiler's step numbers."""
    fusion = realised_fusion(marked=MARKED, kernels=profile(STEP, 3, marked_steps))
    mlp, out = fusion.scopes
    assert [each.name for each in mlp.superkernels] == [FIRST, SECOND]
    assert mlp.splits == (Split("SoftmaxV2", "SoftmaxV2", PassCut.LEFT_OUT),)
    assert [each.name for each in out.superkernels] == [THIRD]
    assert fusion == realised_fusion(marked=MARKED, kernels=profile(STEP))


def test_a_profile_alone_needs_the_labels_only_where_they_are_ambiguous() -> None:
    """Labels that contain words of the naming scheme are resolved with the plan's labels."""
    fusion = realised_fusion(kernels=profile(STEP), labels=["mlp_start_0", "out", "never"])
    assert [(scope.label, len(scope.superkernels)) for scope in fusion.scopes] == [
        ("mlp_start_0", 2),
        ("out", 1),
        ("never", 0),
    ]
    assert describe(fusion)[-1] == "never: no SuperKernel was formed"


def test_what_was_marked_and_ran_alone_is_reported() -> None:
    """GE dropped the scope, and its operators run as before."""
    rows = [(operator.name, operator.type) for operator in MARKED.device_tasks]
    fusion = realised_fusion(marked=MARKED, kernels=profile(rows))
    assert [len(scope.left_out) for scope in fusion.scopes] == [4, 5]
    assert "no SuperKernel was formed; 4 ran outside" in describe(fusion)[0]


def test_a_gap_without_an_operator_is_a_split_too() -> None:
    """GE splits a scope where streams would deadlock."""
    rows = [row for row in STEP if row[0] != "SoftmaxV2"]
    mlp, _ = realised_fusion(kernels=profile(rows), labels=["mlp_start_0", "out"]).scopes
    assert mlp.splits == (Split("", ""),)


def test_logs_give_the_reasons() -> None:
    """And the operators at which a scope was split, if nothing else shows them."""
    explanation = Explanation("unfusable", "scope out holds 3 x Cast ...", "out", "Cast_1", "Cast", count=3)
    fusion = realised_fusion(explanations=[explanation])
    (out,) = fusion.scopes
    assert out.splits == (Split("Cast_1", "Cast", PassCut.NOT_BUILT),)
    assert describe(fusion)[1] == "  scope out holds 3 x Cast ..."
    both = realised_fusion(kernels=profile(STEP), labels=["mlp_start_0", "out"], explanations=[explanation])
    assert both.scopes[1].reasons == (explanation.message,)


def test_logs_tell_a_split_because_of_sync_all_from_a_deadlock() -> None:
    """The rule of the split is that of the log."""
    explanation = Explanation("sync_all", "scope out was split before ...", "out", "Mul_1", "Mul")
    (out,) = realised_fusion(explanations=[explanation]).scopes
    assert out.splits == (Split("Mul_1", "Mul", PassCut.SYNC_ALL),)


def test_one_label_with_two_strings_of_options_is_reported() -> None:
    """GE compiles such a scope with a mixture of both, or fails."""
    mixed = tuple(replace(op, scope="one") if op.scope else op for op in MARKED.operators)
    (one,) = realised_fusion(marked=GeGraph("g", mixed)).scopes
    assert one.reasons == (
        "operators of scope one carry different options, '' and 'stream-fusion=1'; use one string per label",
    )


def relabelled(name: str) -> str:
    """Return the name of a SuperKernel under other labels, of a plan with the same units."""
    return (
        name.replace("sk_mlp_start_0_split_2_4_", "sk_a.b_").replace("sk_mlp_start_0", "sk_c").replace("sk_out", "sk_d")
    )


def test_labels_do_not_count() -> None:
    """Plans that became the same kernels are equal, whatever their scopes' names and splits."""
    one = realised_fusion(kernels=profile(STEP), labels=["mlp_start_0", "out"])
    other = realised_fusion(kernels=profile([(relabelled(name), kind) for name, kind in STEP]))
    assert {scope.label for scope in one.scopes} != {scope.label for scope in other.scopes}
    assert one.digest == other.digest


def test_marks_on_what_cannot_be_fused_do_not_count() -> None:
    """A scope extended over an operator that GE removes again became the same kernels."""
    less = GeGraph("g", tuple(replace(op, scope="") if op.name == "SoftmaxV2" else op for op in MARKED.operators))
    assert realised_fusion(marked=less).digest != realised_fusion(marked=MARKED).digest
    one, other = (realised_fusion(marked=marked, fused=FUSED) for marked in (less, MARKED))
    assert one.digest == other.digest


def test_grouping_counts() -> None:
    """Fusing more operators, or others, gives another digest."""
    joined = [("sk_x_start_MatMul_end_Cast", "SuperKernel"), *STEP[3:]]
    alone = [*STEP[:4], ("Relu", "Relu"), ("Sub", "Sub")]
    digests = {realised_fusion(kernels=profile(rows)).digest for rows in (STEP, joined, alone)}
    assert len(digests) == 3


def test_options_count_if_they_have_an_effect() -> None:
    """The same fusion with stream-fusion=1 is another kernel; adding early-start=2 to it does nothing."""

    def digest(options: str) -> str:
        operators = tuple(replace(op, options=options if op.scope else "") for op in MARKED.operators)
        return realised_fusion(marked=GeGraph("g", operators), fused=FUSED).digest

    assert digest("stream-fusion=1") != digest("")
    assert digest("stream-fusion=1:early-start=2") == digest("stream-fusion=1")
    assert digest("stream-fusion=1:early-start=0") != digest("stream-fusion=1")
    on_one = [replace(graph, operators=tuple(replace(op, stream="0") for op in graph.operators)) for graph in FUSED]
    one = {
        options: realised_fusion(
            marked=GeGraph("g", tuple(replace(op, options=options if op.scope else "") for op in MARKED.operators)),
            fused=on_one,
        ).digest
        for options in ("early-start=2", "stream-fusion=1", "")
    }
    assert one["early-start=2"] == one["stream-fusion=1"] != one[""], "the same code, byte for byte, on one stream"
    assert digest("split-mode=4") == digest("")


def test_scopes_without_operators_do_not_count() -> None:
    """A scope over units without tasks has no effect."""
    empty = GeOperator("view", "Reshape", scope="nothing")
    more = GeGraph("g", (*MARKED.operators, empty))
    assert realised_fusion(marked=more).digest == realised_fusion(marked=MARKED).digest


class FakeTorchair:
    """TorchAir without an engine: it dumps the same marked graph for every step, and runs the step eagerly."""

    def __init__(self, dumps: Path) -> None:
        self._dumps = dumps

    def CompilerConfig(self) -> SimpleNamespace:  # noqa: N802 - TorchAir's name
        """Return an object that accepts any setting."""
        return SimpleNamespace(
            experimental_config=SimpleNamespace(), debug=SimpleNamespace(graph_dump=SimpleNamespace())
        )

    def get_npu_backend(self, compiler_config: SimpleNamespace) -> Any:
        """Return a backend of ``torch.compile``."""

        def convert(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            number = len(list(self._dumps.iterdir()))
            (self._dumps / f"{number}.txt").write_bytes((DATA / "torchair_dump.txt").read_bytes())
            return graph.forward

        return convert


def test_options_of_the_step_change_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same marks under another order of operators are neither an earlier trial nor the baseline."""
    monkeypatch.setattr(npu, "_import_torchair", lambda: FakeTorchair(tmp_path))
    module = torch.nn.Linear(2, 2)
    inputs = (torch.ones(1, 2),)
    target = Target(module, module.forward, lambda seed, steps: [inputs] * steps)
    backend = npu.NpuBackend(target, Layout((Unit("", "linear"),), ()), inputs, tmp_path)

    def digest(*options: tuple[str, Option]) -> str:
        return backend.compile(Plan(options=options)).fusion_digest

    strategy = "topology_sorting_strategy"
    orders: list[Options] = [(), ((strategy, "DFS"),), ((strategy, "BFS"),), (("frozen_parameter", False),)]
    assert len({digest(*options) for options in orders}) == len(orders)
    assert digest((strategy, "StableRDFS")) == digest()


words = st.lists(
    st.sampled_from(["a", "layers.0", "_start_", "_end_", "_split_", "_split_1_2", "7", "_", "sk_"]), min_size=1
)
labels = words.map("".join).filter(lambda label: len(label) <= 255)
operators = st.from_regex(r"[A-Z][A-Za-z]{0,8}(_[0-9]{1,3})?", fullmatch=True)


@given(st.lists(labels, min_size=1, max_size=4, unique=True), st.data())
def test_a_known_label_is_found_in_its_name(known: list[str], data: st.DataObject) -> None:
    """With any label and in both naming schemes, as long as the operators are known too."""
    label = data.draw(st.sampled_from(known))
    first, last = data.draw(operators), data.draw(operators)
    fragment = data.draw(st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99)))
    split = "" if fragment is None else f"_split_{fragment[0]}_{fragment[1]}"
    number = data.draw(st.sampled_from(["", "12_"]))
    name = f"sk_{number}{label}{split}_start_{first}_end_{last}"
    parsed = parse_superkernel_name(name, known, {first, last})
    assert parsed is not None
    assert (parsed.first, parsed.last) == (first, last)
    # Two labels of one plan can be ambiguous only if one is the other with a number or a fragment.
    if not any(other != label and (label in other or other in label) for other in known):
        assert (parsed.scope, parsed.fragment) == (label, fragment)


def test_names_are_read_without_known_labels() -> None:
    """In the forms that both engines build."""
    assert parse_superkernel_name("sk_model.layers.0_start_A_1_end_B_2") == SuperKernelName(
        "model.layers.0", "A_1", "B_2"
    )
    assert parse_superkernel_name("sk_1_mlp_start_A_end_B") == SuperKernelName("mlp", "A", "B")
    assert parse_superkernel_name("sk_a_split_3_9_start_A_end_B") == SuperKernelName("a", "A", "B", (3, 9))
    assert parse_superkernel_name("MatMul_start_end") is None
    assert parse_superkernel_name("sk_a_start_b") is None
