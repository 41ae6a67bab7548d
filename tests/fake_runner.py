"""A runner without a process or a model: latencies are a function of the plan, and faults are injected."""

import functools
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar
from unittest.mock import patch

from sktune.core.errors import BackendError, OutOfTimeError
from sktune.core.fused_scopes import FusedScope
from sktune.core.layout import Layout
from sktune.core.outcome import BASELINE, BASELINE_REPEAT, FinalRow, Outcome, Reason, Speedup
from sktune.core.plan import Plan
from sktune.core.verification import Verification
from sktune.measure.confidence_sequence import Comparison
from sktune.measure.noise_floor import NoiseFloorSample
from sktune.study.result import SearchResult
from sktune.study.study import TuningStudy, sqlite_url
from sktune.tuning.loop import run
from sktune.tuning.request import Request
from sktune.tuning.time_budget import TimeBudget
from sktune.worker.jobs import (
    Compare,
    Deliver,
    DurationEstimates,
    Job,
    Judge,
    NamedPlan,
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
from tests.builders import decoder_layout

T = TypeVar("T")
LAYERS = decoder_layout(("dense", "moe"), ("self_attn", "mlp"), outside=False)
"""With ``SPACE`` there are 24 plans."""
OPENING_S, TRIAL_S, FINALIST_S = 10.0, 4.0, 1.0
"""Reported durations; a finalist really takes half of its time, and a tenth in a shared measurement."""


def durations(opened: Opened, _trials: Sequence[Mapping[str, float]]) -> DurationEstimates:
    """Return the durations above."""
    return opened.traits.durations(OPENING_S, TRIAL_S, FINALIST_S)


class Clock:
    """A clock that only advances with work."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


SPACE = """
version: 1
space:
  layers_per_scope: [1]
  options: {npu: {npu: {stream-fusion: [0]}}, inductor: {cpu: {matmul: [aten]}}}
  starting_points:
    attention: {layer.self_attn: new}
    each layer: {layer.self_attn: new, layer.mlp: join}
"""


def latency_by_units(plan: Plan) -> float:
    """Return a decode step's latency in ms: 10 without scopes; units in scopes save time, scopes cost some."""
    saved_ms = {"self_attn": 0.9, "mlp": 0.5}
    names = [name for scope in plan.scopes for name in sorted({scope.first, scope.last})]
    return 10.0 - sum(saved_ms[name.rpartition(".")[2]] for name in names) + 0.2 * len(plan.scopes)


@dataclass
class FakeRunner:
    """A ``Runner`` that computes latencies from plans and records its requests.

    Attributes:
        latency_ms: a plan's decode step latency; the baseline is the empty plan.
        fault: the outcome of a plan that fails; None for other plans.
        kernels: digest of a plan's kernels, if the compiler reports it.
        fused: what a plan's scopes became, if the compiler reports it.
        difference: a difference that only a thorough verification finds in a plan.
        breaks: called before each request with its kind and its plans; may raise, as if the process had died.
        layout: of the model.
        traits: reported to the search.
        clock: advanced by work.
        asked: kinds of the requests, with their plans.
        setup: that the search made it from.
    """

    latency_ms: Callable[[Plan], float] = latency_by_units
    fault: Callable[[Plan], Outcome | None] = lambda plan: None
    kernels: Callable[[Plan], str] = lambda plan: ""
    fused: Callable[[Plan], tuple[FusedScope, ...]] = lambda plan: ()
    difference: Callable[[Plan], str] = lambda plan: ""
    breaks: Callable[[str, Sequence[Plan]], None] = lambda kind, plans: None
    layout: Layout = LAYERS
    traits: RunnerTraits = field(default_factory=RunnerTraits)
    clock: Clock = field(default_factory=Clock)
    asked: list[tuple[str, tuple[Plan, ...]]] = field(default_factory=list)
    deadline_s: float = math.inf
    is_open: bool = False
    setup: RunnerSetup | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the target."""
        self.is_open = False

    def open(self) -> Opened:
        """Return a decoder's layout."""
        if not self.is_open:
            self._begin("open", (), OPENING_S)
        self.is_open = True
        seconds = {"load": OPENING_S - 1, "baseline": 1.0}
        return Opened(self.layout, "a decoder made up", seconds, traits=replace(self.traits, estimate=durations))

    def run(self, job: Job[T], report: Report = silent, /) -> T:
        """Do a job."""
        return job.run(self, report)

    def check_machine(self) -> None:
        """Find nothing."""

    def judge(self, request: Judge, report: Report, /) -> Outcome:
        """Return the outcome of a plan from ``fault``, ``kernels`` and ``latency_ms``."""
        self.open()
        report("compile")
        self._begin("judge", [request.plan], TRIAL_S)
        seconds = {"compile": TRIAL_S - 1.0, "measure": 1.0}
        if failure := self.fault(request.plan):
            return replace(failure, seconds=seconds)
        digest = self.kernels(request.plan)
        if digest in request.known:
            return Outcome(same_as=request.known[digest], fusion_digest=digest, seconds=seconds)
        report("measure")
        speedup = self._speedup(request.plan)
        comparison = request.threshold.comparison(speedup)
        outcome = Outcome(
            speedup=speedup, comparison=comparison, noise_floor=request.threshold.noise_floor, fusion_digest=digest,
            seconds=seconds, fused=self.fused(request.plan),
        )  # fmt: skip
        if comparison == Comparison.SLOWER:
            return replace(outcome, reason=Reason.SLOWER, detail="slower than the baseline")
        return outcome

    def sample_noise_floor(self, job: SampleNoiseFloor, report: Report, /) -> NoiseFloorSample | None:
        """Return a difference of 0.1% between the baseline and itself."""
        self.open()
        self._begin("sample_noise_floor", (), FINALIST_S)
        if not self.traits.measures_time:
            return None
        return NoiseFloorSample(job.before_trial, Speedup(10.0, 9.99, 1.001, (1.0, 1.002), 40), "", FINALIST_S)

    def shortlist(self, job: Shortlist, report: Report, /) -> list[str]:
        """Sort plans by ``latency_ms``."""
        self.open()
        report("measure")
        self._begin("shortlist", [plan for _, plan in job.plans], FINALIST_S / 10 * len(job.plans))
        return [name for name, _ in sorted(job.plans, key=lambda named: self.latency_ms(named[1]))]

    def verify(self, request: Verify, report: Report, /) -> Verification | None:
        """Return the difference; None if the figures are simulated."""
        self.open()
        report("verify")
        self._begin("verify", [request.plan], FINALIST_S / 10)
        if not self.traits.measures_time:
            return None
        return Verification(request.steps, 1, 100, (), self.difference(request.plan))

    def compare(self, request: Compare, report: Report, /) -> ProcessComparison:
        """Compare by ``latency_ms``; if the process breaks, each plan in a separate one."""
        try:
            return ProcessComparison(self._together(request.plans, report))
        except BackendError:
            if not request.plans:
                raise
        rows: dict[str, FinalRow] = {}
        for name, plan in request.plans:
            try:
                rows |= {row.name: row for row in self._together([(name, plan)], report)}
            except BackendError as failure:
                rows[name] = FinalRow(name, None, str(failure), None)
        rows |= {} if BASELINE in rows else {row.name: row for row in self._together((), report)}
        return ProcessComparison(sorted(rows.values(), key=lambda row: (row.speedup is None, row.name != BASELINE)))

    def _together(self, plans: Sequence[NamedPlan], report: Report) -> list[FinalRow]:
        self.close()
        self.open()
        report("measure")
        self._begin("compare", [plan for _, plan in plans], FINALIST_S / 2 * len(plans))
        entries = [(BASELINE, Plan()), *([(BASELINE_REPEAT, Plan())] if self.traits.measures_time else []), *plans]
        same = True if self.traits.measures_time else None
        return [FinalRow(name, self._speedup(plan), "identical", same) for name, plan in entries]

    def deliver(self, job: Deliver, report: Report, /) -> None:
        """Deliver no code."""
        self.open()
        report("compile")
        self._begin("deliver", [job.plan], FINALIST_S / 2)

    def count(self, kind: str) -> int:
        """Return the number of requests of ``kind``."""
        return sum(kind == asked for asked, _ in self.asked)

    def _begin(self, kind: str, plans: Sequence[Plan], seconds: float) -> None:
        self.asked.append((kind, tuple(plans)))
        self.breaks(kind, plans)
        self.clock.now_s += seconds
        if self.clock.now_s >= self.deadline_s:
            self.clock.now_s = self.deadline_s
            raise OutOfTimeError

    def _speedup(self, plan: Plan) -> Speedup:
        baseline_ms, latency_ms = self.latency_ms(Plan()), self.latency_ms(plan)
        ratio = baseline_ms / latency_ms
        ci95 = (ratio * 0.999, ratio * 1.001) if self.traits.measures_time else None
        return Speedup(baseline_ms, latency_ms, ratio, ci95, 40)


def search(
    runs: Path, runner: FakeRunner, listener: Callable[[dict[str, Any]], None] = lambda event: None, **options: Any
) -> SearchResult:
    """Search on a fake runner, in study ``s``; a time budget uses its clock."""
    folder = runs / "s"
    if not folder.exists():
        folder.mkdir(parents=True)
        shutil.copy(_empty_database(), folder / "study.db")
        (runs / "space.yaml").write_text(SPACE)
    request = Request("llama", study="s", runs=runs, **{"trials": 6, "space": runs / "space.yaml", **options})

    def factory(setup: RunnerSetup) -> FakeRunner:
        runner.setup = setup
        return runner

    def budget(seconds: float, began_s: float) -> TimeBudget:
        return TimeBudget(seconds, began_s, runner.clock)

    with patch("sktune.tuning.loop.TimeBudget", budget):
        return run(request, lambda event: listener(event.to_dict()), runner.clock.now_s, runner_factory=factory)


@functools.cache
def _empty_database() -> Path:
    """Return a database without trials, cached: creating its tables takes most of a second."""
    import tempfile

    folder = Path(tempfile.mkdtemp())
    TuningStudy.open("none", sqlite_url(folder), create=True)
    return folder / "study.db"
