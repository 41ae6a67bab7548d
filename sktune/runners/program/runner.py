"""Judges plans by starting a recipe's program again and again: one fresh run for each plan and for each baseline.

Where the baseline costs little to compile (Inductor), each run alternates between plan and baseline, step by step, and
its figure is their ratio. Elsewhere a run holds its plan alone: baseline runs are made at the start and now and then,
and how much they differ from one another is what a plan's figure is uncertain by.
"""

import logging
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any, Self

import numpy as np

from sktune.ascend.cann_log import cause, explain_files
from sktune.backends import backend_info
from sktune.core.errors import BackendError, NotDeterministicError
from sktune.core.layout import Layout
from sktune.core.outcome import FinalRow, Outcome, Reason, Speedup
from sktune.core.plan import Plan
from sktune.core.space import SpaceSpec
from sktune.core.verification import Verification
from sktune.measure import samples
from sktune.measure.confidence_sequence import Comparison
from sktune.measure.latency import Measurement
from sktune.measure.noise_floor import Bar, FloorLook
from sktune.runners.base import Opened
from sktune.runners.program.agreement import (
    decode_step,
    differing_state,
    first_difference,
    verification,
    what_is_missing,
)
from sktune.runners.program.rank_reports import VERIFIED_STEPS, RankReport, Task, draw_turns
from sktune.runners.program.run import Failure, Run, Runner
from sktune.runners.program.step_times import (
    LEAST_ALTERNATING,
    LEAST_STEPS,
    RunLatency,
    compare_runs,
    compare_turns,
    compare_two,
    latency_of,
    rounds,
)
from sktune.targets.recipe import Recipe

logger = logging.getLogger(__name__)

BASELINE = "baseline"
TOO_SHORT = (
    f"; plan and baseline do not alternate, which needs {LEAST_ALTERNATING} decode steps with a latency line each: "
    "figures are less certain"
)
UNWRITTEN = (
    "; no tensor that sktune can see changes from step to step: state that the program keeps elsewhere is not compared"
)
EQUAL = f"identical on {VERIFIED_STEPS} steps"
VERIFIED = f"outputs of {VERIFIED_STEPS} decode steps and the state after them, in every rank"
BASELINES = 2
"""Runs of the baseline at the start, which show that its bits are always the same. Where runs alternate, the second one
is the first look at the noise floor; elsewhere that is a third."""


