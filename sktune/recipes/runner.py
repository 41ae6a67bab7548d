"""Judges plans by restarting a recipe's program: one run for each plan, and more for the baseline."""

import logging
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any, Self, TypeVar

from sktune.backends import backend_info
from sktune.backends.info import BackendInfo
from sktune.core.errors import BackendError, BadInputError, OutOfTimeError
from sktune.core.outcome import BASELINE, FinalRow, Outcome, Reason, Speedup, Stage
from sktune.core.plan import Plan
from sktune.core.verification import Verification
from sktune.measure.confidence_sequence import Comparison
from sktune.measure.noise_floor import NoiseFloorSample, Threshold
from sktune.program.sktune_program.task import VERIFIED_STEPS
from sktune.recipes.agreement import first_difference, verification
from sktune.recipes.checked_runs import BASELINES, CheckedRuns
from sktune.recipes.peers import check_shared
from sktune.recipes.run import ProgramRun
from sktune.recipes.step_times import MIN_ALTERNATING, compare_turns, compare_two, latency_of
from sktune.targets.recipe import needs_cluster, read_recipe
from sktune.worker.jobs import (
    Compare,
    Deliver,
    DurationEstimates,
    Job,
    Judge,
    Opened,
    ProcessComparison,
    Report,
    RunnerSetup,
    RunnerTraits,
    SampleNoiseFloor,
    Shortlist,
    Verify,
    silent,
)
from sktune.worker.machine import BEFORE, explained, refuse_failure_of_machine

logger = logging.getLogger(__name__)
T = TypeVar("T")

TOO_SHORT = (
    f"; figures are less certain, as plan and baseline do not alternate: that needs {MIN_ALTERNATING} decode steps, "
    "each with a latency line"
)
NEVER_CHANGES = (
    "; no tensor that sktune can see changes from step to step: state that the program keeps elsewhere is not compared"
)
EQUAL = f"identical on {VERIFIED_STEPS} steps"
VERIFIED = f"outputs of {VERIFIED_STEPS} decode steps and the state after them, in every rank"
MAX_FINALISTS = 3
"""Each finalist is one more run of the user's program in every process of the comparison."""


def program_durations(opened: Opened, trials: Sequence[Mapping[str, float]]) -> DurationEstimates:
    """Estimate durations: every part is a run of the program."""
    run_s = median(sum(seconds.values()) for seconds in trials)
    return opened.traits.durations(run_s, run_s, run_s)


def traits_of(backend: BackendInfo) -> RunnerTraits:
    """Return what the program runner can do with a backend."""
    return RunnerTraits(
        max_finalists=MAX_FINALISTS,
        max_shortlisted=MAX_FINALISTS,  # each run has one plan
        final_processes=backend.final_processes,
        has_references=False,  # what a user has without sktune is the baseline
        estimate=program_durations,
    )


