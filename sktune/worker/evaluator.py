"""Judges plans: each is compiled, verified against the baseline, and measured alternately with it."""

import gc
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sktune.backends.base import Backend, Compiled, CompileError, Observe, Step
from sktune.core.delivery import Delivery
from sktune.core.errors import (
    DEVICE_ERROR,
    MEND_MACHINE,
    BackendError,
    MachineError,
    NotDeterministicError,
    OutOfMemoryDuringTrialError,
    described,
    machine_failure,
)
from sktune.core.outcome import BASELINE_REPEAT, MAX_FINALISTS, FinalRow, Outcome, Reason, ScopeTime, Speedup, Stage
from sktune.core.plan import Plan
from sktune.core.verification import Verification
from sktune.measure.confidence_sequence import Comparison
from sktune.measure.devices import device_of, ran_out_of_memory
from sktune.measure.latency import Budget
from sktune.measure.noise_floor import NoiseFloorSample, Threshold
from sktune.targets.base import Target
from sktune.worker.jobs import (
    Compare,
    Deliver,
    Judge,
    ProcessComparison,
    Progress,
    Report,
    SampleNoiseFloor,
    Shortlist,
    Verify,
)

if TYPE_CHECKING:
    from sktune.worker.step_timer import StepTimer
    from sktune.worker.verifier import Verifier

logger = logging.getLogger(__name__)

SHORTLIST_BUDGET = Budget(halfwidth=0.015, seconds=2.0, wait_s=1.0, min_rounds=12, warm_up_rounds=3)
"""It only ranks, for which a few rounds of slow steps suffice; fast ones have hundreds in this time."""
FINAL_BUDGET = Budget(halfwidth=0.004, seconds=3.0, wait_s=2.0, min_rounds=28)
"""For each process of the comparison."""
FLOOR_BUDGET = Budget(halfwidth=0.002, seconds=1.5, wait_s=1.0)
ANSWER_S = 0.3
"""Time before a deadline at which a measurement ends, so that its result is stored."""


