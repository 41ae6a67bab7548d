"""The first start of a rehearsal: the program runs once, eagerly, and shows what a search of it would find."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sktune.core.errors import BackendError, TargetError
from sktune.core.layout import Layout
from sktune.core.plan import Plan
from sktune.core.space import SpaceSpec
from sktune.program.sktune_program.task import DecodeCall, RankTask
from sktune.recipes.agreement import decode_step
from sktune.recipes.checked_runs import can_alternate, unmeasured_reason
from sktune.recipes.rank_reports import InspectedCall, RankReport
from sktune.recipes.run import Launcher, last_line_text
from sktune.recipes.step_times import MIN_ALTERNATING, MIN_STEPS
from sktune.targets.recipe import Recipe

_NEEDS_DEVICE = re.compile(r"\bNeedsDeviceError: (\S+ needs an NPU.*)")
"""In a rank's traceback; see ``sktune_program.stand_ins``."""


@dataclass(frozen=True, slots=True)
class FirstStart:
    """What the first start has found.

    Attributes:
        decode: the decode step.
        layout: of it.
        steps: decode steps of the rank with the fewest.
        alternates: whether the runs of a search would also have the baseline's turns.
        stand_ins: the modules that were stand-ins.
        loading_s: seconds from the start until the last rank has begun its first decode step.
        step_s: seconds of a decode step, eager, with what the program does between two of them: the mean, in the rank
            that is the slowest.
        seconds: of the whole start.
    """

    decode: DecodeCall
    layout: Layout
    steps: int
    alternates: bool
    stand_ins: tuple[str, ...]
    loading_s: float
    step_s: float
    seconds: float


def first_start(recipe: Recipe, space: SpaceSpec, folder: Path, *, stands_in: bool) -> FirstStart:
    """Start a recipe's program once, as the first run of a search does.

    Args:
        recipe: with absolute paths, for one host.
        space: says what is a unit.
        folder: gets the run's files, its log, and what the program's compilers write.
        stands_in: whether there are stand-ins of torch_npu and TorchAir where they are not installed.

    Raises:
        BackendError: it does not run, or its decode steps have no latency; the message says how far it got.
        TargetError: no call could be a decode step, or the ranks run different modules.
    """
    log = folder / "rehearsal.log"
    launcher = Launcher(recipe, folder / "work", folder / "cache")
    run = launcher.run(RankTask(True, recipe.backend, recipe.model, stands_in=stands_in), Plan(), log)
    if run.failure:
        detail, words = run.failure.detail, _last_words(log)
        is_told = words in detail or any(report.error for report in run.reports)
        raise BackendError(
            f"the program does not run eagerly: {detail}{'' if is_told else words}; {_progress(run.reports)}"
        )
    try:
        step, layout = decode_step(run.reports, space)
    except TargetError as failure:  # a rank may have failed whose script says nothing of it
        raise TargetError(f"{failure}{_last_words(log)}; {_progress(run.reports)}") from failure
    of_ranks = [_decode_call(report, step) for report in run.reports]
    calls = [call.calls for call in of_ranks]
    clocks = [report.clock_s[call.call] for report, call in zip(run.reports, of_ranks, strict=True)]
    step_ms = [[1.0] * count for count in calls] if recipe.latency == "steps" else run.step_ms
    alternates = can_alternate(recipe.backend, calls, step_ms)
    if problem := unmeasured_reason(recipe, step_ms, MIN_ALTERNATING if alternates else MIN_STEPS):
        raise BackendError(f"the program runs, but a search could not measure it: {problem}")
    return FirstStart(
        decode=step,
        layout=layout,
        steps=min(calls),
        alternates=alternates,
        stand_ins=tuple(sorted(set().union(*(report.stand_ins for report in run.reports)))),
        loading_s=max(start_s for start_s, _ in clocks) - run.began_s,
        step_s=max((end_s - start_s) / count for (start_s, end_s), count in zip(clocks, calls, strict=True)),
        seconds=run.seconds,
    )


def _decode_call(report: RankReport, step: DecodeCall) -> InspectedCall:
    """Return a rank's calls of the decode step, whose tensors may have other shapes in each rank."""
    same = [call for call in report.inspected if call.call.function == step.function and call.times]
    return next((call for call in same if call.call == step), None) or max(same, key=lambda call: call.calls)


def _last_words(log: Path) -> str:
    """Return what a run's logs say of its end, as the end of a message: what needs an NPU, or else the last line."""
    logs = [log, *sorted(log.parent.glob(f"{log.stem}.*.log"))]
    for path in logs:
        if found := _NEEDS_DEVICE.findall(path.read_text(encoding="utf-8", errors="replace")):
            return f"; {found[-1]}"
    return next(filter(None, map(last_line_text, logs)), "")


def _progress(reports: Sequence[RankReport]) -> str:
    """Return how far a start got that failed, in a few words."""
    functions = dict.fromkeys(name for report in reports for name in report.functions)
    if not functions:
        return "up to there no rank was about to compile a model"
    ranks = f"{len(reports)} rank{'' if len(reports) == 1 else 's'}"
    begun = "decode steps" if any(report.inspected for report in reports) else "no decode step"
    return f"up to there {ranks} built the model of {', '.join(functions)}, and {begun} began"
