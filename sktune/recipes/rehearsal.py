"""Rehearsals: the program of a recipe is started once, and nothing is compiled; what a search would do follows."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from optuna.trial import TrialState

from sktune.backends import backend_info
from sktune.core.errors import BackendError, BadInputError, TargetError
from sktune.core.events.base import Event
from sktune.core.events.commands import DurationForetold, Finding, Rehearsed, State, TrialForetold
from sktune.core.events.search import TrialFinished, TrialStarted
from sktune.core.layout import Layout
from sktune.core.plan import Plan
from sktune.core.space import SearchSpace, SpaceSpec
from sktune.program.sktune_program.task import VERIFIED_STEPS, DecodeCall, RankTask
from sktune.recipes.agreement import decode_step
from sktune.recipes.checked_runs import BASELINES, can_alternate, unmeasured_reason
from sktune.recipes.rank_reports import InspectedCall, RankReport
from sktune.recipes.recipe_check import OTHER_INFERENCE, examine_recipe
from sktune.recipes.run import Launcher, last_line_text
from sktune.recipes.runner import MAX_FINALISTS, traits_of
from sktune.recipes.step_times import MIN_ALTERNATING, MIN_STEPS
from sktune.samplers import find_strategy
from sktune.study.strategy import Strategy
from sktune.study.study import TuningStudy, sqlite_url
from sktune.targets.recipe import Recipe, read_recipe
from sktune.tuning.interrupt import stopped_at_once
from sktune.tuning.loop import TRIALS_PER_FLOOR_SAMPLE, queued_first
from sktune.tuning.request import DEFAULT_TRIALS, Request, bind_space, space_spec
from sktune.tuning.time_budget import TimeBudget
from sktune.tuning.trials import Trials
from sktune.worker.jobs import Opened, RunnerSetup

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


ASSUMED_COMPILE_S: Mapping[bool, float] = {True: 15.0, False: 60.0}
"""Seconds that a run compiles, by whether it is sktune that compiles (Inductor). Both are assumed: no run has compiled
when they are used, and no figure of an NPU is known."""
SHOWN_TRIALS = (10, 20, 40)
"""Numbers of trials whose durations are told where the request has none."""
NEEDS_RECIPE = "--rehearse starts the program of a recipe once; give --recipe, or use `sktune inspect`"
OF_DEVICES = frozenset({"ranks", "memory of devices"})
"""Findings on a recipe that stand-ins can make up for in a rehearsal."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a rehearsal has shown.

    Attributes:
        recipe: that was rehearsed.
        findings: of ``doctor --recipe``.
        start: the first start.
        space: of the search.
        first: the trials that do not depend on results.
        later: names of the other starting points, which the sampler tries next in an order that depends on results.
        trials: numbers of trials whose durations were asked for.
        verify_steps: decode steps on which finalists would be compared.
    """

    recipe: Recipe
    findings: tuple[Finding, ...]
    start: FirstStart
    space: SearchSpace
    first: tuple[TrialForetold, ...]
    later: tuple[str, ...]
    trials: tuple[int, ...]
    verify_steps: int

    @property
    def can_start(self) -> bool:
        """Whether a search could start on this machine."""
        return not self.start.stand_ins and all(finding.state is State.OK for finding in self.findings)

    @property
    def kinds(self) -> dict[str, int]:
        """Number of layers of each kind."""
        return dict(Counter(layer.kind for layer in self.start.layout.layers))

    @property
    def compile_s(self) -> float:
        """Seconds that a run is assumed to compile."""
        return ASSUMED_COMPILE_S[backend_info(self.recipe.backend).compiles_programs]

    @property
    def run_s(self) -> float:
        """Seconds of a run with a plan: the start's own, and the compilation that is assumed."""
        return self.start.seconds + self.compile_s

    def runs(self, trials: int) -> int:
        """Return how often a search with so many trials starts the program after its first start.

        Said for one that finds a winner, whose last runs verify it, and in which no trial fails.
        """
        alternates = self.start.alternates
        floor_samples = math.ceil(trials / TRIALS_PER_FLOOR_SAMPLE) - alternates  # a baseline run is the first of them
        finalists = min(MAX_FINALISTS, trials)
        verified = 2 if min(self.verify_steps, self.start.steps) > VERIFIED_STEPS else 0
        processes = backend_info(self.recipe.backend).final_processes
        return BASELINES + floor_samples + trials + verified + processes * (finalists + (not alternates))

    def search_s(self, trials: int) -> float:
        """Return how long a search with so many trials takes, its first start included."""
        return self.start.seconds + self.runs(trials) * self.run_s

    @property
    def event(self) -> Rehearsed:
        """The event that tells it."""
        start = self.start
        return Rehearsed(
            recipe=self.recipe.name,
            can_start=self.can_start,
            findings=self.findings,
            stand_ins=start.stand_ins,
            decode=start.decode.function,
            ranks=self.recipe.all_ranks,
            units=len(start.layout.units),
            layers=len(start.layout.layers),
            kinds=self.kinds,
            plans=self.space.size,
            decode_steps=start.steps,
            loading_seconds=start.loading_s,
            step_seconds=start.step_s,
            seconds=start.seconds,
            assumed_compile_seconds=self.compile_s,
            first_trials=self.first,
            starting_points=self.later,
            durations=[
                DurationForetold(trials, 1 + self.runs(trials), self.search_s(trials),
                                 self.runs(trials) * self.compile_s)
                for trials in self.trials
            ],
        )  # fmt: skip


