"""Which SuperKernels result from captured graphs, against facts recorded from graph-autofusion's own splitter.

``tests/golden/npugraph_ex/README.md`` says how they were recorded.
"""

import json
from dataclasses import asdict, replace
from typing import Any

from sktune.ascend.captured_graph import CapturedTask, Core, Kind, SplitOptions, UnfusedReason
from sktune.ascend.graph_launches import LaunchStatus
from sktune.ascend.graph_splits import GraphSplit, split
from tests.builders import TESTS

CASES = json.loads((TESTS / "golden" / "npugraph_ex" / "splits.json").read_text())["cases"]


def task(recorded: list[Any]) -> CapturedTask:
    """Return a recorded task."""
    kind, stream, *details = recorded
    known = CapturedTask(Kind(kind), stream)
    if known.kind is Kind.KERNEL:
        core, blocks, flags = details
        obstacle = (
            UnfusedReason.DYNAMIC_TASK_UNSUPPORT
            if "d" in flags
            else UnfusedReason.OP_UNSUPPORT
            if flags[:1] in "nm"
            else None
        )
        return CapturedTask(
            known.kind, stream, None, Core(core), blocks, obstacle if flags.strip("a") else None, "a" in flags
        )
    if known.kind in (Kind.BEGIN, Kind.END):
        return CapturedTask(known.kind, stream, details[0])
    if known.kind in (Kind.RECORD, Kind.WAIT, Kind.RESET):
        return CapturedTask(known.kind, stream, event=details[0], is_external=details[1] == "x")
    return CapturedTask(known.kind, stream, **dict(zip(("event", "value", "flag"), details, strict=False)))


def found(case: dict[str, Any]) -> GraphSplit:
    """Return what sktune makes of a recorded case."""
    options = {
        name: value if name == "value_breaker_bypass" else bool(value) for name, value in case["options"].items()
    }
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


def spelled(reason: UnfusedReason | None, detail: str) -> str:
    """Return a reason as logs name it."""
    name = reason.name if reason else "CAN_FUSE"
    return f"{name} [{detail}]" if detail else name


def recorded_facts(case: dict[str, Any]) -> dict[str, Any]:
    """Return the facts, of failures only that there is one, and of kernels that are not built not what is missing."""
    known: dict[str, Any] = case["facts"]
    if "failed" in known:
        return {"failed": True}
    left = [[place, reason.split(" ")[0] if reason.startswith("OP_") else reason, fusable]
            for place, reason, fusable in known["left"]]  # fmt: skip
    return known | {"left": left}


def test_the_superkernels_are_those_of_the_splitter() -> None:
    """Their names, tasks and places; all groups with what becomes of them and what ends them; reasons; failures."""
    for number, case in enumerate(CASES):
        assert facts(found(case), case["tasks"]) == recorded_facts(case), number


DEVICE = (24, 48)
KERNEL, OTHER = CapturedTask(Kind.KERNEL), CapturedTask(Kind.OTHER)
UNBUILT = replace(KERNEL, obstacle=UnfusedReason.OP_UNSUPPORT)


def begin(name: str | None) -> CapturedTask:
    """Return the marker that opens a scope."""
    return CapturedTask(Kind.BEGIN, name=name)


def end(name: str | None) -> CapturedTask:
    """Return the marker that closes a scope."""
    return CapturedTask(Kind.END, name=name)


def kernels(*tasks: CapturedTask, **options: int) -> list[tuple[str, list[int]]]:
    """Return the names and kernels of the SuperKernels."""
    result = split(tasks, DEVICE, SplitOptions(**options))  # type: ignore[arg-type]
    return [(each.name, [index for index in each.tasks if tasks[index].kind is Kind.KERNEL])
            for each in result.superkernels]  # fmt: skip


def test_without_scopes_all_that_can_be_fused_is() -> None:
    """A graph needs no markers; a task that cannot be fused ends a SuperKernel."""
    assert kernels(KERNEL, KERNEL) == [("none", [0, 1])]
    assert kernels(KERNEL, UNBUILT, KERNEL, OTHER, KERNEL) == [("none", [0]), ("none", [2]), ("none", [4])]


def test_a_named_scope_leaves_out_what_is_outside_of_scopes() -> None:
    """Wherever in the graph the name is."""
    assert kernels(KERNEL, begin("s"), KERNEL, end("s"), KERNEL) == [("s", [2])]
    assert kernels(KERNEL, begin(None), KERNEL, end(None), KERNEL) == [("none", [0]), ("none", [4])]


