"""The search: asks for plans, has them judged, stores what comes back, and compares the best at the end."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from sktune import profile_prior, report
from sktune.backends import BACKENDS, DEVICES, FRESH_PROCESS
from sktune.backends.options import SUPERKERNEL_BACKENDS, all_choices, check_searched, option_rules
from sktune.errors import BackendError, BadInputError, InterruptedSearchError, SpaceError, nearest
from sktune.fingerprint import fingerprint
from sktune.layout import Layout
from sktune.outcome import Outcome, Reason
from sktune.plan import Option, Plan
from sktune.presets import Preset, load_space
from sktune.result import SearchResult, result_of
from sktune.samplers import BEGINS_ALONE, sampler_factory
from sktune.space import SearchSpace, SpaceSpec, StartingPoint, bind
from sktune.study import TuningStudy, folder_name, incumbent_first, locked, sqlite_url
from sktune.supervisor import FinalRow, Supervisor
from sktune.targets import TargetSpec, describe
from sktune.verdict import MOST_FINALISTS, MOST_QUALIFIERS

logger = logging.getLogger(__name__)

Event = dict[str, Any]
Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Request:
    """What a search is asked for.

    Attributes:
        model: a preset, a folder with a ``config.json``, or ``file.py:function``.
        trials: total of the study, not of this call.
        study: name of the study; None for one made of model, backend and device.
        storage: URL of an Optuna storage; None for sqlite in the study's folder.
        runs: folder that holds the studies' folders.
        strategy: one of ``sktune.samplers.SAMPLERS``, or ``module:function``.
        space: a YAML file with a search space; None for the preset's.
        compile_timeout_s: most time for one compile.
        backend: ``inductor``, ``npu`` or ``sim``; None: ``npu`` on the device npu, else ``inductor``.
        scale, weights, dtype, device, batch, context: see ``sktune.targets.TargetSpec``.
        seed: of weights, inputs and proposals.
        constants: of the simulated device; ``sim`` only.
        profile: of the baseline; it orders the starting points, and ``sim`` takes its kernels' times.
    """

    model: str
    trials: int = 40
    study: str | None = None
    storage: str | None = None
    runs: Path = Path("runs")
    strategy: str = "partition"
    space: Path | None = None
    compile_timeout_s: float = 300.0
    scale: str | None = None
    weights: Path | None = None
    dtype: str | None = None
    backend: str | None = None
    device: str | None = None
    batch: int | None = None
    context: int | None = None
    seed: int = 0
    constants: Path | None = None
    profile: Path | None = None

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise BadInputError(f"--trials is the total number of trials, at least 1; got {self.trials}")
        if self.compile_timeout_s <= 0:
            raise BadInputError(f"--compile-timeout is a number of seconds above 0; got {self.compile_timeout_s:g}")
        if self.device not in (None, "cpu", "cuda", "npu"):
            raise BadInputError(f"--device is cpu, cuda or npu; got {self.device!r}")
        if self.backend not in (None, *BACKENDS):
            raise BadInputError(f"--backend is {', '.join(BACKENDS)}; got {self.backend!r}")
        if self.dtype not in (None, "bfloat16", "float16", "float32"):
            raise BadInputError(f"--dtype is bfloat16, float16 or float32; got {self.dtype!r}")
        if self.constants and self.backend != "sim":
            raise BadInputError("--constants are those of the simulated device; add --backend sim")
        for path in (self.constants, self.profile):
            if path and not path.exists():
                raise BadInputError(f"there is no file {path}")
        for name, value in (("batch", self.batch), ("context", self.context)):
            if value is not None and value < 1:
                raise BadInputError(f"--{name} is at least 1; got {value}")

    def target(self) -> tuple[TargetSpec, Preset | None]:
        """Return what ``model`` names."""
        backend = self.backend or ("npu" if self.device == "npu" else "inductor")
        device = self.device or DEVICES[backend][0]
        if backend == "sim" and self.scale not in (None, "tiny"):
            device = "meta"  # shapes only
        if device not in DEVICES[backend]:
            possible = " or ".join(name for name in DEVICES[backend] if name != "meta")
            raise BadInputError(f"--backend {backend} runs on {possible}, not on {device}")
        return describe(
            self.model, scale=self.scale, weights=self.weights, seed=self.seed, dtype=self.dtype, backend=backend,
            device=device, batch=self.batch, context=self.context, constants=self.constants,
            profile=self.profile if backend == "sim" else None,
        )  # fmt: skip


@dataclass
class _Stop:
    """Whether the user asked to stop after the running trial."""

    requested: bool = False


def run(request: Request, listener: Listener = lambda event: None) -> SearchResult:
    """Search until the study holds ``request.trials`` trials, and return what it recommends.

    Args:
        request: what to search.
        listener: called with each event, a dictionary with the key ``event`` (see docs/events.md).

    Raises:
        SktuneError: bad input, a model that cannot be tuned, or Ctrl-C; what was found is stored.
    """
    spec, preset = request.target()
    wanted = space_spec(request, preset)
    check_space_options(wanted)
    made_with = fingerprint(spec, wanted)
    if request.profile:
        profile_prior.check(request.profile, spec.backend)
    name = request.study or f"{spec.name}-{spec.backend}-{spec.device}"
    folder = request.runs / folder_name(name)
    sampler = sampler_factory(request.strategy)
    cache = (request.runs / "cache").resolve()
    with locked(folder), Supervisor(spec, wanted, folder, cache, request.compile_timeout_s) as supervisor:
        if not supervisor.has_run:
            supervisor.start()  # its imports take as long as making a database
        study = TuningStudy.open(name, request.storage or sqlite_url(folder.resolve()), create=True)
        study.check_fingerprint(made_with)
        search = _Search(request, spec, wanted, study, folder, made_with, listener)
        is_complete = study.finished() >= request.trials or study.facts.get("exhausted", False)
        if not is_complete or study.facts.get("final_trials") != study.finished():
            with _stoppable() as stop:
                search.run(supervisor, sampler, stop)
        result = result_of(study, folder)
        report.write(result, folder)
        listener({"event": "study_finished", **result.summary()})
        return result


class _Search:
    """One call of ``run`` on an open study."""

    def __init__(
        self,
        request: Request,
        spec: TargetSpec,
        space_spec: SpaceSpec,
        study: TuningStudy,
        folder: Path,
        made_with: Mapping[str, str],
        listener: Listener,
    ) -> None:
        self._request, self._spec, self._space_spec = request, spec, space_spec
        self._study, self._folder, self._made_with, self._emit = study, folder, made_with, listener

    def run(self, supervisor: Supervisor, sampler: Any, stop: _Stop) -> None:
        """Run the trials that are missing, then the final comparison."""
        self._emit({"event": "search_started", "study": self._study.name, "trials": self._request.trials,
                    "done": self._study.finished(), "folder": str(self._folder)})  # fmt: skip
        began = time.perf_counter()
        opened = supervisor.open()
        space = bind_space(self._space_spec, self._layout(opened.layout), self._spec)
        # Only now: a space that does not fit the model must leave a study that the mended one can use.
        self._study.remember(
            fingerprint=dict(self._made_with), description=opened.description, space_size=str(space.size)
        )
        self._emit({"event": "target_ready", "description": opened.description, "space_size": space.size,
                    "seconds": dict(opened.seconds)})  # fmt: skip
        self._queue(space)
        while (finished := self._study.finished()) < self._request.trials:
            self._stop_if_asked(stop)
            if finished >= space.size - 1 and self._is_exhausted(space):
                self._study.remember(exhausted=True)
                break
            self._trial(supervisor, space, sampler)
        self._final(supervisor, stop)
        self._study.remember(seconds=self._study.facts.get("seconds", 0.0) + time.perf_counter() - began)

    def _trial(self, supervisor: Supervisor, space: SearchSpace, sampler: Any) -> None:
        proposal = self._study.ask(space, sampler, self._request.strategy, self._request.seed)
        number = proposal.number
        self._emit({"event": "trial_started", "trial": number, "origin": proposal.origin,
                    "scopes": len(proposal.plan.scopes)})  # fmt: skip
        outcome = proposal.known
        if outcome is None and proposal.plan.is_baseline:
            outcome = Outcome(Reason.SLOWER, "the plan has no scope: it is the baseline")
        outcome = outcome or self._blocked(proposal.plan)
        if outcome is None:
            outcome = self._judged(supervisor, proposal.plan, number)
        self._study.tell(proposal, outcome, self._value(outcome))
        is_simulated = self._spec.backend == "sim"
        self._emit({"event": "trial_finished", "trial": number, "origin": proposal.origin,
                    "scopes": len(proposal.plan.scopes), "known": proposal.known is not None,
                    "simulated": is_simulated, **_told(outcome, is_simulated)})  # fmt: skip

    def _judged(self, supervisor: Supervisor, plan: Plan, number: int) -> Outcome:
        records = [record for record in self._study.records() if record.outcome and record.outcome.fusion_digest]
        twins = {record.outcome.fusion_digest: record for record in reversed(records) if record.outcome}
        known = {digest: record.number for digest, record in twins.items()}

        def report_stage(stage: str) -> None:
            self._emit({"event": "trial_stage", "trial": number, "stage": stage})

        log = f"trial-{number:04d}.log"
        outcome = supervisor.judge(plan, log, report_stage, known)
        if self._hangs(outcome) and not any("feed-sync-all" in dict(scope.options) for scope in plan.scopes):
            rescued = supervisor.judge(plan.with_option("feed-sync-all", 1), log, report_stage)
            if self._hangs(rescued):
                detail = f"{outcome.detail}; it hangs with feed-sync-all=1, too"
                return replace(outcome, detail=detail, added={"feed-sync-all": 1})
            return replace(rescued, added={"feed-sync-all": 1})
        twin = twins.get(outcome.fusion_digest) if outcome.same_as is not None else None
        if twin and twin.outcome:
            detail = f"the same SuperKernels as trial {twin.number}"
            # What its scopes took was observed once, under the twin's own scopes.
            return replace(twin.outcome, detail=detail, same_as=twin.number, seconds=outcome.seconds, scope_times=())
        return outcome

    def _blocked(self, plan: Plan) -> Outcome | None:
        """Return the outcome of a plan with a scope that hung in every way, without running it."""
        labels = {scope.label for scope in plan.scopes}
        for record in self._study.records():
            found = record.outcome
            if found and found.reason is Reason.TIMEOUT and found.added and found.blamed in labels:
                return Outcome(
                    Reason.TIMEOUT, f"scope {found.blamed} hung in trial {record.number}", blamed=found.blamed
                )
        return None

    def _hangs(self, outcome: Outcome) -> bool:
        """Whether a SyncAll may be waiting for cores that do not run: ``feed-sync-all`` is the rescue."""
        is_npu = self._spec.backend in SUPERKERNEL_BACKENDS
        return is_npu and outcome.reason is Reason.TIMEOUT and "compile did not end" not in outcome.detail

    def _value(self, outcome: Outcome) -> float | None:
        """Return the decode step latency in ms, freed of the machine's drift by way of the paired baseline."""
        if outcome.speedup is None:
            return None
        reference: float | None = self._study.facts.get("baseline_ms")
        if reference is None:
            reference = outcome.speedup.baseline_ms
            self._study.remember(baseline_ms=reference)
        return reference / outcome.speedup.ratio

    def _final(self, supervisor: Supervisor, stop: _Stop) -> None:
        self._stop_if_asked(stop)
        # Graphs on an NPU keep their memory: as few as possible in one process.
        most = MOST_FINALISTS if self._spec.backend in FRESH_PROCESS else MOST_QUALIFIERS
        qualifiers = incumbent_first(self._study.records())[:most]
        numbers = [record.number for record in qualifiers]
        self._emit({"event": "final_started", "simulated": self._spec.backend == "sim", "qualifiers": numbers})
        began = time.perf_counter()
        plans = [(str(record.number), record.judged_plan) for record in qualifiers]

        def report_stage(stage: str) -> None:
            self._emit({"event": "final_stage", "stage": stage})

        try:
            rows, samples = supervisor.final(plans, report_stage)
        except BackendError as failure:
            # Compiling the whole step is the user's alternative, not ours: its failure must not cost them the answer.
            logger.warning("%s; comparing again without torch.compile of the whole step", failure)
            rows, samples = supervisor.final(plans, report_stage, references=False)
        self._study.remember(
            final=_final_facts(rows, samples),
            final_seconds=time.perf_counter() - began,
            final_trials=self._study.finished(),
        )

    def _layout(self, traced: Layout) -> Layout:
        """Return the study's layout: with the shares of the first trace, which a resumed search must see again."""
        if (stored := self._study.facts.get("layout")) is None:
            if self._request.profile:
                traced = profile_prior.with_time_shares(traced, self._request.profile)
            self._study.remember(layout=traced.to_dict())
            return traced
        layout = Layout.from_dict(stored)
        if layout.digest != traced.digest:
            raise BadInputError(
                f"the model of study {self._study.name!r} had other units than now; name a new study with --study"
            )
        return layout

    def _queue(self, space: SearchSpace) -> None:
        """Queue the starting points whose plans are new, for strategies that take them."""
        if self._request.strategy in BEGINS_ALONE:
            return
        points: Sequence[StartingPoint] = space.starting_points
        if self._request.profile:
            points = profile_prior.ordered(points, self._request.profile)
        known = {record.plan for record in self._study.records()}
        self._study.queue([point for point in points if space.plan(point.values) not in known])

    def _is_exhausted(self, space: SearchSpace) -> bool:
        distinct = {record.plan for record in self._study.records() if record.outcome}
        if len(distinct - {Plan()}) < space.size - 1:
            return False
        self._emit({"event": "space_exhausted", "plans": len(distinct)})
        return True

    def _stop_if_asked(self, stop: _Stop) -> None:
        if stop.requested:
            raise InterruptedSearchError(
                f"stopped after {self._study.finished()} of {self._request.trials} trials; the same command goes on"
            )