def rehearse(request: Request) -> Rehearsal:
    """Check a recipe as ``doctor`` does, start its program once, and return what a new search would do.

    No study is created, and nothing that sktune writes is left.

    Raises:
        BadInputError: the request has no recipe, or its program would run on other hosts.
        BackendError: something is missing that the start needs, or the program does not run.
        TargetError: no call could be a decode step, or the ranks run different modules.
        SpaceError: the space does not fit the model.
        InterruptedSearchError: Ctrl-C, SIGTERM or SIGHUP.
    """
    if request.recipe is None:
        raise BadInputError(NEEDS_RECIPE)
    if request.engine != "local":
        raise BadInputError("--rehearse starts the program on this host alone; leave out --engine")
    spec, preset = request.target()
    wanted = space_spec(request, spec, preset)
    strategy = find_strategy(request.strategy)
    findings = examine_recipe(request.recipe)
    recipe = read_recipe(Path(spec.source))
    _refuse_unstartable(findings)
    with stopped_at_once("the rehearsal"), _scratch(request.runs) as folder:
        start = first_start(recipe, wanted, folder, stands_in=spec.device == "npu")
        # The start has waited for another inference to end.
        findings = tuple(each for each in findings if each.what != OTHER_INFERENCE or each.state is State.OK)
        space = bind_space(wanted, start.layout, spec)
        setup = RunnerSetup(spec, wanted, folder, folder / "cache")
        first = tuple(_first_trials(request, setup, space, strategy, start))
    tried = {trial.origin for trial in first}
    later = [point.name for point in space.starting_points if point.name not in tried]
    limit = space.size - 1  # without the baseline
    asked = (request.trials,) if request.trials is not None else SHOWN_TRIALS
    return Rehearsal(
        recipe, findings, start, space, first, tuple(later) if strategy.takes_starting_points else (),
        tuple(dict.fromkeys(min(trials, limit) for trials in asked)), request.verify_steps,
    )  # fmt: skip


def _refuse_unstartable(findings: Sequence[Finding]) -> None:
    """Raise ``BackendError`` if something is missing that stand-ins and waiting cannot make up for."""
    for finding in findings:
        is_needed = finding.backend in ("recipe", "all") and finding.what not in (*OF_DEVICES, OTHER_INFERENCE)
        if is_needed and finding.state is not State.OK:
            fix = f"; {finding.fix}" if finding.fix else ""
            raise BackendError(f"the program was not started: {finding.what}: {finding.found}{fix}")


@contextmanager
def _scratch(runs: Path) -> Iterator[Path]:
    """Yield a folder beside the studies, as the program may see no other, which is removed with all that is in it."""
    is_new = not runs.exists()
    runs.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(prefix=".rehearsal-", dir=runs, ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    finally:
        if is_new:
            with suppress(OSError):  # something else is in it by now
                runs.rmdir()


def _first_trials(
    request: Request, setup: RunnerSetup, space: SearchSpace, strategy: Strategy, start: FirstStart
) -> Iterator[TrialForetold]:
    """Yield the trials that a new study begins with, up to the first one that depends on a result.

    They are asked of the strategy, in a study that is thrown away.
    """
    backend = backend_info(setup.spec.backend)
    study = TuningStudy.open("rehearsal", sqlite_url(setup.folder), create=True)
    study.queue(queued_first(request, space, strategy))
    seconds = {"load": start.seconds, "baseline": start.seconds}
    opened = Opened(start.layout, setup.spec.name, seconds, traits=traits_of(backend))
    events: list[Event] = []
    trials = Trials(request, backend, study, TimeBudget(math.inf, 0.0), events.append, opened, space.layout, lambda: 1)
    runs = False
    for _ in range(min(request.trials or DEFAULT_TRIALS, space.size - 1)):
        if runs and not any(trial.state is TrialState.WAITING for trial in study.trials()):
            return
        events.clear()
        runs |= trials.propose(space, strategy) is not None
        began = next(event for event in events if isinstance(event, TrialStarted))
        refused = next((event.detail for event in events if isinstance(event, TrialFinished)), "")
        run_s = 0.0 if refused else start.seconds + ASSUMED_COMPILE_S[backend.compiles_programs]
        yield TrialForetold(began.trial, began.origin, began.shape, refused, run_s)


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
