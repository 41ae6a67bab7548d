"""The search: asks for plans, has them judged, stores the outcomes, and compares the best at the end.

With ``--proxy-layers`` it is on a model with fewer layers first, from which the search on the whole model then learns,
in a few trials. A plan can win only on the whole model, where it is verified and measured like any other.
"""

import logging
import math
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

from sktune.backends import backend_info
from sktune.core.earlier import EarlierStudy
from sktune.core.errors import (
    BackendError,
    BadInputError,
    InterruptedSearchError,
    NothingTriedError,
    OutOfTimeError,
    SktuneError,
    StudyHeldError,
    TargetError,
)
from sktune.core.events.base import Event, Listener
from sktune.core.events.search import (
    Converged,
    CoresChosen,
    NoiseFloor,
    ProxyFinished,
    SearchStarted,
    SpaceExhausted,
    StandingBy,
    StudyFinished,
    TargetReady,
    TimeBudgetSpent,
)
from sktune.core.events.workers import WorkerJoined, WorkerLost, WorkerQuarantined
from sktune.core.files import mark_as_written, real_path
from sktune.core.layout import Layout
from sktune.core.plan import Plan
from sktune.core.space import SearchSpace, SpaceSpec, StartingPoint
from sktune.learning.threads import one_blas_thread
from sktune.measure.machine import Placement
from sktune.measure.noise_floor import NoiseFloorSample, drift
from sktune.samplers import find_strategy
from sktune.samplers.partition import PartitionSampler
from sktune.study.backup import Backup
from sktune.study.claims import locked
from sktune.study.leases import Leases
from sktune.study.records import incumbent_first
from sktune.study.result import SearchResult, result_of, stored_result
from sktune.study.shapes import has_compared, read_record
from sktune.study.snapshot import names_before_search
from sktune.study.storage import DATABASE
from sktune.study.strategy import Strategy
from sktune.study.study import TuningStudy, folder_name, sqlite_url
from sktune.study.worker_log import Fate, WorkerLog
from sktune.targets import TargetSpec
from sktune.tuning.finals import Finals
from sktune.tuning.interrupt import Stop, stoppable
from sktune.tuning.request import CONVERGED_GAIN, Request, bind_space, space_spec
from sktune.tuning.scheduler import Coordinator, Engine, Fleet, Share, lease_s
from sktune.tuning.site import LocalSite, Site
from sktune.tuning.time_budget import TimeBudget
from sktune.tuning.trials import Trials
from sktune.worker import make_runner
from sktune.worker.jobs import GIVEN_BACK, Opened, RunnerFactory, RunnerSetup

TRIALS_AFTER_PROXY = 5
"""On the whole model, after the search on fewer layers."""
PROXY_SHARE = 0.5
"""Share of the time budget that the search on the small model may take."""


class WorkerRecord:
    """Stores what happens to workers, then passes it on; a listener.

    Args:
        log: of the study.
        emit: called with each event.
    """

    def __init__(self, log: WorkerLog, emit: Listener) -> None:
        self._log, self._emit = log, emit
        self._hosts: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        """Take an event of the search."""
        match event:
            case WorkerJoined():
                self._hosts[event.worker] = event.host or socket.gethostname()
                self._add(event.worker, Fate.JOINED)
            case WorkerQuarantined():
                self._add(event.worker, Fate.QUARANTINED, event.why)
            case WorkerLost():
                self._add(event.worker, Fate.GIVEN_BACK if event.why == GIVEN_BACK else Fate.LOST, event.why)
        self._emit(event)

    def _add(self, worker: str, fate: Fate, why: str = "") -> None:
        self._log.add(worker, self._hosts.get(worker, ""), fate, why)


def stored_study(request: Request, name: str, folder: Path) -> TuningStudy | None:
    """Return the study if it may exist. A new one's database is created while its first worker starts."""
    return opened_study(request, name, folder) if request.storage or any(folder.glob(f"{DATABASE}*")) else None


def opened_study(request: Request, name: str, folder: Path) -> TuningStudy:
    """Open the study, and create it if it is missing."""
    backup = None if request.storage else Backup(real_path(folder))
    return TuningStudy.open(name, request.storage or sqlite_url(real_path(folder)), create=True, backup=backup)