def bind_space(wanted: SpaceSpec, layout: Layout, spec: TargetSpec) -> SearchSpace:
    """Bind ``wanted`` to a layout, with the options that it lists for the backend and device of ``spec``."""
    # The simulation plans for an NPU.
    backend, device = ("npu", "npu") if spec.backend == "sim" else (spec.backend, spec.device)
    chosen: Mapping[str, Sequence[Option]] = wanted.options.get(backend, {}).get(device, {})
    options = {name: tuple(values) for name, values in chosen.items()} or all_choices(spec.backend, spec.device)
    points = {**wanted.starting_points, **wanted.backend_starting_points.get(backend, {})}
    return bind(wanted.model_copy(update={"starting_points": points}), layout, options, option_rules(spec.backend))


def space_spec(request: Request, preset: Preset | None) -> SpaceSpec:
    """Return the space that a request asks for: its file's, the preset's, or the default."""
    given = preset.space if preset else SpaceSpec()
    space = load_space(request.space) if request.space else given
    # The simulation knows no data caches.
    is_npu = request.backend == "npu" or (request.backend is None and request.device == "npu")
    return profile_prior.with_hot_types(space, request.profile) if request.profile and is_npu else space


def check_space_options(spec: SpaceSpec) -> None:
    """Raise ``SpaceError`` unless every option that the space lists, for whatever backend, can be searched."""
    if "sim" in (*spec.options, *spec.backend_starting_points):
        raise SpaceError("the simulation takes what the space lists for npu; list options of sim there")
    for backend in (*spec.options, *spec.backend_starting_points):
        if backend not in BACKENDS:
            raise SpaceError(f"the space names the backend {backend!r}{nearest(backend, BACKENDS)}")
    for backend, devices in spec.options.items():
        for device, options in devices.items():
            if device not in DEVICES[backend]:
                raise SpaceError(
                    f"the space has options of {backend} on {device!r}; it runs on {', '.join(DEVICES[backend])}"
                )
            for name, values in options.items():
                if not values:
                    raise SpaceError(f"option {name} of the space has no value; list at least one, or leave it out")
                for value in values:
                    check_searched(backend, device, name, value)


