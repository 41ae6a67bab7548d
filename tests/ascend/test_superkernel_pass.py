"""Which operators become one SuperKernel, against facts recorded from GE's own pass.

``tests/golden/ge/README.md`` says how they were recorded.
"""

import json
from typing import Any

import pytest

from sktune.ascend.superkernel_pass import Group, Node, group
from tests.builders import TESTS

CASES = json.loads((TESTS / "golden" / "ge" / "grouping.json").read_text())["cases"]


def node(recorded: list[Any]) -> Node:
    """Return a recorded node."""
    name, kind, label, options, stream, flags, waits_for = recorded
    return Node(name, kind, label, options, stream, "s" in flags, "c" in flags, "m" in flags, False, tuple(waits_for))


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