def is_answered(study: TuningStudy, request: Request, folder: Path) -> bool:
    """Whether all trials are done, and the best of them were compared, if they are to be, and the request's points."""
    facts, finished = study.facts, study.finished()
    reached, share = facts.reached or (0, 0.0)
    has_converged = request.enough is not None and 0 < reached == finished and share <= request.enough
    if finished < request.max_trials and not facts.exhausted and not has_converged:
        return False
    if not request.compares:
        return True
    if facts.final_trials != finished or not facts.is_complete:
        return False
    result = result_of(study, folder)
    winner = result.winner.number if result.winner else None
    if winner is not None and (facts.delivery is None or facts.delivery.trial != winner):
        return False  # a search of 0.2 was killed while it wrote the winner's code
    return not request.points or has_compared(result, request.points)


def has_ended(result: SearchResult, trials: float, request: Request) -> bool:
    """Whether a study has had ``trials``, or needs no more: no time limit has cut them off."""
    _, share = result.facts.reached or (0, math.inf)
    has_converged = request.enough is not None and share <= request.enough
    return len(result.trials) >= trials or result.facts.exhausted or has_converged


logger = logging.getLogger(__name__)

LOOK_FROM, LOOK_EVERY = 10, 5
"""Trials at which a search that need not stop looks whether it might: each look reads the study, and takes a second."""
TRIALS_PER_FLOOR_SAMPLE = 10
"""A sample takes about two seconds."""


def search(
    request: Request, listener: Listener = lambda event: None, began_s: float | None = None, site: Site | None = None
) -> SearchResult:
    """Search as ``run`` does, on fewer layers first if the request says so.

    Raises:
        SktuneError: as ``run``; also if each layer has its own parameters, or the model's layers cannot be reduced.
    """
    if request.proxy_layers is None:
        return run(request, listener, began_s, site=site)
    spec, preset = request.target()
    if space_spec(request, spec, preset).per_layer:
        raise BadInputError("--proxy-layers: in this space each layer has its own parameters; leave out per_layer")
    began_s = time.monotonic() if began_s is None else began_s  # one budget for both searches
    small = replace(
        request,
        proxy_layers=None,
        layers=request.proxy_layers,
        study=request.study and f"{request.study}-proxy{request.proxy_layers}",
        time_budget_s=request.time_budget_s and PROXY_SHARE * request.time_budget_s,
    )
    small = _as_learned(request, small)
    proxy = run(small, _renamed(listener), began_s, site=site)
    if not proxy.has_figures:
        raise BackendError(
            f"--proxy-layers: no plan of the small model could be measured; see {proxy.folder / 'logs'}, or leave "
            "--proxy-layers out"
        )
    whole = replace(
        request,
        proxy_layers=None,
        trials=TRIALS_AFTER_PROXY,
        strategy="partition",
        learn_from=(*request.learn_from, proxy.study),
    )
    return run(whole, listener, began_s, site=site)


def _as_learned(request: Request, small: Request) -> Request:
    """Return the request of the small model; where the whole model has learned from it, with those trials.

    Raises:
        BadInputError: the whole model's study would learn nothing from the small model.
    """
    name, small_name = (each.study or each.target()[0].study_name for each in (request, small))
    _refuse_several_shapes(name, request.runs / folder_name(name))
    known = names_before_search(request.runs, request.storage)
    if name not in known:
        return small
    whole = stored_result(name, request.runs, request.storage)
    if not (whole.trials or whole.facts.earlier):
        return small
    learned = next((each.trials for each in whole.facts.earlier if each.name == small_name), None)
    if learned is None:
        raise BadInputError(f"--proxy-layers: study {name!r} has begun without it; name a new one with --study")
    proxy = stored_result(small_name, request.runs, request.storage) if small_name in known else None
    if proxy and not request.time_budget_s and not has_ended(proxy, small.max_trials, small):
        raise BadInputError(
            f"--trials: study {name!r} has learned from the {learned} trials of {small_name!r}, and learns from no "
            "more; name a new one with --study, or leave --proxy-layers out to continue the whole model"
        )
    return replace(small, trials=learned)


def _refuse_several_shapes(name: str, folder: Path) -> None:
    if read_record(folder):
        raise BadInputError(f"study {name!r} is of several shapes; give --shapes, or name another with --study")


def _renamed(listener: Listener) -> Listener:
    """Return a listener that gets the small model's result as ``ProxyFinished``."""

    def listen(event: Event) -> None:
        if isinstance(event, StudyFinished):
            event = ProxyFinished(**{field.name: getattr(event, field.name) for field in fields(event)})
        listener(event)

    return listen


