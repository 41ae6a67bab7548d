"""Runs of a recipe's program, checked for complete reports and figures, and the results of its baseline runs.

Where the baseline is cheap to compile (Inductor), each run alternates between plan and baseline, step by step, and its
figure is their ratio. Elsewhere a run has only its plan: the baseline runs separately, at the start and from time to
time, and the spread of these runs is the uncertainty of a plan's figure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sktune.backends import backend_info
from sktune.core.errors import BackendError, NotDeterministicError
from sktune.core.files import real_path
from sktune.core.layout import Layout
from sktune.core.outcome import BASELINE, Reason, Speedup
from sktune.core.plan import Plan
from sktune.core.space import SpaceSpec
from sktune.measure import samples
from sktune.measure.latency import Measurement
from sktune.measure.noise_floor import NoiseFloorSample
from sktune.program.sktune_program.task import VERIFIED_STEPS, DecodeCall, RankTask
from sktune.recipes.agreement import decode_step, differing_state, first_difference, unverifiable_reason
from sktune.recipes.peers import Peer
from sktune.recipes.rank_reports import RankReport, draw_turns
from sktune.recipes.run import Failure, Launcher, ProgramRun
from sktune.recipes.step_times import (
    MIN_ALTERNATING,
    MIN_STEPS,
    RunLatency,
    compare_runs,
    compare_turns,
    latency_of,
    rounds,
)
from sktune.targets.recipe import Recipe

BASELINES = 2
"""Runs of the baseline at the start, which show whether its bits are reproducible. Where runs alternate, the second is
also the first sample of the noise floor; elsewhere a third run is."""


class CheckedRuns:
    """Runs a recipe's program; ``inspect`` and ``baseline`` must run first.

    Args:
        recipe: with absolute paths.
        folder: the study's folder; logs go to ``logs/`` in it, reports of the ranks to ``work/``.
        cache: folder of the compilers' caches, with one folder for each plan.
        host: subfolder of these three, if several hosts, or groups of them, may share them.
        hosts: on which the program runs, this one first; empty for this one alone.

    Attributes:
        recipe: as passed in.
        logs: folder of logs, relative to the study's.
        launcher: starts the program.
        reference: the ranks' reports of the first baseline run.
        ignored: state that differs between runs of the baseline and is not compared, by rank and name.
        alternates: whether each run also has the baseline's turns.
        baselines: latency of each run of the baseline.
        run_s: duration of the first of these.
        versions: of the program's Python, torch, torch_npu and transformers, by name.
        signature: of the decode step's calls; known once it was inspected.
    """

    def __init__(self, recipe: Recipe, folder: Path, cache: Path, host: str = "", hosts: Sequence[Peer] = ()) -> None:
        self.recipe, self._folder = recipe, folder
        self.logs = Path("logs", host)
        self.launcher = Launcher(recipe, folder / "work" / host, cache / host, hosts, host)
        self.reference: tuple[RankReport, ...] = ()
        self.ignored: frozenset[tuple[int, str]] = frozenset()
        self.alternates = False
        self.baselines: list[RunLatency] = []
        self.run_s = 0.0
        self.versions: Mapping[str, str] = {}
        self.signature = ""
        self._task = RankTask(False, recipe.backend, recipe.model)
        self._counts: list[tuple[int, ...]] = []  # decode steps of each rank in each run of the baseline
        self._all_steps: tuple[RankReport, ...] = ()  # of the baseline run in which every step is compared

    @property
    def decode(self) -> DecodeCall:
        """The decode step that ``inspect`` found."""
        assert self._task.decode is not None
        return self._task.decode

    @property
    def state_never_changes(self) -> bool:
        """Whether no tensor changed from step to step, although the recipe does not say ``stateless``."""
        return not self.recipe.stateless and any(report.is_written is False for report in self.reference)

    def log(self, name: str) -> Path:
        """Return the path of a log."""
        folder = real_path(self._folder) / self.logs
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def inspect(self, space: SpaceSpec) -> tuple[Layout, float]:
        """Find the decode step in one eager run; return its layout and the run's duration in seconds.

        Raises:
            TargetError: no call could be a decode step, or the ranks run different modules.
            BackendError: the program does not run.
        """
        log = self.log("inspect.log")
        run = self.launcher.run(replace(self._task, inspects=True), Plan(), log)
        if run.failure:
            raise BackendError(f"the program does not run eagerly: {run.failure.detail}; see {log}")
        self.versions = run.reports[0].versions
        step, layout = decode_step(run.reports, space)
        self.signature = step.signature
        calls = [each for each in run.reports[0].inspected if each.call.function == step.function]
        self._task = replace(self._task, decode=step if len(calls) > 1 else replace(step, signature=""))
        return layout, run.seconds

    def baseline(self, log: str) -> ProgramRun:
        """Run the baseline; the first run is the reference that all others must equal.

        Raises:
            BackendError: the baseline does not run.
            NotDeterministicError: the outputs of two runs differ.
        """
        run = self.run(Plan(), log)
        if run.failure:
            raise BackendError(f"the baseline does not run: {run.failure.detail}; see {self.log(log)}")
        if not self.reference:
            self.reference, self.run_s = run.reports, run.seconds
            calls = [len(report.all_s) for report in run.reports]
            self.alternates = can_alternate(self.recipe.backend, calls, run.step_ms)
        else:
            self._check_deterministic(self.reference, run.reports, VERIFIED_STEPS)
        self.baselines.append(latency_of(run.step_ms))
        self._counts.append(tuple(len(report.all_s) for report in run.reports))
        return run

    def noise_floor(self, before_trial: int, run: ProgramRun, before: Sequence[RunLatency]) -> NoiseFloorSample:
        """Compare a run of the baseline with itself, or with the runs ``before`` it where runs do not alternate."""
        speedup = self.speedup(run) if self.alternates else compare_runs(self.baselines[-1], before)
        return NoiseFloorSample(before_trial, speedup, "", run.seconds)

    def speedup(self, run: ProgramRun) -> Speedup:
        """Return the speedup of a plan's run."""
        if self.alternates:
            return compare_turns(run.step_ms, run.turns)
        return compare_runs(latency_of(run.step_ms), self.baselines)

    def has_all_steps(self, steps: int) -> bool:
        """Whether the baseline has already run with ``steps`` compared steps."""
        return bool(self._all_steps) and all(len(report.outputs) == steps for report in self._all_steps)

    def all_steps(self, steps: int) -> tuple[RankReport, ...]:
        """Return the reports of a baseline run with ``steps`` compared steps."""
        if not self.has_all_steps(steps):
            self._all_steps = self._all_steps_of_baseline(steps, "verify-baseline.log")
        return self._all_steps

    def check_all_steps(self, steps: int, log: str) -> None:
        """Run the baseline once more, as it may be the baseline that is not deterministic.

        Raises:
            NotDeterministicError: it is not.
        """
        again = self._all_steps_of_baseline(steps, log)
        self._check_deterministic(self._all_steps, again, steps)

    def _all_steps_of_baseline(self, steps: int, log: str) -> tuple[RankReport, ...]:
        run = self.run(Plan(), log, steps)
        if run.failure:
            raise BackendError(f"the baseline does not run: {run.failure.detail}; see {self.log(log)}")
        return run.reports

    def _check_deterministic(self, one: Sequence[RankReport], other: Sequence[RankReport], steps: int) -> None:
        """Compare two runs of the baseline; state that differs is ignored from now on.

        Raises:
            NotDeterministicError: their outputs differ.
        """
        self.ignored |= differing_state(one, other)
        if difference := first_difference(one, other, self.ignored, steps):
            raise NotDeterministicError(
                f"the baseline is not deterministic ({difference}); make the program deterministic "
                "(greedy sampling, a fixed seed), as bit-identity cannot be checked otherwise"
            )

    def run(self, plan: Plan, log: str, steps: int = VERIFIED_STEPS) -> ProgramRun:
        """Run the program and compare ``steps`` decode steps; it is timed only if these are ``VERIFIED_STEPS``."""
        is_timed = steps == VERIFIED_STEPS
        turns = draw_turns() if self.alternates and is_timed else None
        task = replace(self._task, turns=turns, steps=steps, watches_state=not self.reference)
        run = self.launcher.run(task, plan, self.log(log))
        if run.failure is None:
            function = self._task.decode.function if self._task.decode else ""
            of_ranks = (unverifiable_reason(each, function, is_stateless=self.recipe.stateless) for each in run.reports)
            detail = next(filter(None, of_ranks), "")
            if is_timed and not detail:
                least = MIN_ALTERNATING if self.alternates else MIN_STEPS
                detail = unmeasured_reason(self.recipe, run.step_ms, least)
            detail = detail or self._cut_short(run.reports)
            run = replace(run, failure=Failure(Reason.CRASHED, detail) if detail else None)
        if run.step_ms and run.failure is None and is_timed:
            self._save_samples(log, run)
        return run

    def _cut_short(self, reports: Sequence[RankReport]) -> str:
        """Return which rank made fewer decode steps than in every run of the baseline, which agree; empty if none did.

        A program may catch what ends its generation, and end as if nothing had been.
        """
        if len(self._counts) < 2 or len(set(self._counts)) > 1:
            return ""
        pairs = zip(reports, self._counts[0], strict=True)
        cut = [(report, most) for report, most in pairs if len(report.all_s) < most]
        return next(
            (f"{report.name} ended after {len(report.all_s)} of {most} decode steps" for report, most in cut), ""
        )

    def _save_samples(self, log: str, run: ProgramRun) -> None:
        step_ms = run.step_ms
        shortest = min(len(steps) for steps in step_ms)
        if self.alternates and shortest >= MIN_ALTERNATING:
            names = [f"rank {rank} {turn}" for rank in range(len(step_ms)) for turn in (BASELINE, "plan")]
            seconds = np.hstack([rounds(steps[:shortest], run.turns) for steps in step_ms])
        else:
            names = [f"rank {rank}" for rank in range(len(step_ms))]
            seconds = np.array([steps[:shortest] for steps in step_ms]).T / 1e3
        measurement = Measurement(seconds, np.zeros(len(seconds), dtype=bool), 0)
        samples.write(real_path(self._folder) / samples.FOLDER / Path(log).with_suffix(".npz"), names, measurement)


