"""What is said of a plan's scopes before a compile: nothing is refused that the compiler might take."""

from dataclasses import replace

import pytest

from sktune.ascend.ge_graph import GeGraph, GeOperator
from sktune.ascend.scope_check import (
    CheckedScope,
    PlannedOperator,
    certainly_refused,
    check_scopes,
    operators_of_graph,
    operators_of_layout,
)
from sktune.ascend.superkernel_code import generate
from sktune.ascend.superkernel_parts import KernelType, Refusal, SubKernel
from sktune.ascend.superkernel_pass import GraphNode, group
from sktune.ascend.unit_kernels import kernel_core, unit_kernels, units_plan
from sktune.core.codec import decoded, encoded
from sktune.core.fused_scopes import SeenTypes
from sktune.core.layout import Kernel, Layout, Unit
from sktune.core.plan import Plan, Scope
from tests.ascend.test_superkernel_pass import CASES, node

MATMUL, MUL = PlannedOperator("a", "MatMulV2", "s"), PlannedOperator("b", "Mul", "s")
ON_SIDE = replace(MATMUL, stream="1")
SIDE_BY_SIDE = [MATMUL, MATMUL, ON_SIDE, ON_SIDE]
FUSED = SeenTypes(fused=frozenset({"MatMulV2"}))


def check(operators: list[PlannedOperator], options: str = "", seen: SeenTypes = FUSED) -> CheckedScope:
    """Return what becomes of scope s."""
    marked = [replace(each, options=options if each.label == "s" else each.options) for each in operators]
    (checked,) = check_scopes(marked, ["s"], seen)
    return checked


def test_streams_side_by_side_are_refused_with_both_operators_and_the_fix() -> None:
    """Neither waits for the other, so no event links them."""
    checked = check(SIDE_BY_SIDE)
    assert checked.is_certain
    assert checked.refusal == (
        "MatMulV2 (a) on the main stream and MatMulV2 (a) on stream '1' are neighbours on different streams without a "
        "common event (EB0500); set stream-fusion=1, or end the scope where the stream changes"
    )
    assert certainly_refused([checked]) is checked
    assert str(checked).startswith("refused: ")


def test_stream_fusion_takes_them() -> None:
    """Cube and vector cores then have queues of their own."""
    checked = check(SIDE_BY_SIDE, "stream-fusion=1")
    assert not checked.refusal
    assert (checked.operators, checked.superkernels) == (4, 1)
    assert str(checked) == "4 operators; 1 SuperKernel"


def test_an_edge_between_the_neighbours_is_an_event_that_links_them() -> None:
    """Also where GE may merge what is between them; not where two matmuls lie between."""
    linked = replace(ON_SIDE, after=(1,))
    assert not check([MATMUL, MATMUL, linked, ON_SIDE]).refusal
    merged = [MATMUL, MUL, replace(MUL, stream="1"), replace(ON_SIDE, after=(1,))]
    assert not check(merged, seen=SeenTypes(frozenset({"MatMulV2", "Mul"}))).refusal
    too_late = [MATMUL, MATMUL, ON_SIDE, replace(ON_SIDE, after=(1,))]
    assert check(too_late).is_certain


@pytest.mark.parametrize("seen", [SeenTypes(), SeenTypes(fused=frozenset({"Mul"}))])
def test_nothing_is_certain_of_types_that_no_compile_has_shown(seen: SeenTypes) -> None:
    """An operator that cannot be fused would cut the scope between the streams, and each part would compile."""
    checked = check(SIDE_BY_SIDE, seen=seen)
    assert checked.refusal and not checked.is_certain
    assert certainly_refused([checked]) is None
    assert str(checked).startswith("refused if its operators can be fused, which only a compile shows: ")


def test_a_type_that_was_left_out_cuts_the_scope_between_the_streams() -> None:
    """Then each stream is in a SuperKernel of its own."""
    cast = PlannedOperator("c", "Cast", "s")
    checked = check([MATMUL, cast, ON_SIDE], seen=SeenTypes(frozenset({"MatMulV2"}), frozenset({"Cast"})))
    assert not checked.refusal
    assert checked.superkernels == 2
    assert checked.cuts == (("Cast", "kernel not built for SuperKernels"),)
    assert str(checked) == "3 operators; 2 SuperKernels; cut at 1 Cast (kernel not built for SuperKernels)"


def test_strict_scope_check_makes_a_refusal_certain_or_avoids_it() -> None:
    """With abort the scope is refused where a type cannot be fused, too; with bypass it is then left unfused."""
    assert check(SIDE_BY_SIDE, "strict-scope-check=abort", SeenTypes()).is_certain
    assert not check(SIDE_BY_SIDE, "strict-scope-check=bypass", FUSED).is_certain


def test_abort_meets_a_foreign_operator_that_remains() -> None:
    """A scope of the model's own code inside of the plan's takes its operators away."""
    own = PlannedOperator("own", "MatMulV2", "t")
    checked = check([MATMUL, own, MATMUL], "strict-scope-check=abort", SeenTypes())
    assert checked.is_certain
    assert "MatMulV2 (own) cuts scope s: of another scope; include it in the scope" in checked.refusal
    small = check([MATMUL, replace(own, type="Cast"), MATMUL], "strict-scope-check=abort", SeenTypes())
    assert small.refusal and not small.is_certain, "GE may merge a Cast into its neighbour"


