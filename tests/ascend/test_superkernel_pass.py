"""Which operators become one SuperKernel, against facts recorded from GE's own pass.

``tests/golden/ge/README.md`` says how they were recorded.
"""

import json
from dataclasses import replace
from typing import Any

import pytest

from sktune.ascend.superkernel_pass import FusedGroup, GraphNode, Grouping, PassCut, cuts_text, group
from tests.builders import TESTS

CASES = [
    case
    for name in ("grouping.json", "streams.json")
    for case in json.loads((TESTS / "golden" / "ge" / name).read_text())["cases"]
]


def node(recorded: list[Any]) -> GraphNode:
    """Return a recorded node."""
    name, kind, label, options, stream, flags, waits_for = recorded
    return GraphNode(name, kind, label, options, stream, "s" in flags, "c" in flags, "m" in flags, tuple(waits_for))


def facts(each: FusedGroup, nodes: list[GraphNode]) -> dict[str, Any]:
    """Return a group in the form of the recorded facts."""
    first, last = nodes[each.nodes[0]].name, nodes[each.nodes[-1]].name
    return {
        "name": f"sk_{each.scope}_start_{first}_end_{last}", "stream": each.stream, "nodes": list(each.nodes),
        "links": sorted(map(list, each.links)), "notifies": [list(pair) for pair in each.notifies.items()],
        "waits": [list(pair) for pair in each.waits.items()],
    }  # fmt: skip


def test_the_groups_are_those_of_the_pass() -> None:
    """Their names, streams, operators, the events inside, and those that wait and notify inside; and what fails.

    A fragment is named after the nodes at its borders: each is an end of its scope, or one of the cuts.
    """
    for number, case in enumerate(CASES):
        nodes = [node(each) for each in case["nodes"]]
        grouping = group(nodes)
        seen = {"failed": True} if grouping.failure else {"groups": [facts(each, nodes) for each in grouping.groups]}
        assert seen == case["facts"], number
        check_borders(nodes, grouping)


def check_borders(nodes: list[GraphNode], grouping: Grouping) -> None:
    """Check that the borders of fragments are cuts, and each cut's rule."""
    for each in grouping.groups:
        of_scope = [cut for cut in grouping.cuts if cut.label == each.label]
        assert not any(cut.drops_scope for cut in of_scope)
        if each.scope == each.label:
            assert not of_scope
            continue
        low, high = map(int, each.scope.removeprefix(f"{each.label}_split_").split("_"))
        inside = [node for other in grouping.groups if other.label == each.label for node in other.nodes]
        ends = {border for border in (low, high) if border < min(inside) or border > max(inside)}
        assert {low, high} - {cut.node for cut in of_scope} <= ends
    for cut in grouping.cuts:
        at = nodes[cut.node]
        is_foreign = at.label != cut.label
        assert (cut.rule in (PassCut.OTHER_SCOPE, PassCut.NO_SCOPE)) == is_foreign
        assert is_foreign or not at.can_fuse


def one_scope(*operators: GraphNode, options: str = "") -> Grouping:
    """Return what becomes of operators in one scope; those with a label of their own keep it."""
    return group([replace(each, label=each.label or "s", options=options) for each in operators])


MUL, CAST = GraphNode("mul", "Mul"), GraphNode("cast", "Cast", is_supported=False)


@pytest.mark.parametrize(
    ("cutting", "rule"),
    [
        (CAST, PassCut.NOT_BUILT),
        (GraphNode("simt", "Unique", uses_local_memory=True), PassCut.LOCAL_MEMORY),
        (GraphNode("other", "Mul", label="t"), PassCut.OTHER_SCOPE),
    ],
)
def test_a_cut_names_operator_and_rule(cutting: GraphNode, rule: PassCut) -> None:
    """So that a user knows which operator splits the scope, and why; strict-scope-check=abort says what to do."""
    (cut,) = one_scope(MUL, cutting, MUL).cuts
    assert (cut.label, cut.node, cut.rule, cut.drops_scope) == ("s", 1, rule, False)
    (dropped,) = one_scope(MUL, cutting, MUL, options="strict-scope-check=bypass").cuts
    assert (dropped.node, dropped.rule, dropped.drops_scope) == (1, rule, True)
    aborted = one_scope(MUL, cutting, MUL, options="strict-scope-check=abort")
    assert aborted.failure == (
        f"strict-scope-check=abort: {cutting.type} ({cutting.name}) cuts scope s: {rule}; {rule.fix}, "
        "or leave strict-scope-check out"
    )


def test_an_operator_without_a_label_cuts_the_scope() -> None:
    """It runs between the scope's operators on their stream."""
    scope = replace(MUL, label="s")
    (cut,) = group([scope, MUL, scope]).cuts
    assert (cut.node, cut.rule) == (1, PassCut.NO_SCOPE)


def test_a_scope_without_any_operator_that_can_be_fused_says_so() -> None:
    """It becomes no SuperKernel."""
    grouping = one_scope(CAST, CAST)
    assert not grouping.groups
    assert [(cut.node, cut.rule, cut.drops_scope) for cut in grouping.cuts] == [
        (0, PassCut.NOT_BUILT, True), (1, PassCut.NOT_BUILT, True)
    ]  # fmt: skip


def test_cuts_are_counted_by_type_and_rule() -> None:
    """For people, in one line; a rule that is not known is left out."""
    cuts = [("Cast", str(PassCut.NOT_BUILT))] * 2 + [("Add", str(PassCut.NO_SCOPE)), ("Mul", "")]
    assert cuts_text(cuts) == ("2 Cast (kernel not built for SuperKernels); 1 Add (not in the scope); 1 Mul")


MODELS = json.loads((TESTS / "golden" / "ge" / "models.json").read_text())["models"]


def expanded(runs: list[list[Any]]) -> list[Any]:
    """Return a list from its values and how often each repeats."""
    return [value for value, count in runs for _ in range(count)]


def model_nodes(types: list[str], case: dict[str, Any]) -> list[GraphNode]:
    """Return the nodes of a model under a plan."""
    tasks = {index for first, last in case["tasks"] for index in range(first, last + 1)}
    options = f"strict-scope-check={case['strict']}" if case["strict"] else ""
    return [
        GraphNode(str(index), kind, label, options if label else "", stream,
             index in tasks and kind not in case["unsupported"])
        for index, (kind, label, stream) in enumerate(
            zip(types, expanded(case["labels"]), expanded(case["streams"]), strict=True)
        )
    ]  # fmt: skip


def test_models_are_grouped_as_by_the_pass() -> None:
    """TorchAir's graphs of eight architectures under starting points and random plans, views left and deleted."""
    for number, (types, case) in enumerate((model["types"], case) for model in MODELS for case in model["cases"]):
        grouping = group(model_nodes(types, case))
        found = sorted(list(each.nodes) for each in grouping.groups)
        recorded = case["facts"]
        assert bool(grouping.failure) == recorded.get("failed", False), number
        assert found == [[index for first, last in each for index in range(first, last + 1)]
                         for each in recorded.get("groups", [])], number  # fmt: skip
