"""Judges plans by starting a recipe's program again and again: one fresh run for each plan and for each baseline.

What a run cannot do is to alternate plan and baseline step by step. Baseline runs are made at the start and now and
then; how much they differ from one another is what a plan's figure is uncertain by.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, Self

import numpy as np

from sktune import samples
from sktune.backends.options import SUPERKERNEL_BACKENDS
from sktune.errors import BackendError, NotDeterministicError, TargetError
from sktune.latency import Measurement
from sktune.layout import Layout
from sktune.noise_floor import Bar, FloorLook
from sktune.outcome import Outcome, Reason, Speedup
from sktune.plan import Plan
from sktune.plog import cause, explain_files
from sktune.recipes.document import Recipe
from sktune.recipes.reports import VERIFIED_STEPS, FoundStep, RankReport, Task
from sktune.recipes.running import Failure, Run, Runner
from sktune.sequential import Comparison
from sktune.space import SpaceSpec
from sktune.supervisor import FinalRow, Opened
from sktune.verdict import T975

WARM_UP_STEPS = 2
"""Left out at the start of a run: the first compiles, and the second may still set things up."""
LEAST_STEPS = 8
VERIFIED = f"outputs of {VERIFIED_STEPS} decode steps and the state after them, in every rank"
BASELINES = 2
"""Runs of the baseline at the start, which show that its bits are always the same; a third one, the first look at the
noise floor, comes before the first trial."""
LATEST = 5
"""Baseline runs that a plan is compared with; older ones were made on what may have been another day."""


@dataclass(frozen=True, slots=True)
class RunLatency:
    """A run's decode step: the slowest rank's median, and half its interval's width, relative."""

    latency_ms: float
    halfwidth: float
    steps: int