def test_small_operators_and_another_order_leave_a_doubt() -> None:
    """GE merges vector operators, and only StableRDFS keeps the order."""
    vectors = [MUL, MUL, replace(MUL, stream="1")]
    assert not check(vectors, "strict-scope-check=abort").is_certain
    (unordered,) = check_scopes(SIDE_BY_SIDE, ["s"], FUSED, keeps_order=False)
    assert not unordered.is_certain


def test_a_view_between_the_streams_leaves_a_doubt() -> None:
    """GE may leave it there, where it cuts the scope; strict-scope-check=abort then refuses the scope as well."""
    viewed = [MATMUL, MATMUL, replace(ON_SIDE, follows_view=True), ON_SIDE]
    assert not check(viewed).is_certain
    assert check(viewed, "strict-scope-check=abort").is_certain


def test_collectives_leave_a_doubt() -> None:
    """GE gives them streams of their own."""
    hcom = PlannedOperator("reduce", "HcomAllReduce", "s")
    assert not check([MATMUL, hcom, ON_SIDE], seen=SeenTypes(frozenset({"MatMulV2", "HcomAllReduce"}))).is_certain


def test_other_rules_are_foreseen_if_all_can_be_fused() -> None:
    """With debug-aic-num alone there are no vector cores; the fix is named."""
    checked = check([MATMUL, MUL], "debug-aic-num=24")
    assert not checked.is_certain
    assert checked.refusal.startswith("fewer cores than an operator needs (EB0500); set debug-aic-num and")


VALID = [case for case in CASES if "never" not in str(case["nodes"])]
"""Not with a value of an option that is none, which no plan can have."""
_CORES = {"cube": KernelType.AIC_ONLY, "mix": KernelType.MIX_AIC_1_2}


def refused_by_rules(nodes: list[GraphNode], label: str) -> bool:
    """Return whether pass or generator refuses the plan for a scope, all being known."""
    grouping = group(nodes)
    if grouping.failure:
        return True
    for each in grouping.groups:
        if each.label == label:
            kernels = [
                SubKernel(_CORES.get(kernel_core(nodes[at].type), KernelType.AIV_ONLY), 1, nodes[at].stream,
                          *((each.events[place].sends, each.events[place].receives) if each.events else ()))
                for place, at in enumerate(each.nodes)
            ]  # fmt: skip
            if isinstance(generate(kernels, {}), Refusal):
                return True
    return False


def test_what_is_certain_holds_on_all_facts() -> None:
    """On the graphs that GE's own pass has grouped: with what could be known before, against all that is recorded.

    Every fact of a scope that is certain to be refused is a failure of the pass, or code that is refused.
    """
    certain = 0
    for case in VALID:
        nodes = [node(each) for each in case["nodes"]]
        supported = {each.type for each in nodes if each.can_fuse} - {each.type for each in nodes if not each.can_fuse}
        for seen in (SeenTypes(), SeenTypes(fused=frozenset(supported))):
            operators = [
                PlannedOperator(each.name, each.type, each.label, each.options, str(each.stream), each.waits_for)
                for each in nodes
            ]
            labels = list(dict.fromkeys(each.label for each in nodes if each.label))
            for checked in check_scopes(operators, labels, seen):
                if checked.is_certain:
                    certain += 1
                    assert case["facts"].get("failed") or refused_by_rules(nodes, checked.label)
    assert certain >= 10, certain
    assert len(VALID) > 400


GRAPH = GeGraph(
    "step",
    (
        GeOperator("x", "Data"),
        GeOperator("m0", "MatMulV2", ("x:0",), scope="first"),
        GeOperator("view", "Reshape", ("m0:0",), scope="second"),
        GeOperator("m1", "MatMulV2", ("view:0",), scope="second", stream="1"),
        GeOperator("m2", "MatMulV2", ("x:0",), scope="second", controls=("m1",)),
        GeOperator("end", "NetOutput", ("m2:0",)),
    ),
)
LAYOUT = Layout((Unit("first", "first"), Unit("second", "second")), ())


def test_kernels_of_units_keep_streams_and_edges() -> None:
    """Through views and by control edges; a study's layout stores them."""
    assert operators_of_graph(GRAPH)[1:] == (
        PlannedOperator("m1", "MatMulV2", "second", stream="1", after=(0,), follows_view=True),
        PlannedOperator("m2", "MatMulV2", "second", after=(1,)),
    )
    layout = LAYOUT.with_kernels(unit_kernels(GRAPH, LAYOUT))
    matmul = Kernel("MatMulV2", "cube", after=(1,))
    assert layout.units[1].kernels == (replace(matmul, stream="1", follows_view=True), matmul)
    assert decoded(Layout, encoded(layout)) == layout
    planned = operators_of_layout(layout, units_plan(layout))
    assert [(each.label, each.stream, each.after, each.follows_view) for each in planned] == [
        (each.label, each.stream, each.after, each.follows_view) for each in operators_of_graph(GRAPH)
    ]


def test_only_what_is_in_a_scope_has_its_label() -> None:
    """Kernels between two units of a scope are inside, those after the last are not."""
    mul = Kernel("Mul", "vector")
    units = tuple(Unit(name, name, kernels=(mul,), between=(mul,)) for name in "abc")
    plan = Plan((Scope("a", "b", (("early-start", 0),)),))
    labels = [each.label for each in operators_of_layout(Layout(units, ()), plan)]
    assert labels == ["a..b"] * 3 + [""] * 3
    assert operators_of_layout(Layout(units, ()), plan)[0].options == "early-start=0"
    assert operators_of_layout(LAYOUT, plan) == ()