def unmeasured_reason(recipe: Recipe, step_ms: Sequence[Sequence[float]], least: int) -> str:
    """Return why a run's steps give no figure; empty if they do.

    Args:
        recipe: says where the latencies come from.
        step_ms: of each rank or log.
        least: fewest steps that a rank must have; a lone average is enough unless runs alternate.
    """
    for rank, steps in enumerate(step_ms):
        if bad := [step for step in steps if not (math.isfinite(step) and step > 0)]:
            return f"rank {rank} has a decode step of {bad[0]:g} ms; make the latency pattern match times above 0"
    problem = "the ranks timed no steps" if recipe.latency == "steps" else "its log has no latency line"
    if not step_ms:
        return f"{problem}; set `latency: {{pattern: ...}}` or `logs` in the recipe, or `latency: steps`"
    fewest = min(len(steps) for steps in step_ms)
    if fewest < least and (fewest > 1 or least == MIN_ALTERNATING):
        return f"a rank has {fewest} decode steps, but {least} are needed; have the program generate more tokens"
    return ""


def can_alternate(backend: str, calls: Sequence[int], step_ms: Sequence[Sequence[float]]) -> bool:
    """Whether runs are long enough for the baseline's turns too, and have a time for each step.

    Never on an NPU: every run would spend minutes on compiling the baseline too, and hold two graphs in memory.

    Args:
        backend: compiles the step.
        calls: of the decode step, by rank.
        step_ms: of each rank or log.
    """
    is_timed = [len(steps) for steps in step_ms] == list(calls)
    return backend_info(backend).compiles_programs and is_timed and min(calls) >= MIN_ALTERNATING