class RecipeSupervisor:
    """Runs a recipe's program; stands in for ``sktune.supervisor.Supervisor``.

    Args:
        recipe: with absolute paths.
        space: says what is a unit.
        folder: the study's; logs go to ``logs/`` in it, reports of the ranks to ``work/``.
        cache: for the compilers' caches, one folder for each plan.
    """

    def __init__(self, recipe: Recipe, space: SpaceSpec, folder: Path, cache: Path) -> None:
        self._recipe, self._space, self._folder = recipe, space, folder
        self._runner = Runner(recipe, folder / "work", cache)
        self._task = Task(inspects=False, backend=recipe.backend, model=recipe.model)
        self._opened: Opened | None = None
        self._reference: tuple[RankReport, ...] = ()
        self._ignored: frozenset[tuple[int, str]] = frozenset()
        self._baselines: list[RunLatency] = []
        self.deadline_s = math.inf

    has_run = True
    """Nothing can be started before it is needed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Nothing: each run starts by itself."""

    def stop(self) -> None:
        """End the run that is on."""
        self._runner.stop()

    def open(self) -> Opened:
        """Find decode step and layout in one eager run, and run the baseline, unless this was done.

        Raises:
            TargetError: the program runs nothing that could be a decode step, or its ranks differ.
            BackendError: the baseline does not run.
            NotDeterministicError: two baseline runs have different outputs.
            OutOfTimeError: at ``deadline_s``; so do all other methods.
        """
        if self._opened is None:
            inspected = self._inspect()
            baselines = [self._baseline(f"baseline-{number}.log") for number in range(1, BASELINES + 1)]
            seconds = {"load": inspected.seconds, "baseline": mean(run.seconds for run in baselines)}
            decode = self._task.decode
            assert decode is not None
            notes = [f"{name} of rank {rank}" for rank, name in sorted(self._ignored)]
            kept = f"; not compared, as they differ between two baselines: {', '.join(notes[:4])}" if notes else ""
            description = f"{self._recipe.name}: {decode.function} in {self._recipe.ranks} ranks{kept}"
            facts = {"decode": {"function": decode.function, "signature": decode.signature}, "verified": VERIFIED}
            self._opened = Opened(self._layout, description, seconds, facts)
        return self._opened

    def judge(
        self,
        plan: Plan,
        log: str,
        report: Callable[[str], None],
        known: Mapping[str, int] | None = None,  # noqa: ARG002 - what a program's scopes became is in its logs alone
        bar: Bar | None = None,
    ) -> Outcome:
        """Run the program once with ``plan``; see ``Supervisor.judge``."""
        self.open()
        report("compile")
        run = self._run(plan, log)
        outcome = self._outcome(run, bar or Bar())
        if outcome.reason in (Reason.COMPILE_FAILED, Reason.TIMEOUT, Reason.CRASHED):
            outcome = self._explained(outcome, plan, log)
        is_only = len(plan.scopes) == 1 and not outcome.is_feasible
        blamed = plan.scopes[0].label if is_only else outcome.blamed
        return replace(outcome, seconds=_seconds(run), blamed=blamed, log=f"logs/{log}")

    def floor_look(self, before_trial: int) -> FloorLook | None:
        """Run the baseline once more, and compare it with the runs before; see ``Supervisor.floor_look``."""
        self.open()
        before = list(self._baselines)
        run = self._baseline(f"floor-{before_trial:04d}.log")
        return FloorLook(before_trial, self._speedup(self._baselines[-1], before), "", run.seconds)

    def qualify(self, plans: Sequence[tuple[str, Plan]], report: Callable[[str], None]) -> list[str]:  # noqa: ARG002
        """Return the names of the plans that enter the final comparison: all."""
        return [name for name, _ in plans]

    def final(
        self,
        plans: Sequence[tuple[str, Plan]],
        report: Callable[[str], None],
        *,
        number: int = 1,
        references: bool,  # noqa: ARG002 - what a user has without sktune is the baseline
    ) -> tuple[list[FinalRow], str]:
        """Run baseline and plans in turn, every other time backwards; the noise floor is known from the looks at it."""
        self.open()
        entries = [("baseline", Plan()), *plans]
        runs: dict[str, Run] = {}
        for name, plan in entries if number % 2 else entries[::-1]:
            report("measure")
            runs[name] = self._run(plan, f"final-{number}-{name.replace(' ', '-')}.log")
        reference = runs["baseline"]
        if reference.failure:
            raise BackendError(f"the baseline fails: {reference.failure.detail}; see logs/final-{number}-baseline.log")
        base = self._latency(reference)
        return [self._row(name, runs[name], base) for name, _ in entries], ""

    def _row(self, name: str, run: Run, base: RunLatency) -> FinalRow:
        if run.failure:
            return FinalRow(name, None, run.failure.detail, False, "")
        difference = self._difference(run.reports)
        own = self._latency(run)
        width = sqrt(own.halfwidth**2 + base.halfwidth**2)
        speedup = _speedup(base.latency_ms, own, 1e-9 if own is base else width)
        return FinalRow(name, speedup, difference or "identical", not difference, "")

    def _inspect(self) -> Run:
        task = replace(self._task, inspects=True, space=self._space.model_dump(mode="json"))
        run = self._runner.run(task, Plan(), self._log("inspect.log"), self.deadline_s)
        if run.failure:
            raise BackendError(
                f"the program does not run eagerly: {run.failure.detail}; see {self._log('inspect.log')}"
            )
        found = _decode_step(run.reports)
        assert found.layout is not None
        calls = [each for each in run.reports[0].found if each.call.function == found.call.function]
        call = found.call if len(calls) > 1 else replace(found.call, signature="")
        self._layout = Layout.from_dict(found.layout)
        self._task = replace(self._task, decode=call)
        return run

    def _baseline(self, log: str) -> Run:
        run = self._run(Plan(), log)
        if run.failure:
            raise BackendError(f"the baseline does not run: {run.failure.detail}; see {self._log(log)}")
        if not self._reference:
            self._reference = run.reports
        elif len(self._baselines) == 1:
            self._ignored = _differing_state(self._reference, run.reports)
        if difference := self._difference(run.reports):
            raise NotDeterministicError(
                f"the baseline does not equal itself ({difference}); make the program deterministic "
                "(greedy sampling, a fixed seed), or bit-identity cannot be decided"
            )
        self._baselines.append(self._latency(run))
        return run

    def _run(self, plan: Plan, log: str) -> Run:
        run = self._runner.run(self._task, plan, self._log(log), self.deadline_s)
        if run.failure is None:
            run = replace(run, failure=self._unmeasured(run))
        if run.step_ms:
            self._keep(log, run.step_ms)
        return run

    def _unmeasured(self, run: Run) -> Failure | None:
        """Return what is missing in a run that came to its end."""
        for report in run.reports:
            if not report.outputs:
                detail = f"rank {report.rank} never called {self._task.decode.function if self._task.decode else ''}"
                return Failure(Reason.CRASHED, detail)
        where = "the ranks time no steps" if self._recipe.latency == "steps" else "its log has no latency line"
        if not run.step_ms:
            mend = "give the recipe `latency: {pattern: ...}` or `logs`, or `latency: steps`"
            return Failure(Reason.CRASHED, f"{where}; {mend}")
        fewest = min(len(steps) for steps in run.step_ms)
        if 1 < fewest < LEAST_STEPS + WARM_UP_STEPS:
            return Failure(
                Reason.CRASHED, f"a rank has {fewest} decode steps, at least {LEAST_STEPS + WARM_UP_STEPS} are needed"
            )
        return None

    def _outcome(self, run: Run, bar: Bar) -> Outcome:
        if run.failure:
            return Outcome(run.failure.reason, run.failure.detail)
        if difference := self._difference(run.reports):
            return Outcome(Reason.MISMATCH, difference)
        speedup = self._speedup(self._latency(run), self._baselines)
        comparison = bar.comparison(speedup)
        facts: dict[str, Any] = {"speedup": speedup, "comparison": comparison, "noise_floor": bar.noise_floor}
        if comparison == Comparison.SLOWER:
            return Outcome(Reason.SLOWER, f"{speedup.ratio:.3f}x the baseline's speed", **facts)
        return Outcome(**facts)

    def _speedup(self, own: RunLatency, baselines: Sequence[RunLatency]) -> Speedup:
        """Compare a run with baseline runs: the interval is one more run's, by Student's t over the baseline's."""
        figures = [log(each.latency_ms) for each in baselines[-LATEST:]]
        spread = stdev(figures) * T975[len(figures) - 2] * sqrt(1 + 1 / len(figures)) if len(figures) > 1 else 0.0
        within = sqrt(own.halfwidth**2 + mean(each.halfwidth for each in baselines) ** 2)
        return _speedup(exp(median(figures)), own, max(spread, within))

    def _latency(self, run: Run) -> RunLatency:
        """Return the slowest rank's latency."""
        return max((_latency(steps) for steps in run.step_ms), key=lambda each: each.latency_ms)

    def _difference(self, reports: Sequence[RankReport]) -> str:
        """Return where a rank's bits first differ from the baseline's, empty where none do."""
        for expected, got in zip(self._reference, reports, strict=True):
            steps = zip(expected.outputs, got.outputs, strict=False)
            for number, (one, other) in enumerate(steps):
                if name := _first_difference(one, other):
                    return f"rank {got.rank}, step {number}: {name} differs from the baseline's"
            if len(expected.outputs) != len(got.outputs):
                return f"rank {got.rank}: {len(got.outputs)} decode steps instead of {len(expected.outputs)}"
            ignored = {name for rank, name in self._ignored if rank == got.rank}
            if name := _first_difference(expected.state or {}, got.state or {}, ignored):
                return f"rank {got.rank}: state {name} differs from the baseline's after {len(got.outputs)} steps"
        return ""

    def _explained(self, outcome: Outcome, plan: Plan, log: str) -> Outcome:
        """Add to a failure what CANN's logs and the program's own say about it."""
        if self._recipe.backend not in SUPERKERNEL_BACKENDS:
            return outcome
        own = self._log(log)
        logs = [own, *sorted(own.parent.glob(f"{own.stem}.*")), *self._runner.device_logs()]
        told = cause(explain_files([path for path in logs if path.is_file()], [scope.label for scope in plan.scopes]))
        if told is None:
            return outcome
        return replace(outcome, detail=f"{outcome.detail}; {told.message}", blamed=told.scope or outcome.blamed)

    def _log(self, name: str) -> Path:
        folder = self._folder.resolve() / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def _keep(self, log: str, step_ms: Sequence[Sequence[float]]) -> None:
        shortest = min(len(steps) for steps in step_ms)
        seconds = np.array([steps[:shortest] for steps in step_ms]).T / 1e3
        measurement = Measurement(seconds, np.zeros(shortest, dtype=bool), 0)
        path = self._folder.resolve() / samples.FOLDER / Path(log).with_suffix(".npz")
        samples.write(path, [f"rank {rank}" for rank in range(len(step_ms))], measurement)