def test_none_wins_over_every_name() -> None:
    """Also over names inside of it."""
    assert kernels(begin("s"), KERNEL, begin(None), KERNEL, end(None), KERNEL, end("s")) == [("s", [1]), ("s", [5])]
    assert not kernels(begin(None), begin("s"), KERNEL, end("s"), end(None))


def test_kernels_with_the_same_set_of_open_scopes_are_fused() -> None:
    """Scopes may overlap; an inner scope is another set than the outer one alone."""
    overlapping = (begin("s"), KERNEL, begin("t"), KERNEL, end("s"), KERNEL, end("t"))
    assert kernels(*overlapping) == [("s", [1]), ("s_t", [3]), ("t", [5])]
    again = (begin("s"), KERNEL, begin("s"), KERNEL, end("s"), KERNEL, end("s"))
    assert kernels(*again) == [("s", [1, 3, 5])]


def test_neighbours_with_one_name_become_one_superkernel() -> None:
    """Their markers do not separate them, only what lies between."""
    neighbours = (begin("s"), KERNEL, end("s"), begin("s"), KERNEL, end("s"))
    assert kernels(*neighbours) == [("s", [1, 4])]
    apart = (begin("s"), KERNEL, end("s"), KERNEL, begin("s"), KERNEL, end("s"))
    assert kernels(*apart) == [("s", [1]), ("s", [5])]


def test_streams_are_fused_together() -> None:
    """An event whose record and waits are inside disappears."""
    tasks = (
        KERNEL, CapturedTask(Kind.RECORD, event=1), KERNEL, replace(KERNEL, stream=1),
        CapturedTask(Kind.WAIT, 1, event=1), replace(KERNEL, stream=1),
    )  # fmt: skip
    (superkernel,) = split(tasks, DEVICE).superkernels
    assert superkernel.tasks == (0, 2, 3, 5)


def test_a_stream_with_too_few_tasks_loses_the_group() -> None:
    """Tasks are overwritten, never added: a stream has to be held back before and after the SuperKernel."""
    short = [replace(UNBUILT, stream=1), replace(KERNEL, stream=1), replace(UNBUILT, stream=1)]
    (group,) = split([KERNEL, *short], DEVICE).groups
    assert group.status is LaunchStatus.SUCCESS
    (group,) = split([UNBUILT, KERNEL, UNBUILT, *short], DEVICE).groups
    assert group.status is not LaunchStatus.SUCCESS


def test_a_kernel_with_more_blocks_than_cores_refuses_the_graph() -> None:
    """In a scope; outside of scopes it is never asked for its cores."""
    large = replace(KERNEL, blocks=49)
    assert split([KERNEL, large], DEVICE).failure
    assert split([begin("s"), KERNEL, end("s"), large], DEVICE).superkernels


def test_a_kernel_that_synchronizes_all_blocks_needs_the_cores_of_its_superkernel() -> None:
    """It is split off where others have taken more, and what needs more after it."""
    small = replace(KERNEL, blocks=2, needs_all_cores=True)
    assert kernels(replace(KERNEL, blocks=8), small) == [("none", [0]), ("none", [1])]
    assert kernels(small, replace(KERNEL, blocks=8)) == [("none", [0]), ("none", [1])]


def test_options_change_what_is_fused() -> None:
    """One SuperKernel for each kernel, to debug; and tasks of another kind on a stream of their own."""
    assert kernels(KERNEL, KERNEL, debug_per_op_max_core_num=True) == [("none", [0]), ("none", [1])]
    waiting = (KERNEL, CapturedTask(Kind.WAIT_VALUE, event=1, value=1), KERNEL)
    assert kernels(*waiting) == [("none", [0]), ("none", [2])]
    assert kernels(*waiting, value_breaker_bypass=2) == [("none", [0, 2])]


OPTIONS = json.loads((TESTS / "golden" / "npugraph_ex" / "options.json").read_text())["options"]


def test_the_options_that_split_have_their_recorded_defaults() -> None:
    """So that a graph without options is split as graph-autofusion does."""
    defaults = {each["name"]: each["default"] for each in OPTIONS}
    defaults |= defaults["aggressive_opt_strategies"]
    for name, value in asdict(SplitOptions()).items():
        assert value == defaults[name]
