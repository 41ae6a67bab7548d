"""Which SuperKernels result from captured graphs, against facts recorded from graph-autofusion's own splitter.

``tests/golden/npugraph_ex/README.md`` says how they were recorded.
"""

import json
from typing import Any

import pytest

from sktune.ascend.captured_graph import Core, Kind, Reason, SplitOptions, Task
from sktune.ascend.graph_splits import GraphSplit, split
from tests.builders import TESTS

CASES = json.loads((TESTS / "golden" / "npugraph_ex" / "splits.json").read_text())["cases"]


def task(recorded: list[Any]) -> Task:
    """Return a recorded task."""
    kind, stream, *details = recorded
    known = Task(Kind(kind), stream)
    if known.kind is Kind.KERNEL:
        core, blocks, flags = details
        obstacle = Reason.DYNAMIC_TASK_UNSUPPORT if "d" in flags else Reason.OP_UNSUPPORT if flags[:1] in "nm" else None
        return Task(known.kind, stream, None, Core(core), blocks, obstacle if flags.strip("a") else None, "a" in flags)
    if known.kind in (Kind.BEGIN, Kind.END):
        return Task(known.kind, stream, details[0])
    if known.kind in (Kind.RECORD, Kind.WAIT, Kind.RESET):
        return Task(known.kind, stream, event=details[0], is_external=details[1] == "x")
    return Task(known.kind, stream, **dict(zip(("event", "value", "flag"), details, strict=False)))


def found(case: dict[str, Any]) -> GraphSplit:
    """Return what sktune makes of a recorded case."""
    options = {name: value if name == "value_breaker_bypass" else bool(value) for name, value in case["options"].items()}
    return split([task(each) for each in case["tasks"]], tuple(case["cores"]), SplitOptions(**options))


def facts(result: GraphSplit, tasks: list[list[Any]]) -> dict[str, Any]:
    """Return a result in the form of the recorded facts."""
    if result.failure:
        return {"failed": True}
    return {
        "superkernels": [[kernel_name(each.name, each.tasks, tasks), list(each.tasks), each.launched_at]
                         for each in result.superkernels],
        "groups": [[each.name, list(each.tasks), each.status.name, each.rule.name, each.cut]
                   for each in result.groups],
        "left": [[each.task, spelled(each.reason, each.detail), each.is_fusable] for each in result.left],
    }  # fmt: skip


def kernel_name(scope: str, inside: tuple[int, ...], tasks: list[list[Any]]) -> str:
    """Return the name of a SuperKernel whose number is 0."""
    kernels = [each for each in inside if tasks[each][0] == "kernel"]
    return f"sk_0_{scope}_start_k{kernels[0]}_end_k{kernels[-1]}"


def spelled(reason: Reason | None, detail: str) -> str:
    """Return a reason as logs name it."""
    name = reason.name if reason else "CAN_FUSE"
    return f"{name} [{detail}]" if detail else name


def recorded_facts(case: dict[str, Any]) -> dict[str, Any]:
    """Return the facts, of failures only that there is one, and of kernels that are not built not what is missing."""
    known = case["facts"]
    if "failed" in known:
        return {"failed": True}
    left = [[place, reason.split(" ")[0] if reason.startswith("OP_") else reason, fusable]
            for place, reason, fusable in known["left"]]  # fmt: skip
    return known | {"left": left}


@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_superkernels_are_those_of_the_splitter(number: int) -> None:
    """Their names, tasks and places; all groups with what becomes of them and what ends them; reasons; failures."""
    case = CASES[number]
    assert facts(found(case), case["tasks"]) == recorded_facts(case)