def _decode_step(reports: Sequence[RankReport]) -> FoundStep:
    """Return the compiled call that is called most often, of the largest model; ranks have to agree."""
    first = reports[0]
    known = [found for found in first.found if found.layout is not None]
    if not known:
        told = "; ".join(f"{found.call.function}: {found.problem}" for found in first.found) or "it compiles no module"
        raise TargetError(f"the program runs no decode step that sktune could find ({told}); see docs/recipes.md")
    largest = max(found.parameters for found in known)
    chosen = max((found for found in known if found.parameters == largest), key=lambda found: found.calls)
    assert chosen.layout is not None
    layout = Layout.from_dict(chosen.layout)
    for report in reports[1:]:
        same = [found for found in report.found if found.call.function == chosen.call.function and found.layout]
        if not any(Layout.from_dict(found.layout).digest == layout.digest for found in same if found.layout):
            raise TargetError(f"rank {report.rank} runs other modules than rank {first.rank}; one plan cannot fit both")
    return chosen


def _differing_state(one: Sequence[RankReport], other: Sequence[RankReport]) -> frozenset[tuple[int, str]]:
    """Return ranks and names of state tensors that differ between two runs of the same: memory nobody has written."""
    found = set()
    for first, second in zip(one, other, strict=True):
        before, after = first.state or {}, second.state or {}
        found |= {(first.rank, name) for name, digest in before.items() if after.get(name) != digest}
    return frozenset(found)