class ProgramRunner:
    """Runs a recipe's program once for each plan; a ``Runner``."""

    def __init__(self, setup: RunnerSetup) -> None:
        self._recipe = read_recipe(Path(setup.spec.source))
        self._backend = backend_info(self._recipe.backend)
        self._space, self._setup = setup.space, setup
        self._runs = CheckedRuns(self._recipe, setup.folder, setup.cache, setup.host, setup.hosts)
        self._opened: Opened | None = None
        self._first_sample: NoiseFloorSample | None = None
        self._traits = traits_of(self._backend)

    @property
    def deadline_s(self) -> float:
        """See ``Runner``."""
        return self._runs.launcher.deadline_s

    @deadline_s.setter
    def deadline_s(self, deadline_s: float) -> None:
        self._runs.launcher.deadline_s = deadline_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the current run."""
        self._runs.launcher.stop()

    def open(self) -> Opened:
        """Find decode step and layout in one eager run, and run the baseline, unless already done; see ``Runner``.

        Raises:
            BadInputError: the program needs other hosts, or they share no storage.
            TargetError: no call could be a decode step, or the ranks run different modules.
            BackendError: the baseline does not run.
            NotDeterministicError: the outputs of two baseline runs differ.
        """
        if self._opened is None:
            hosts, yaml = self._setup.hosts, self._recipe.yaml
            if self._recipe.hosts != max(1, len(hosts)):
                raise BadInputError(needs_cluster(self._recipe.name, self._recipe.hosts))
            if hosts:
                check_shared(hosts, [self._setup.folder, self._setup.cache, *([yaml.file.parent] if yaml else [])])
            layout, inspection_s = self._runs.inspect(self._space)
            baselines = [self._runs.baseline(f"baseline-{number}.log") for number in range(1, BASELINES + 1)]
            if self._runs.alternates:
                self._first_sample = self._runs.noise_floor(0, baselines[-1], ())
            seconds = {"load": inspection_s, "baseline": mean(run.seconds for run in baselines)}
            self._opened = Opened(layout, self._description(), seconds, self._facts(), traits=self._traits)
        return self._opened

    def _description(self) -> str:
        ignored = [f"{name} of rank {rank}" for rank, name in sorted(self._runs.ignored)]
        notes = f"; not compared, as baseline runs differ there: {', '.join(ignored[:4])}" if ignored else ""
        notes += NEVER_CHANGES if self._runs.state_never_changes else ""
        notes += "" if self._runs.alternates or not self._backend.compiles_programs else TOO_SHORT
        on_hosts = f" on {self._recipe.hosts} hosts" if self._recipe.hosts > 1 else ""
        return f"{self._recipe.name}: {self._runs.decode.function} in {self._recipe.all_ranks} ranks{on_hosts}{notes}"

    def _facts(self) -> dict[str, Any]:
        yaml = self._recipe.yaml
        return {
            "decode": {
                "function": self._runs.decode.function,
                "signature": self._runs.decode.signature,
                **({"model": self._recipe.model} if self._recipe.model else {}),
            },
            "calls": {self._runs.decode.function: self._runs.signature},
            "verified": VERIFIED,
            "command": shlex.join(self._recipe.argv()),
            "directory": str(self._recipe.directory),
            "environment": self._recipe.environment,
            "yaml": {"file": yaml.file.name, "set": yaml.set} if yaml else None,
            "alternates": self._runs.alternates,
            "versions": dict(self._runs.versions),
        }

    def run(self, job: Job[T], report: Report = silent, /) -> T:
        """See ``Runner.run``."""
        self.open()
        return job.run(self, report)

    def check_machine(self) -> None:
        """See ``Bench.check_machine``: the program's logs name the machine."""

    def judge(self, job: Judge, report: Report, /) -> Outcome:
        """Run the program once with a plan. Only its logs show what scopes became, so ``known`` trials are not used."""
        plan = job.plan
        report(Stage.COMPILE)
        run = self._runs.run(plan, job.log)
        outcome = self._outcome(run, plan, job.threshold)
        if outcome.reason in (Reason.COMPILE_FAILED, Reason.TIMEOUT, Reason.CRASHED):
            refuse_failure_of_machine(
                [self._runs.log(job.log)], [self._setup.folder, self._setup.cache, Path(tempfile.gettempdir())]
            )
            outcome = self._explained(outcome, plan, job.log)
        is_only = len(plan.scopes) == 1 and not outcome.is_feasible
        blamed = plan.scopes[0].label if is_only else outcome.blamed
        compile_s = max((each.compile_s or 0.0 for each in run.reports), default=0.0)
        seconds = {"compile": compile_s, "measure": max(0.0, run.seconds - compile_s)}
        return replace(outcome, seconds=seconds, blamed=blamed, log=str(self._runs.logs / job.log))

    def _outcome(self, run: ProgramRun, plan: Plan, threshold: Threshold) -> Outcome:
        if run.failure:
            return Outcome(run.failure.reason, run.failure.detail, stage=run.failure.stage)
        verified = _blaming(verification(self._runs.reference, run.reports, self._runs.ignored), plan)
        if not verified.is_identical:
            return Outcome().after(verified)
        speedup = self._runs.speedup(run)
        comparison = threshold.comparison(speedup)
        facts: dict[str, Any] = {
            "speedup": speedup, "comparison": comparison, "noise_floor": threshold.noise_floor,
            "verification": verified,
        }  # fmt: skip
        if comparison == Comparison.SLOWER:
            detail = f"{speedup.ratio:.3f}x the baseline's speed"
            return Outcome(Reason.SLOWER, detail, stage=Stage.MEASURE, **facts)
        return Outcome(**facts)

    def _explained(self, outcome: Outcome, plan: Plan, log: str) -> Outcome:
        """Add the cause of a failure, as found in the program's and CANN's logs."""
        if not self._backend.runs_superkernels:
            return outcome
        output = self._runs.log(log)
        copies = (path for path in sorted(output.parent.glob(f"{output.stem}.*")) if BEFORE not in path.name)
        logs = [output, *copies, *self._runs.launcher.device_logs()]
        return explained(outcome, plan, logs)

    def sample_noise_floor(self, job: SampleNoiseFloor, _report: Report, /) -> NoiseFloorSample | None:
        """Run the baseline once more; see ``Runner.sample_noise_floor``."""
        if job.before_trial == 0 and self._first_sample:
            return self._first_sample
        before = list(self._runs.baselines)
        run = self._runs.baseline(job.log)
        return self._runs.noise_floor(job.before_trial, run, before)

    def shortlist(self, job: Shortlist, _report: Report, /) -> list[str]:
        """Return the names of all plans in the given order: nothing is measured again."""
        return [name for name, _ in job.plans]

    def verify(self, job: Verify, report: Report, /) -> Verification | None:
        """Compare a plan with the baseline on all decode steps of the program, up to the requested number.

        The plan has a separate run, which is not timed. If it differs, the baseline runs again, as it may be the
        baseline that is not deterministic. None if no time is left, and if the program has no more steps than every run
        compares.
        """
        steps = min(job.steps, *(len(report.all_s) for report in self._runs.reference))
        if steps <= VERIFIED_STEPS:
            return None
        runs = 1 if self._runs.has_all_steps(steps) else 2
        if job.seconds is not None and runs * self._runs.run_s > job.seconds:
            logger.warning("no time is left to compare plan %s on %d steps", job.name, steps)
            return None
        report(Stage.VERIFY)
        return self._verified(job.name, job.plan, steps)

    def _verified(self, name: str, plan: Plan, steps: int) -> Verification:
        reference = self._runs.all_steps(steps)
        run = self._run_of_finalist(plan, f"verify-{name}", steps)
        if run.failure:
            return Verification(difference=run.failure.detail, is_broken=True)
        verified = verification(reference, run.reports, self._runs.ignored, steps)
        if verified.difference:
            try:
                self._runs.check_all_steps(steps, f"verify-{name}-baseline.log")
            except OutOfTimeError:  # whether the baseline differs from itself is left to another command
                return replace(_blaming(verified, plan), is_broken=True)
            verified = verification(reference, run.reports, self._runs.ignored, steps)  # more state may be ignored now
        return _blaming(verified, plan)

    def compare(self, job: Compare, report: Report, /) -> ProcessComparison:
        """Run baseline and plans, in reverse order every second time; runs that alternate include the baseline."""
        entries = [*([] if self._runs.alternates else [(BASELINE, Plan())]), *job.plans]
        runs: dict[str, ProgramRun] = {}
        for name, plan in entries if job.process % 2 else entries[::-1]:
            report(Stage.MEASURE)
            runs[name] = self._run_of_finalist(plan, f"final-{job.process}-{name}")
        if (reference := runs.get(BASELINE)) and reference.failure:
            log = self._runs.logs / f"final-{job.process}-{BASELINE}.log"
            raise BackendError(f"the baseline fails: {reference.failure.detail}; see {log}")
        return ProcessComparison(self._rows(runs, [name for name, _ in entries]))

    def _run_of_finalist(self, plan: Plan, log: str, steps: int = VERIFIED_STEPS) -> ProgramRun:
        """Run a plan that has passed its trial; a failure counts only if it repeats, as it may come from outside."""
        run = self._runs.run(plan, f"{log}.log", steps)
        return self._runs.run(plan, f"{log}-again.log", steps) if run.failure else run

    def _rows(self, runs: Mapping[str, ProgramRun], names: Sequence[str]) -> list[FinalRow]:
        """Return the baseline's row and the others'."""
        if not self._runs.alternates:
            base = latency_of(runs[BASELINE].step_ms)
            latencies = {name: latency_of(run.step_ms) for name, run in runs.items() if not run.failure}
            latencies[BASELINE] = base
            return [self._row(name, runs[name], compare_two(latencies.get(name, base), base)) for name in names]
        speedups = {name: compare_turns(run.step_ms, run.turns) for name, run in runs.items() if not run.failure}
        first_ms = self._runs.baselines[0].latency_ms
        base_ms = median(each.baseline_ms for each in speedups.values()) if speedups else first_ms
        baseline = FinalRow(BASELINE, Speedup(base_ms, base_ms, 1.0, (1.0, 1.0), 1), EQUAL, True, "")
        return [baseline, *(self._row(name, runs[name], speedups.get(name)) for name in names)]

    def _row(self, name: str, run: ProgramRun, speedup: Speedup | None) -> FinalRow:
        if run.failure:
            return FinalRow(name, None, run.failure.detail, False, "")
        difference = first_difference(self._runs.reference, run.reports, self._runs.ignored)
        return FinalRow(name, speedup, difference or EQUAL, not difference, "")

    def deliver(self, _job: Deliver, _report: Report, /) -> None:
        """Return None: the code stays with the program's own compiler."""


def _blaming(verified: Verification, plan: Plan) -> Verification:
    """Add the scope that changes bits, if the plan has only one scope."""
    is_known = verified.difference and len(plan.scopes) == 1
    return replace(verified, changes_bits=(plan.scopes[0].label,)) if is_known else verified