def _told(outcome: Outcome, is_simulated: bool) -> dict[str, Any]:
    values = outcome.to_dict()
    speedup = values.pop("speedup") or {}
    return {
        "state": "complete" if outcome.is_complete else "pruned",
        "reason": outcome.reason,
        "detail": outcome.detail,
        "blamed": outcome.blamed,
        "latency_ms": speedup.get("latency_ms"),
        "baseline_ms": speedup.get("baseline_ms"),
        "speedup": speedup.get("ratio"),
        "ci95": None if is_simulated else speedup.get("ci95"),
        "seconds": values["seconds"],
        "regions": outcome.regions,
        "reused": outcome.reused,
        "log": outcome.log,
    }


def _final_facts(rows: Sequence[FinalRow], samples: Sequence[Sequence[float]]) -> dict[str, Any]:
    timed = [row.name for row in rows if row.speedup]
    microseconds = {name: [round(value * 1e6, 1) for value in own] for name, own in zip(timed, samples, strict=True)}
    return {"rows": [asdict(row) for row in rows], "samples_us": microseconds}


@contextmanager
def _stoppable() -> Iterator[_Stop]:
    """First Ctrl-C: stop after the running trial. Second: at once."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals belong to the main thread's program
        return

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True
        logger.warning("stopping after this trial; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    except KeyboardInterrupt as failure:
        raise InterruptedSearchError(
            "stopped at once; the same command goes on with the trial that was running"
        ) from failure
    finally:
        signal.signal(signal.SIGINT, before)