def site_of(request: Request, share: Share | None = None) -> Site:
    """Return where a request's trials run; ``share`` says which of its workers other searches leave to it."""
    if request.engine == "ray":
        from sktune.cluster.ray_site import RayCluster  # the extra sktune[ray]
        from sktune.tuning.local_engine import FirstPlaces

        return RayCluster(request.address, share or FirstPlaces(request.workers))
    return LocalSite(request.workers or 1, share)


@one_blas_thread()
def run(
    request: Request,
    listener: Listener = lambda event: None,
    began_s: float | None = None,
    runner_factory: RunnerFactory = make_runner,
    site: Site | None = None,
) -> SearchResult:
    """Search until the study has ``request.trials`` trials or the time is up, and return its result.

    Args:
        request: what to search.
        listener: called with each event.
        began_s: when the time budget began, on the clock of ``time.monotonic``; None for now.
        runner_factory: makes the runner of the plans.
        site: where they run; None for where the request says.

    Raises:
        SktuneError: bad input, a model that cannot be tuned, no plan that can be measured, a machine that fails, or
            Ctrl-C; finished trials are stored.
    """
    budget = TimeBudget(request.time_budget_s or math.inf, time.monotonic() if began_s is None else began_s)
    spec, preset = request.target()
    space = space_spec(request, spec, preset)
    if request.profile:
        from sktune.profiling import hints

        hints.check(request.profile, spec.backend)
    strategy = find_strategy(request.strategy)
    name = request.study or spec.study_name
    folder = request.runs / folder_name(name)
    _refuse_several_shapes(name, folder)
    if request.learn_from and not strategy.learns:
        raise BadInputError(f"--learn-from is for the strategy partition; {strategy.name} cannot use it")
    if request.learn_from and not folder.exists():  # for one that exists it depends on what it learns from already
        from sktune.tuning import earlier

        earlier.check_names(request, name)
    site = site or site_of(request)

    def on_wait(holder: str) -> None:
        listener(StandingBy(study=name, holder=holder))

    is_new = not folder.exists()
    with locked(folder, on_wait if request.standby else None), _forgotten_if_unloadable(request, name, folder, is_new):
        for written in (folder, request.cache):
            mark_as_written(written)
        study = stored_study(request, name, folder)
        if study is not None and request.learn_from:
            from sktune.tuning import earlier

            earlier.check_names(request, name, study.facts.earlier)
        if study is not None and is_answered(study, request, folder):
            made_with = site.fingerprint_of_answer(spec, space, study.facts.fingerprint)
            with study.claimed(made_with, spec.home, join=request.join, take_over=request.take_over):
                pass  # only checked
        else:
            search = _Search(request, spec, space, folder, listener, budget)
            study = search.run(name, study, site, runner_factory, strategy)
        result = result_of(study, folder)
        if not request.compares:
            return result
        from sktune.reports import dashboard, outputs  # a search goes without reports until it ends

        outputs.write(result, folder)
        if dashboard.is_installed():
            dashboard.publish(study.optuna_study, result)
        listener(result.told_as(StudyFinished))
        return result


@contextmanager
def _forgotten_if_unloadable(request: Request, name: str, folder: Path, is_new: bool) -> Iterator[None]:
    """Remove a new study's folder if its model cannot be loaded; a recipe's stays, with its program's logs."""
    try:
        yield
    except TargetError:
        if is_new and not request.storage and not request.recipe:
            study = stored_study(request, name, folder)
            if study is None or not study.finished():
                shutil.rmtree(folder, ignore_errors=True)
        raise


def queued_first(request: Request, space: SearchSpace, strategy: Strategy) -> Sequence[StartingPoint]:
    """Return the starting points that a new study tries before its strategy proposes any plan."""
    profile = request.profile
    takes_them = strategy.takes_starting_points and not profile
    if not request.exact_starting_points and (takes_them or strategy.starts_alone):
        return ()
    if not profile:
        return space.starting_points
    from sktune.profiling import hints

    return hints.ordered(space.starting_points, profile)