class PlanEvaluator:
    """Judges plans of one target on one backend, against one baseline; a ``Bench``.

    Args:
        target: what is compiled.
        backend: what compiles it.
        progress: is told what becomes known.
        budget: of the measurement of a trial.

    Attributes:
        ends_s: when measurements and verifications must have ended, however few rounds or steps they have, on the clock
            of ``time.monotonic``.

    Raises:
        BackendError: the baseline cannot be compiled or run.
        NotDeterministicError: the baseline is not deterministic.
    """

    def __init__(
        self, target: Target, backend: Backend, progress: Progress | None = None, budget: Budget | None = None
    ) -> None:
        self._backend, self._progress, self._budget = backend, progress or Progress(), budget or Budget()
        self.ends_s = math.inf
        self._device = device_of([*target.module.parameters(), *target.state.values()])
        began_s = time.monotonic()
        try:
            self._baseline = backend.compile(Plan())
        except CompileError as failure:
            raise BackendError(f"the baseline does not compile: {failure}") from failure
        self._verifier: Verifier | None = None
        self._timer: StepTimer | None = None
        self._step_s = 0.0
        # A simulation runs the model itself for every plan: there are no bits to compare, and nothing is timed.
        if self._baseline.simulated_ms is None:
            from sktune.worker import step_timer, verifier

            self._verifier = verifier.Verifier(target, backend, self._baseline)
            self._timer = step_timer.StepTimer(self._device, self._verifier.replays[0], self._progress)
            self._step_s = self._timer.quiet_step_s(self._baseline.step)
        self._baseline_s = time.monotonic() - began_s
        # These objects live as long as the process: freezing them saves 0.25 s in each garbage collection.
        gc.collect()
        gc.freeze()

    @property
    def baseline(self) -> Step:
        """The baseline's compiled step."""
        return self._baseline.step

    @property
    def baseline_digest(self) -> str:
        """Digest of the bits that the baseline computes; empty in a simulation."""
        return self._verifier.baseline_digest if self._verifier else ""

    @property
    def model_difference(self) -> str:
        """Where the baseline differs from the uncompiled model; empty if nowhere."""
        return self._verifier.model_difference if self._verifier else ""

    def check_machine(self) -> None:
        """See ``Bench.check_machine``."""
        self._backend.check_machine()

    def judge(self, job: Judge, report: Report) -> Outcome:
        """Run one trial. Failures of the plan are outcomes.

        A plan that compiles to the same kernels as a ``known`` trial (number by fusion digest) is not measured again,
        and a plan with a ``banned`` region (difference by key) is not run. A plan that cannot beat the ``threshold`` is
        measured only until that is certain.

        Raises:
            OutOfMemoryDuringTrialError: the process must not be used any more.
            MachineError: the machine fails, not the plan.
        """
        seconds: dict[str, float] = {}
        self._ban(job.banned)
        try:
            compiled, outcome = self._judge(job, report, seconds)
        except CompileError as failure:
            self._refuse_failure_of_machine(failure)
            if ran_out_of_memory(failure):
                raise OutOfMemoryDuringTrialError(str(failure), failure.blamed) from failure
            logger.info("the plan does not compile", exc_info=True)
            # A simulated plan that hangs does compile: it would hang in its first step.
            stage = Stage.VERIFY if failure.reason == Reason.TIMEOUT else Stage.COMPILE
            return Outcome(Reason(failure.reason), str(failure), seconds=seconds, blamed=failure.blamed, stage=stage)
        except NotDeterministicError:  # no plan's fault
            raise
        except Exception as failure:
            self._refuse_failure_of_machine(failure)
            if ran_out_of_memory(failure):
                raise OutOfMemoryDuringTrialError(described(failure)) from failure
            logger.info("a step fails", exc_info=True)
            if "verify" in seconds:
                stage = Stage.MEASURE if "measure" in seconds else Stage.VERIFY
                return Outcome(Reason.CRASHED, f"a step fails: {described(failure)}", seconds=seconds, stage=stage)
            detail = f"the first step fails: {described(failure)}"
            return Outcome(Reason.COMPILE_FAILED, detail, seconds=seconds, stage=Stage.COMPILE)
        was_run = outcome.speedup is not None or outcome.reason is Reason.MISMATCH
        if not was_run or compiled.observe is None:
            return outcome
        self._progress.scored(outcome)
        report("observe")
        with _timed(seconds, "observe"):
            scope_times = self._observed(compiled.observe)
        return replace(outcome, scope_times=scope_times, seconds=seconds)

    def _refuse_failure_of_machine(self, failure: Exception) -> None:
        """Raise ``MachineError`` if a failure names the machine, or one operator does not compile either."""
        problem = machine_failure(failure)
        # After an error of a kernel nothing works in this process, whatever the machine's state.
        if not problem and not DEVICE_ERROR.search(str(failure)):
            try:
                self._backend.check_machine()
            except Exception as another:  # noqa: BLE001 - whatever it is, it is not the plan's
                problem = f"one operator does not compile either: {described(another)}"
        if problem:
            raise MachineError(f"the machine fails, not the plan: {problem}; {MEND_MACHINE}") from failure

    def _judge(self, job: Judge, report: Report, seconds: dict[str, float]) -> tuple[Compiled, Outcome]:
        report("compile")
        with _timed(seconds, "compile"):
            compiled = self._backend.compile(job.plan, self._progress.scope)
        if (twin := job.known.get(compiled.fusion_digest)) is not None:
            return compiled, Outcome(same_as=twin, seconds=seconds, fusion_digest=compiled.fusion_digest)
        if compiled.fusion_digest and compiled.fusion_digest == self._baseline.fusion_digest:
            detail = "its scopes contain no operators: it has the same kernels as the baseline"
            return compiled, Outcome(Reason.SLOWER, detail, seconds=seconds, stage=Stage.COMPILE)
        report("verify")
        self._device.reset_peak_memory()
        with _timed(seconds, "verify"):
            verification = self._verifier.quick(job.plan, compiled) if self._verifier else None
        facts: dict[str, Any] = {
            "seconds": seconds,
            "regions": compiled.regions,
            "reused": compiled.reused,
            "code_digest": compiled.code_digest,
            "fusion": compiled.fusion,
            "fused": compiled.fused,
            "fusion_digest": compiled.fusion_digest,
            "peak_memory_bytes": self._device.peak_memory_bytes(),
            "verification": verification,
        }
        if verification is not None and not verification.is_identical:
            return compiled, Outcome(**facts).after(verification)
        report("measure")
        with _timed(seconds, "measure"):
            facts |= self._measured(job.threshold, seconds, compiled)
        if facts["comparison"] == Comparison.SLOWER:
            detail = f"{facts['speedup'].ratio:.3f}x the baseline's speed"
            return compiled, Outcome(Reason.SLOWER, detail, stage=Stage.MEASURE, **facts)
        return compiled, Outcome(**facts)

    def verify(self, job: Verify, report: Report) -> Verification | None:
        """Compare a plan with the baseline: each distinct region with its kernels, then decode steps.

        Returns:
            None for a simulation, and if no more was compared than in a trial. A plan that no longer compiles has the
            reason as its difference.

        Raises:
            MachineError: the machine fails, not the plan.
        """
        if self._verifier is None:
            return None
        self._ban(job.banned)
        report(Stage.COMPILE)
        try:
            compiled = self._backend.compile(job.plan)
        except CompileError as failure:
            self._refuse_failure_of_machine(failure)
            return Verification(difference=f"does not compile: {failure}", is_broken=True)
        report(Stage.VERIFY)
        left_s = min(math.inf if job.seconds is None else job.seconds, self._left_s)
        return self._verifier.thorough(job.plan, compiled, job.steps, left_s, report)

    def deliver(self, job: Deliver, report: Report) -> Delivery | None:
        """Write the compiled code of a plan into a folder; None if the backend cannot export it.

        Raises:
            BackendError: the plan does not compile to the same code again, or the folder cannot be written.
        """
        report(Stage.COMPILE)
        try:
            compiled = self._backend.compile(job.plan)
        except CompileError as failure:
            raise BackendError(f"the plan no longer compiles: {failure}") from failure
        return compiled.deliver(job.folder) if compiled.deliver else None

    @property
    def _left_s(self) -> float:
        return self.ends_s - time.monotonic() - ANSWER_S

    def _sized(self, budget: Budget, contenders: Sized, compile_s: float | None = None) -> Budget:
        """Return ``budget`` with time for enough rounds of a step that is slow on a quiet machine, up to the deadline.

        Steps that a busy machine slows down get as much more time as it took to compile them, by default the baseline:
        its load may never end.
        """
        patience_s = self._baseline_s if compile_s is None else compile_s
        sized = replace(budget.for_steps(self._step_s, len(contenders)), patience_s=patience_s)
        return sized.within(self._left_s)

    def _ban(self, banned: Mapping[str, str]) -> None:
        if self._verifier:
            self._verifier.banned.update(banned)

    def _observed(self, observe: Observe) -> tuple[ScopeTime, ...]:
        """Return the time of each piece; empty if that fails, as the trial already has its figure."""
        try:
            return self._timer.observe(observe) if self._timer else observe(tuple)
        except Exception:
            logger.warning("the time of each scope could not be measured", exc_info=True)
            return ()

    def _measured(self, threshold: Threshold, seconds: Mapping[str, float], compiled: Compiled) -> dict[str, Any]:
        """Measure the plan; return the fields of the outcome that result."""
        entries = {"baseline": self._baseline, "plan": compiled}
        sized = self._sized(self._budget, entries, seconds.get(Stage.COMPILE, 0.0))
        speedups, noise = self._compare(entries, sized, threshold.is_out_of_reach)
        return {
            "speedup": speedups["plan"],
            "comparison": threshold.comparison(speedups["plan"]),
            "noise_floor": threshold.noise_floor,
            "noise": noise,
        }

    def sample_noise_floor(self, job: SampleNoiseFloor, report: Report) -> NoiseFloorSample | None:  # noqa: ARG002
        """See ``Bench.sample_noise_floor``."""
        if self._verifier is None:
            return None
        seconds: dict[str, float] = {}
        with _timed(seconds, "floor"):
            entries = {"baseline": self._baseline, BASELINE_REPEAT: self._backend.compile(Plan())}
            speedups, noise = self._compare(entries, self._sized(FLOOR_BUDGET, entries))
        return NoiseFloorSample(job.before_trial, speedups[BASELINE_REPEAT], noise, seconds["floor"])

    def shortlist(self, job: Shortlist, report: Report) -> list[str]:
        """Compile plans again and return their names, the fastest first; those that do not compile come last.

        A trial's figure can be 20% off, depending on the state of machine and worker, so plans are also measured side
        by side before the fastest are chosen.
        """
        entries, broken = self._compile_all(
            {name: partial(self._backend.compile, plan) for name, plan in job.plans}, report
        )
        names = list(entries)
        if len(entries) > MAX_FINALISTS:
            report("measure")
            together = {"baseline": self._baseline, **entries}
            speedups, _ = self._compare(together, self._sized(SHORTLIST_BUDGET, together))
            names.sort(key=lambda name: speedups[name].ratio, reverse=True)
        return [*names, *(row.name for row in broken)]

    def compare(self, job: Compare, report: Report) -> ProcessComparison:
        """Compile, verify and measure plans and references alternately with the baseline and its second copy.

        Returns the rows, the baseline first and the plans in the given order, and the machine's noise; see
        ``sktune.measure.latency.Measurement``. Entries that do not compile come last.
        """
        makers = {name: partial(self._backend.compile, plan) for name, plan in job.plans}
        if self._verifier:
            makers = {BASELINE_REPEAT: partial(self._backend.compile, Plan()), **makers}
        entries, broken = self._compile_all(makers, report)
        entries = {"baseline": self._baseline, **entries}
        if job.references:
            compiled, not_compiled = self._compile_all(self._backend.references(), report)
            entries, broken = {**entries, **compiled}, broken + not_compiled
        verdicts = {}
        for name, entry in entries.items():
            report("verify")
            verdicts[name] = self._verifier.difference(entry) if self._verifier else None
        equal = f"identical on {self._verifier.quick_steps} steps" if self._verifier else "not verified: simulated"
        report("measure")
        speedups, noise = self._compare(entries, self._sized(FINAL_BUDGET, entries))
        rows = [
            FinalRow(
                name,
                speedups[name],
                str(verdicts[name]) if verdicts[name] else equal,
                verdicts[name] is None if self._verifier else None,
                entry.code_digest,
            )
            for name, entry in entries.items()
        ]
        return ProcessComparison(rows + broken, noise)

    def _compare(
        self, entries: Mapping[str, Compiled], budget: Budget, enough: Callable[[Speedup], bool] = lambda speedup: False
    ) -> tuple[dict[str, Speedup], str]:
        """Return the speedups of ``entries`` over the first, the baseline, and the machine's noise.

        Speedups of computed latencies have no interval.
        """
        if self._timer:
            return self._timer.compare(entries, budget, enough)
        computed_ms = {name: entry.simulated_ms or math.nan for name, entry in entries.items()}
        baseline_ms = computed_ms[next(iter(entries))]
        return {name: Speedup(baseline_ms, ms, baseline_ms / ms, None, 1) for name, ms in computed_ms.items()}, ""

    def _compile_all(
        self, makers: Mapping[str, Callable[[], Compiled]], report: Report
    ) -> tuple[dict[str, Compiled], list[FinalRow]]:
        compiled: dict[str, Compiled] = {}
        broken: list[FinalRow] = []
        for name, make in makers.items():
            report("compile")
            try:
                compiled[name] = make()
            except CompileError as failure:
                self._refuse_failure_of_machine(failure)
                broken.append(FinalRow(name, None, f"does not compile: {failure}", False))
        return compiled, broken


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[stage] = time.perf_counter() - start
