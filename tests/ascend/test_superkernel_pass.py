"""Which operators become one SuperKernel, against facts recorded from GE's own pass.

``tests/golden/ge/README.md`` says how they were recorded.
"""

import json
from typing import Any

import pytest

from sktune.ascend.superkernel_pass import Group, Node, group
from tests.builders import TESTS

CASES = [
    case
    for name in ("grouping.json", "streams.json")
    for case in json.loads((TESTS / "golden" / "ge" / name).read_text())["cases"]
]


def node(recorded: list[Any]) -> Node:
    """Return a recorded node."""
    name, kind, label, options, stream, flags, waits_for = recorded
    return Node(name, kind, label, options, stream, "s" in flags, "c" in flags, "m" in flags, tuple(waits_for))


def facts(each: Group, nodes: list[Node]) -> dict[str, Any]:
    """Return a group in the form of the recorded facts."""
    first, last = nodes[each.nodes[0]].name, nodes[each.nodes[-1]].name
    return {
        "name": f"sk_{each.scope}_start_{first}_end_{last}", "stream": each.stream, "nodes": list(each.nodes),
        "links": sorted(map(list, each.links)), "notifies": [list(pair) for pair in each.notifies.items()],
        "waits": [list(pair) for pair in each.waits.items()],
    }  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_groups_are_those_of_the_pass(number: int) -> None:
    """Their names, streams, operators, the events inside, and those that wait and notify inside; and what fails."""
    case = CASES[number]
    nodes = [node(each) for each in case["nodes"]]
    grouping = group(nodes)
    seen = {"failed": True} if grouping.failure else {"groups": [facts(each, nodes) for each in grouping.groups]}
    assert seen == case["facts"]


MODELS = json.loads((TESTS / "golden" / "ge" / "models.json").read_text())["models"]


def expanded(runs: list[list[Any]]) -> list[Any]:
    """Return a list from its values and how often each repeats."""
    return [value for value, count in runs for _ in range(count)]


def model_nodes(types: list[str], case: dict[str, Any]) -> list[Node]:
    """Return the nodes of a model under a plan."""
    tasks = {index for first, last in case["tasks"] for index in range(first, last + 1)}
    options = f"strict-scope-check={case['strict']}" if case["strict"] else ""
    return [
        Node(str(index), kind, label, options if label else "", stream,
             index in tasks and kind not in case["unsupported"])
        for index, (kind, label, stream) in enumerate(
            zip(types, expanded(case["labels"]), expanded(case["streams"]), strict=True)
        )
    ]  # fmt: skip


@pytest.mark.parametrize(("model", "number"), [(place, number) for place, each in enumerate(MODELS)
                                               for number in range(len(each["cases"]))])  # fmt: skip
def test_models_are_grouped_as_by_the_pass(model: int, number: int) -> None:
    """TorchAir's graphs of eight architectures under starting points and random plans, views left and deleted."""
    case = MODELS[model]["cases"][number]
    grouping = group(model_nodes(MODELS[model]["types"], case))
    found = sorted(list(each.nodes) for each in grouping.groups)
    recorded = case["facts"]
    assert bool(grouping.failure) == recorded.get("failed", False)
    assert found == [[index for first, last in each for index in range(first, last + 1)]
                     for each in recorded.get("groups", [])]  # fmt: skip