def _first_difference(expected: Mapping[str, str], got: Mapping[str, str], ignored: set[str] = frozenset()) -> str:  # type: ignore[assignment]
    names = [name for name in {**expected, **got} if name not in ignored]
    return next((name for name in names if expected.get(name) != got.get(name)), "")


def _latency(steps: Sequence[float]) -> RunLatency:
    """Return the median of a rank's steps, with a notch around it, 1.57 IQR / sqrt(n).

    Source: McGill, Tukey and Larsen 1978, The American Statistician 32:12.
    """
    if len(steps) == 1:
        return RunLatency(steps[0], 0.0, 1)  # an average
    counted = np.array(steps[WARM_UP_STEPS:])
    low, middle, high = np.percentile(counted, [25, 50, 75])
    return RunLatency(float(middle), float(1.57 * (high - low) / sqrt(len(counted)) / middle), len(counted))


def _speedup(baseline_ms: float, own: RunLatency, halfwidth: float) -> Speedup:
    ratio = baseline_ms / own.latency_ms
    return Speedup(baseline_ms, own.latency_ms, ratio, (ratio * exp(-halfwidth), ratio * exp(halfwidth)), own.steps)


def _seconds(run: Run) -> dict[str, float]:
    compile_s = max((report.compile_s or 0.0 for report in run.reports), default=0.0)
    return {"compile": compile_s, "measure": max(0.0, run.seconds - compile_s)}