class _Search:
    """One call of ``run`` on a study that has no answer yet."""

    _study: TuningStudy
    _leases: Leases
    _made_with: Mapping[str, str]

    def __init__(
        self,
        request: Request,
        spec: TargetSpec,
        space_spec: SpaceSpec,
        folder: Path,
        listener: Listener,
        budget: TimeBudget,
    ) -> None:
        self._request, self._spec, self._space_spec = request, spec, space_spec
        self._folder, self._emit = folder, listener
        self._budget = budget
        self._floor_tried_at: int | None = None
        self._looked_at: int | None = None
        self._told = self._has_reached = self._has_delivered = False

    def run(
        self, name: str, study: TuningStudy | None, site: Site, factory: RunnerFactory, strategy: Strategy
    ) -> TuningStudy:
        """Search on the site's workers, and return the study, which is opened only now if it is new."""
        request, spec, space = self._request, self._spec, self._space_spec
        with ExitStack() as stack:
            if study:  # claimed before workers are started
                placement, cores = self._claim(stack, study, site)
                if is_answered(study, request, self._folder):  # another search may have been faster
                    return study
            else:
                placement, cores = self._place(site, {})
            limit_s = request.compile_timeout_s
            setup = RunnerSetup(spec, space, self._folder, request.cache, limit_s, placement=placement)
            engine = stack.enter_context(site.engine(setup, factory))
            if study is None:
                study = opened_study(request, name, self._folder)
                self._leases = stack.enter_context(self._claimed(study))
            self._study = study
            with stoppable() as stop:
                self._run(engine, strategy, stop, cores)
        return study

    def _claim(self, stack: ExitStack, study: TuningStudy, site: Site) -> tuple[Placement, CoresChosen | None]:
        """Claim the study, on standby once nobody else runs it, and return where the steps of a worker run."""
        while True:
            if self._request.standby:
                study.stand_by(lambda holder: self._emit(StandingBy(study=study.name, holder=holder)))
                self._budget = TimeBudget(self._budget.seconds, time.monotonic())
            place = self._place(site, study.facts.fingerprint)
            try:
                self._leases = stack.enter_context(self._claimed(study))
            except StudyHeldError:
                if not self._request.standby:
                    raise
            else:
                return place

    def _place(self, site: Site, stored: Mapping[str, str]) -> tuple[Placement, CoresChosen | None]:
        made_with = site.fingerprint(self._spec, self._space_spec)
        placement, cores = site.placed(self._spec, stored)
        self._made_with = made_with | placement.fingerprint
        return placement, cores

    def _claimed(self, study: TuningStudy) -> AbstractContextManager[Leases]:
        join, take_over = self._request.join, self._request.take_over
        return study.claimed(self._made_with, self._spec.home, join=join, take_over=take_over)

    def _run(self, engine: Engine, strategy: Strategy, stop: Stop, cores: CoresChosen | None) -> None:
        """Run the missing trials, then the final comparison, as far as the time budget allows."""
        began = time.perf_counter()
        try:
            self._search(engine, strategy, stop, cores)
        except OutOfTimeError as failure:
            if not self._study.finished():
                raise NothingTriedError(
                    f"--time-budget: no plan was tried in its {self._budget.seconds:g} s here; give more time"
                ) from failure
            self._study.remember(uncompared=True)
        except BaseException:  # also what a signal raises
            with suppress(SktuneError):  # the first error is the one to tell
                self._add_seconds(began)
            raise
        if self._request.compares:
            self._remember_gain_left(strategy)
        self._add_seconds(began)

    def _add_seconds(self, began: float) -> None:
        self._study.remember(seconds=self._study.facts.seconds + time.perf_counter() - began)

    def _search(self, engine: Engine, strategy: Strategy, stop: Stop, cores: CoresChosen | None) -> None:
        done = self._study.finished()
        most = self._request.max_trials
        trials_wanted = None if math.isinf(most) else int(most)
        records = self._study.records()
        best = next((one.outcome for one in incumbent_first(records)), None)
        self._emit(SearchStarted(study=self._study.name, trials=trials_wanted, done=done, folder=str(self._folder),
                                 time_budget_s=self._request.time_budget_s,
                                 best_speedup=best.speedup.ratio if best and best.speedup else None))  # fmt: skip
        if cores:
            self._emit(cores)
        is_shared = self._request.is_shared
        fleet = Fleet(engine, WorkerRecord(self._leases.workers, self._emit), is_shared=is_shared)
        for outcome in (record.outcome for record in records):
            if outcome and outcome.speedup and outcome.die:
                fleet.remember(outcome.die, outcome.speedup.baseline_ms)
        fleet.deadline_s = self._budget.deadline_s
        opened = fleet.open()
        space = self._bound_space(opened)
        backend = backend_info(self._spec.backend)
        trials = Trials(
            self._request, backend, self._study, self._budget, self._emit, opened, space.layout, fleet.__len__
        )
        limit_s = lease_s(opened, self._request.compile_timeout_s)
        with Coordinator(fleet, trials, self._leases, self._emit, limit_s, is_shared=is_shared) as coordinator:
            self._run_trials(coordinator, trials, space, strategy, stop)
        self._stop_if_asked(stop)
        if not self._request.compares:
            return
        stop.after = "this part of the final comparison"
        finals = Finals(
            self._request, self._study, fleet, opened.traits, self._budget, self._emit,
            lambda: self._stop_if_asked(stop),
        )  # fmt: skip
        has_trials = bool(self._study.finished())
        finals.run(space, self._budget.finalists(trials.estimates()), has_trials=has_trials)
        finals.deliver(space, self._folder)
        self._has_delivered = True

    def _bound_space(self, opened: Opened) -> SearchSpace:
        """Return the space for the opened model, and store the model's facts in the study."""
        versions = opened.facts.get("versions", {})
        self._study.check_versions(versions)
        space = bind_space(self._space_spec, self._layout(opened.layout), self._spec, versions)
        # Only now: if the space does not fit the model, the study must stay usable for the corrected space.
        units = self._space_spec.model_dump(mode="json", include={"units", "step_units", "per_layer"})
        self._study.remember(
            fingerprint=dict(self._made_with),
            target={"spec": self._spec.to_dict(), "units": units},
            description=opened.description,
            space_size=str(space.size),
            **opened.facts,
        )
        self._study.add_modules(opened.modules)
        space = replace(space, earlier=self._earlier_studies(space.layout))
        self._emit(TargetReady(description=opened.description, space_size=space.size, units=len(space.layout.units),
                               model_difference=opened.facts.get("model_difference"),
                               seconds=dict(opened.seconds),
                               learns_from=tuple(study.name for study in space.earlier)))  # fmt: skip
        return space

    def _earlier_studies(self, layout: Layout) -> tuple[EarlierStudy, ...]:
        """Return the studies to learn from, as they were when this one first named them."""
        stored = self._study.facts.earlier
        if stored or not self._request.learn_from:
            return stored
        from sktune.tuning import earlier

        is_simulated = backend_info(self._spec.backend).is_simulated
        found = earlier.earlier_studies(
            self._request, self._study.name, layout, is_simulated=is_simulated, is_new=not self._study.finished()
        )
        self._study.remember(earlier=found)
        return found

    def _run_trials(
        self,
        coordinator: Coordinator,
        trials: Trials,
        space: SearchSpace,
        strategy: Strategy,
        stop: Stop,
    ) -> None:
        """Run trials until all are done, the space is exhausted, the search has converged, or the time is up."""
        self._queue(space, strategy)
        while self._wants_another(coordinator, trials, space, strategy, stop):
            finished = self._study.finished()
            if trials.measures_time and not coordinator.is_sampling and self._floor_is_due(finished):
                self._floor_tried_at = finished
                coordinator.sample_noise_floor(finished, partial(self._take_floor, finished))
                if not self._study.facts.floor_looks:
                    coordinator.await_sample()  # the first trials are judged by it
                continue
            coordinator.begin(space, strategy)
        coordinator.finish()
        if self._has_reached:  # those that were running count, too: the same command is answered by all
            self._study.remember(reached=(self._study.finished(), self._request.enough))

    def _wants_another(
        self, coordinator: Coordinator, trials: Trials, space: SearchSpace, strategy: Strategy, stop: Stop
    ) -> bool:
        """Wait until a worker is free, and return whether it should get a new trial."""
        most = self._request.max_trials
        if self._study.finished() + coordinator.unfinished >= most:
            return False
        coordinator.await_worker()
        if stop.requested:
            coordinator.drain()
        self._stop_if_asked(stop)
        if coordinator.is_out_of_time:
            return False
        finished = self._study.finished()
        if finished + coordinator.unfinished >= most:
            return False
        if not self._budget.allows_trial(trials.estimates(), trials.has_plan()):
            self._emit(TimeBudgetSpent(trials=finished))
            return False
        if finished + coordinator.unfinished >= space.size - 1:
            coordinator.finish()  # what runs may be all that is left
            finished = self._study.finished()
            if self._is_exhausted(space):
                self._study.remember(exhausted=True)
                return False
        return not self._has_converged(space, strategy, finished, trials.threshold().noise_floor)

    def _has_converged(self, space: SearchSpace, strategy: Strategy, finished: int, noise_floor: float) -> bool:
        """Whether so little is left to gain that the search ends; where it goes on, it says once that it need not."""
        enough = self._request.enough
        if finished <= len(space.starting_points) or finished == self._looked_at:
            return False
        if not enough and (self._told or finished < LOOK_FROM or finished % LOOK_EVERY):
            return False
        self._looked_at = finished
        threshold = max(enough or CONVERGED_GAIN, noise_floor)
        predictor, trials = self._predictor(space, strategy), self._study.trials()
        expected = predictor.outlook(trials).expected_gain_left
        # The bound takes longer, and is lower only where earlier studies make the expectation too high.
        if expected >= threshold or (left := predictor.gain_left(trials)) >= threshold:
            return False
        self._told = True
        self._emit(Converged(trials=finished, expected_gain_left=expected, gain_left=left, threshold=threshold,
                             stops=enough is not None))  # fmt: skip
        self._has_reached = enough is not None
        return self._has_reached

    def _predictor(self, space: SearchSpace, strategy: Strategy) -> PartitionSampler:
        """Return the sampler that has learned from the trials; a new one if the strategy knows nothing of savings."""
        seed = self._request.seed
        used = self._study.sampler_in_use(strategy, seed)
        return used if isinstance(used, PartitionSampler) else PartitionSampler(space, seed)

    def _remember_gain_left(self, strategy: Strategy) -> None:
        """Store the bound on what any plan saves beyond the answer, compared or not, which completes a search."""
        if not self._study.finished():
            return
        result = result_of(self._study, self._folder)
        number = result.winner.number if result.winner else None
        answer = next((record.plan for record in result.trials if record.number == number), Plan())
        compared = result.winner.speedup if result.winner else None
        predictor = self._predictor(self._study.space(), strategy)
        left = predictor.gain_left(self._study.trials(), answer, compared)
        self._study.remember(gain_left=left if math.isfinite(left) else None)
        if self._has_delivered:
            self._study.remember(is_complete=True)

    def _floor_is_due(self, finished: int) -> bool:
        samples = self._study.facts.floor_looks
        is_due = not samples or finished >= samples[-1].before_trial + TRIALS_PER_FLOOR_SAMPLE
        return is_due and finished != self._floor_tried_at

    def _take_floor(self, finished: int, sample: NoiseFloorSample) -> None:
        """Store a comparison of the baseline with itself."""
        samples = (*self._study.facts.floor_looks, sample)
        self._study.remember(floor_looks=samples)
        self._emit(NoiseFloor(before_trial=finished, ratio=sample.speedup.ratio, ci95=sample.speedup.bounds,
                              noise_floor=self._study.facts.noise_floor, drift=drift(samples),
                              noise=sample.noise))  # fmt: skip

    def _layout(self, traced: Layout) -> Layout:
        """Return the study's layout: a resumed search must see the time shares of the first trace again."""
        if (layout := self._study.facts.layout) is None:
            if self._request.profile:
                from sktune.profiling import hints

                traced = hints.with_time_shares(traced, self._request.profile)
                traced = hints.with_operator_times(traced, self._request.profile)
            self._study.remember(layout=traced)
            return traced
        if layout.digest != traced.digest:
            raise BadInputError(
                f"the model of study {self._study.name!r} now has other units; name a new study with --study"
            )
        return layout

    def _queue(self, space: SearchSpace, strategy: Strategy) -> None:
        """Queue the points to try first, those asked for before others, as far as they are new and trials are left.

        One that this call does not come to would be in the way of what a later call is asked for.
        """
        known = {record.plan for record in self._study.records() if record.outcome}
        points = (*self._request.points, *queued_first(self._request, space, strategy))
        new = [point for point in points if space.plan(point.values) not in known]
        left = self._request.max_trials - self._study.finished()
        self._study.queue(new if math.isinf(left) else new[: int(left)])

    def _is_exhausted(self, space: SearchSpace) -> bool:
        # A probe's plan may be outside the space.
        distinct = {record.plan for record in self._study.records() if record.outcome and not record.is_probe}
        if len(distinct - {Plan()}) < space.size - 1:
            return False
        self._emit(SpaceExhausted(plans=len(distinct)))
        return True

    def _stop_if_asked(self, stop: Stop) -> None:
        if stop.requested:
            of_all = "" if math.isinf(self._request.max_trials) else f" of {self._request.max_trials}"
            raise InterruptedSearchError(
                f"stopped after {self._study.finished()}{of_all} trials; run the same command to continue"
            )