class RecipeSupervisor:
    """Runs a recipe's program; stands in for ``sktune.runners.worker.client.Supervisor``.

    Args:
        recipe: with absolute paths.
        space: says what is a unit.
        folder: the study's; logs go to ``logs/`` in it, reports of the ranks to ``work/``.
        cache: for the compilers' caches, one folder for each plan.
    """

    def __init__(self, recipe: Recipe, space: SpaceSpec, folder: Path, cache: Path) -> None:
        self._recipe, self._space, self._folder = recipe, space, folder
        self._backend = backend_info(recipe.backend)
        self._runner = Runner(recipe, folder / "work", cache)
        self._task = Task(inspects=False, backend=recipe.backend, model=recipe.model)
        self._opened: Opened | None = None
        self._reference: tuple[RankReport, ...] = ()
        self._verified: tuple[RankReport, ...] = ()  # of the baseline's run that is compared step by step
        self._ignored: frozenset[tuple[int, str]] = frozenset()
        self._alternates = False
        self._baselines: list[RunLatency] = []
        self._first_look: FloorLook | None = None
        self._run_s = 0.0
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
            if self._alternates:
                self._first_look = FloorLook(0, self._speedup(baselines[-1]), "", baselines[-1].seconds)
            seconds = {"load": inspected.seconds, "baseline": mean(run.seconds for run in baselines)}
            decode = self._task.decode
            assert decode is not None
            notes = [f"{name} of rank {rank}" for rank, name in sorted(self._ignored)]
            kept = f"; not compared, as they differ between two baselines: {', '.join(notes[:4])}" if notes else ""
            kept += UNWRITTEN if self._is_unwritten() else ""
            kept += "" if self._alternates or not self._backend.program_compiler else TOO_SHORT
            description = f"{self._recipe.name}: {decode.function} in {self._recipe.ranks} ranks{kept}"
            facts = {
                "decode": {"function": decode.function, "signature": decode.signature},
                "verified": VERIFIED,
                "command": shlex.join(self._recipe.words()),
                "directory": str(self._recipe.directory),
                "yaml": {"file": yaml.file.name, "set": yaml.set} if (yaml := self._recipe.yaml) else None,
                "alternates": self._alternates,
            }
            self._opened = Opened(self._layout, description, seconds, facts)
        return self._opened

    def judge(
        self,
        plan: Plan,
        log: str,
        report: Callable[[str], None],
        known: Mapping[str, int] | None = None,  # noqa: ARG002 - what a program's scopes became is in its logs alone
        bar: Bar | None = None,
        banned: Mapping[str, str] | None = None,  # noqa: ARG002 - regions are known where sktune compiles
    ) -> Outcome:
        """Run the program once with ``plan``; see ``Supervisor.judge``."""
        self.open()
        report("compile")
        run = self._run(plan, log)
        outcome = self._outcome(run, plan, bar or Bar())
        if outcome.reason in (Reason.COMPILE_FAILED, Reason.TIMEOUT, Reason.CRASHED):
            outcome = self._explained(outcome, plan, log)
        is_only = len(plan.scopes) == 1 and not outcome.is_feasible
        blamed = plan.scopes[0].label if is_only else outcome.blamed
        return replace(outcome, seconds=_seconds(run), blamed=blamed, log=f"logs/{log}")

    def floor_look(self, before_trial: int) -> FloorLook | None:
        """Run the baseline once more against itself; see ``Supervisor.floor_look``."""
        self.open()
        if before_trial == 0 and self._first_look:
            return self._first_look
        before = list(self._baselines)
        run = self._baseline(f"floor-{before_trial:04d}.log")
        own = self._speedup(run) if self._alternates else compare_runs(self._baselines[-1], before)
        return FloorLook(before_trial, own, "", run.seconds)

    def qualify(self, plans: Sequence[tuple[str, Plan]], report: Callable[[str], None]) -> list[str]:  # noqa: ARG002
        """Return the names of the plans that enter the final comparison: all."""
        return [name for name, _ in plans]

    def verify(
        self,
        plans: Sequence[tuple[str, Plan]],
        report: Callable[[str], None],
        *,
        steps: int,
        seconds: float | None = None,
        banned: Mapping[str, str] | None = None,  # noqa: ARG002 - regions are known where sktune compiles
    ) -> dict[str, Verification]:
        """Compare plans with the baseline on all decode steps that the program makes, up to ``steps``.

        Each plan has a run of its own, which is not timed. Where it differs, the baseline runs again: it may be what
        is not the same every time.

        Returns:
            what was compared, by name; nothing of plans that ``seconds`` are too few for, nor where the program makes
            no more steps than every run compares: of these the trials' verification stands.

        Raises:
            BackendError: the baseline does not run.
            NotDeterministicError: two baseline runs have different outputs.
        """
        self.open()
        steps = min(steps, *(len(own.all_s) for own in self._reference))
        if steps <= VERIFIED_STEPS:
            return {}
        ends_s = math.inf if seconds is None else time.monotonic() + seconds
        found: dict[str, Verification] = {}
        for name, plan in plans:
            runs = 1 if self._has_verified(steps) else 2
            if time.monotonic() + runs * self._run_s > ends_s:
                logger.warning("no time is left to compare plan %s on %d steps", name, steps)
                break
            report("verify")
            found[name] = self._compared(name, plan, steps)
        return found

    def _has_verified(self, steps: int) -> bool:
        return bool(self._verified) and all(len(own.outputs) == steps for own in self._verified)

    def _compared(self, name: str, plan: Plan, steps: int) -> Verification:
        if not self._has_verified(steps):
            self._verified = self._compared_baseline(steps, "verify-baseline.log")
        run = self._run(plan, f"verify-{name}.log", steps)
        if run.failure:
            return Verification(difference=run.failure.detail)
        found = verification(self._verified, run.reports, self._ignored, steps)
        if found.difference:
            again = self._compared_baseline(steps, f"verify-{name}-baseline.log")
            self._check_deterministic(self._verified, again, steps)
            found = verification(self._verified, run.reports, self._ignored, steps)
        return self._blaming(found, plan)

    def _compared_baseline(self, steps: int, log: str) -> tuple[RankReport, ...]:
        run = self._run(Plan(), log, steps)
        if run.failure:
            raise BackendError(f"the baseline does not run: {run.failure.detail}; see {self._log(log)}")
        return run.reports

    def _check_deterministic(self, one: Sequence[RankReport], other: Sequence[RankReport], steps: int) -> None:
        """Compare two runs of the baseline; state that differs is not compared from now on.

        Raises:
            NotDeterministicError: outputs differ.
        """
        self._ignored |= differing_state(one, other)
        if difference := first_difference(one, other, self._ignored, steps):
            raise NotDeterministicError(
                f"the baseline does not equal itself ({difference}); make the program deterministic "
                "(greedy sampling, a fixed seed), or bit-identity cannot be decided"
            )

    @staticmethod
    def _blaming(found: Verification, plan: Plan) -> Verification:
        """Return ``found`` with the scope that changes bits, where there is one scope."""
        is_known = found.difference and len(plan.scopes) == 1
        return replace(found, inexact=(plan.scopes[0].label,)) if is_known else found

    def _is_unwritten(self) -> bool:
        return not self._recipe.stateless and any(own.is_written is False for own in self._reference)

    def final(
        self,
        plans: Sequence[tuple[str, Plan]],
        report: Callable[[str], None],
        *,
        number: int = 1,
        references: bool,  # noqa: ARG002 - what a user has without sktune is the baseline
    ) -> tuple[list[FinalRow], str]:
        """Run baseline and plans in turn, every other time backwards; where runs alternate, each holds the baseline."""
        self.open()
        entries = [*([] if self._alternates else [(BASELINE, Plan())]), *plans]
        runs: dict[str, Run] = {}
        for name, plan in entries if number % 2 else entries[::-1]:
            report("measure")
            runs[name] = self._run(plan, f"final-{number}-{name}.log")
        if (reference := runs.get(BASELINE)) and reference.failure:
            raise BackendError(f"the baseline fails: {reference.failure.detail}; see logs/final-{number}-baseline.log")
        return self._rows(runs, [name for name, _ in entries]), ""

    def deliver(self, plan: Plan, folder: Path, report: Callable[[str], None]) -> None:
        """Nothing: the program's own compiler keeps its code."""

    def _rows(self, runs: Mapping[str, Run], names: Sequence[str]) -> list[FinalRow]:
        """Return the baseline's row and the others'."""
        if not self._alternates:
            base = latency_of(runs[BASELINE].step_ms)
            own = {name: latency_of(run.step_ms) for name, run in runs.items() if not run.failure} | {BASELINE: base}
            return [self._row(name, runs[name], compare_two(own.get(name, base), base)) for name in names]
        found = {name: compare_turns(run.step_ms, run.turns) for name, run in runs.items() if not run.failure}
        base_ms = median(each.baseline_ms for each in found.values()) if found else self._baselines[0].latency_ms
        baseline = FinalRow(BASELINE, Speedup(base_ms, base_ms, 1.0, (1.0, 1.0), 1), EQUAL, True, "")
        return [baseline, *(self._row(name, runs[name], found.get(name)) for name in names)]

    def _row(self, name: str, run: Run, found: Speedup | None) -> FinalRow:
        if run.failure:
            return FinalRow(name, None, run.failure.detail, False, "")
        difference = first_difference(self._reference, run.reports, self._ignored)
        return FinalRow(name, found, difference or EQUAL, not difference, "")

    def _inspect(self) -> Run:
        task = replace(self._task, inspects=True, space=self._space.model_dump(mode="json"))
        run = self._runner.run(task, Plan(), self._log("inspect.log"), self.deadline_s)
        if run.failure:
            raise BackendError(
                f"the program does not run eagerly: {run.failure.detail}; see {self._log('inspect.log')}"
            )
        found = decode_step(run.reports)
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
            self._reference, self._run_s = run.reports, run.seconds
            self._alternates = self._can_alternate(run)
        else:
            self._check_deterministic(self._reference, run.reports, VERIFIED_STEPS)
        self._baselines.append(latency_of(run.step_ms))
        return run

    def _run(self, plan: Plan, log: str, steps: int = VERIFIED_STEPS) -> Run:
        """Run the program; with more than ``VERIFIED_STEPS`` steps, which are compared, it is not timed."""
        is_timed = steps == VERIFIED_STEPS
        turns = draw_turns() if self._alternates and is_timed else None
        task = replace(self._task, turns=turns, steps=steps, watches_state=not self._reference)
        run = self._runner.run(task, plan, self._log(log), self.deadline_s)
        if run.failure is None:
            run = replace(run, failure=self._unseen(run) or (self._unmeasured(run) if is_timed else None))
        if run.step_ms and run.failure is None and is_timed:
            self._keep(log, run)
        return run

    def _unseen(self, run: Run) -> Failure | None:
        """Return what a run that came to its end does not show, without which nothing is verified."""
        function = self._task.decode.function if self._task.decode else ""
        missing = (what_is_missing(own, function, is_stateless=self._recipe.stateless) for own in run.reports)
        detail = next(filter(None, missing), "")
        return Failure(Reason.CRASHED, detail) if detail else None

    def _unmeasured(self, run: Run) -> Failure | None:
        """Return why a run that came to its end has no figure."""
        for rank, steps in enumerate(run.step_ms):
            if bad := [step for step in steps if not (math.isfinite(step) and step > 0)]:
                detail = f"rank {rank} has a decode step of {bad[0]:g} ms; have the latency pattern match times above 0"
                return Failure(Reason.CRASHED, detail)
        where = "the ranks time no steps" if self._recipe.latency == "steps" else "its log has no latency line"
        if not run.step_ms:
            mend = "give the recipe `latency: {pattern: ...}` or `logs`, or `latency: steps`"
            return Failure(Reason.CRASHED, f"{where}; {mend}")
        fewest = min(len(steps) for steps in run.step_ms)
        least = LEAST_ALTERNATING if self._alternates else LEAST_STEPS
        if fewest < least and (fewest > 1 or self._alternates):
            return Failure(Reason.CRASHED, f"a rank has {fewest} decode steps, at least {least} are needed")
        return None

    def _can_alternate(self, run: Run) -> bool:
        """Whether runs are long enough to hold the baseline's turns too, and each step's time is known.

        Not on an NPU: every run would compile the baseline as well, for minutes, and hold two graphs' memory.
        """
        calls = [len(report.all_s) for report in run.reports]
        known = [len(steps) for steps in run.step_ms]
        return bool(self._backend.program_compiler) and known == calls and min(calls) >= LEAST_ALTERNATING

    def _outcome(self, run: Run, plan: Plan, bar: Bar) -> Outcome:
        if run.failure:
            return Outcome(run.failure.reason, run.failure.detail)
        found = self._blaming(verification(self._reference, run.reports, self._ignored), plan)
        if not found.is_identical:
            return Outcome().after(found)
        speedup = self._speedup(run)
        comparison = bar.comparison(speedup)
        facts: dict[str, Any] = {
            "speedup": speedup, "comparison": comparison, "noise_floor": bar.noise_floor, "verification": found,
        }  # fmt: skip
        if comparison == Comparison.SLOWER:
            return Outcome(Reason.SLOWER, f"{speedup.ratio:.3f}x the baseline's speed", **facts)
        return Outcome(**facts)

    def _speedup(self, run: Run) -> Speedup:
        if self._alternates:
            return compare_turns(run.step_ms, run.turns)
        return compare_runs(latency_of(run.step_ms), self._baselines)

    def _explained(self, outcome: Outcome, plan: Plan, log: str) -> Outcome:
        """Add to a failure what CANN's logs and the program's own say about it."""
        if not self._backend.runs_superkernels:
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

    def _keep(self, log: str, run: Run) -> None:
        step_ms = run.step_ms
        shortest = min(len(steps) for steps in step_ms)
        if self._alternates and shortest >= LEAST_ALTERNATING:
            names = [f"rank {rank} {turn}" for rank in range(len(step_ms)) for turn in (BASELINE, "plan")]
            seconds = np.hstack([rounds(steps[:shortest], run.turns) for steps in step_ms])
        else:
            names = [f"rank {rank}" for rank in range(len(step_ms))]
            seconds = np.array([steps[:shortest] for steps in step_ms]).T / 1e3
        measurement = Measurement(seconds, np.zeros(len(seconds), dtype=bool), 0)
        samples.write(self._folder.resolve() / samples.FOLDER / Path(log).with_suffix(".npz"), names, measurement)


def _seconds(run: Run) -> dict[str, float]:
    compile_s = max((report.compile_s or 0.0 for report in run.reports), default=0.0)
    return {"compile": compile_s, "measure": max(0.0, run.seconds - compile_s)}
