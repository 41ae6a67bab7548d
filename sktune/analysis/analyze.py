"""`sktune analyze`: from a model to a recommendation within a time budget; what the scope guide calls 自动分析工具.

The study is the only record: layout, options and figures are read from it, so that the same analysis can be told again.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sktune.analysis import report
from sktune.analysis.decision import BEST, FIRST, GOALS, Findings, ScopeOption, walk
from sktune.analysis.guide_options import OptionResult, Status, option_results
from sktune.analysis.model import Analysis, Command, walk_summary, walk_told
from sktune.analysis.model_folder import Place, place_of, planned_change, searched_on
from sktune.analysis.recommendation import Recommendation, recommend, risks
from sktune.analysis.sentences import LANGUAGES, Language, Sentences
from sktune.backends.availability import BackendChoice, best_backend
from sktune.core.errors import BadInputError, StudyError, TargetError
from sktune.core.events import Event, Listener
from sktune.core.events.analysis import AnalysisStarted, GuideWalked
from sktune.core.events.search import SearchStarted, TargetReady
from sktune.measure.winner import FinalPlan, Verdict
from sktune.reports.plan_output import plan_yaml
from sktune.study.facts import StudyFacts
from sktune.study.result import BEST_PLAN, SearchResult, backend_of
from sktune.study.study import TuningStudy, sqlite_url
from sktune.targets.presets import FULL
from sktune.tuning import fewer_layers, profile_hints
from sktune.tuning.request import Request

FIRST_TRIALS = 8
"""Trials of a first attempt: the guide's options, and the starting points that presets add to them."""
FILES_S = 3.0
"""Of the time budget, for what comes after the search: the change of a source, the files."""
MORE_TIME = "30m"
FIRST_PLAN = "first_attempt_plan.yaml"


@dataclass(frozen=True)
class AnalysisRequest:
    """What an analysis is asked for.

    Attributes:
        search: the model, its options, and the time budget; trials and the end of the search are the analysis's own.
        goal: ``first`` attempt or ``best`` performance.
        language: ``en`` or ``zh``.
        place: where the plan shall go; None where only the plan is wanted.
        out: folder of the skill's files; None for the study's.
    """

    search: Request
    goal: str
    language: Language
    place: Place | None = None
    out: Path | None = None

    @classmethod
    def of(
        cls,
        model: str | None,
        recipe: Path | None,
        folder: Path | None,
        yaml: Path | None,
        goal: str,
        language: str,
        out: Path | None = None,
        **search: Any,
    ) -> "AnalysisRequest":
        """Check what a user gives; ``search`` are other fields of ``Request``.

        Raises:
            BadInputError: one line with the mend.
        """
        if goal not in GOALS:
            raise BadInputError(f"--goal is {' or '.join(GOALS)}; got {goal!r}")
        if language not in LANGUAGES:
            raise BadInputError(f"--language is {' or '.join(LANGUAGES)}; got {language!r}")
        place = place_of(folder, yaml)
        chosen = LANGUAGES[LANGUAGES.index(language)]
        named, program = searched_on(model, recipe, folder)
        return cls(Request(named, recipe=program, **search), goal, chosen, place, out)


def analyze(asked: AnalysisRequest, listener: Listener = lambda event: None, began_s: float | None = None) -> Analysis:
    """Search within the budget, and return what the guide's options came to and what to do.

    Args:
        asked: what to analyze.
        listener: called with each event.
        began_s: when the time budget began, on the clock of ``time.monotonic``; None for now.

    Raises:
        SktuneError: as a search would.
    """
    words = Sentences(asked.language)
    request, choice = _with_backend(asked.search)
    spec, _ = request.target()
    told = words(f"backend.{choice.why}", backend=spec.backend, device=spec.device)
    listener(
        AnalysisStarted(model=_name(request), goal=asked.goal, backend=spec.backend, device=spec.device, lines=[told])
    )
    guide = _Guide(asked, request, words, listener)
    result = _searched(asked, request, guide, began_s)
    study = _study_of(result.study, result.folder)
    if request.profile:
        study.remember(profile=profile_hints.figures(request.profile))
    result = replace(result, facts=study.facts)
    analysis = _analysis(asked, request, result, guide, option_results(result, study.space()), told, spec.sequences)
    return replace(analysis, files=report.write(analysis, asked.out or result.folder))


def _analysis(
    asked: AnalysisRequest,
    request: Request,
    result: SearchResult,
    guide: "_Guide",
    options: tuple[OptionResult, ...],
    backend_told: str,
    batch: int | None,
) -> Analysis:
    """Return what follows from the study, before its files are written."""
    words = Sentences(asked.language)
    findings = guide.findings(result.facts, options)
    way = walk(findings)
    recommendation = recommend(result, options, way, asked.goal)
    plan = _plan_file(result, recommendation)
    return Analysis(
        model=_name(request),
        words=words,
        backend_told=backend_told,
        batch=batch,
        result=result,
        findings=findings,
        walk=way,
        profile=result.facts.profile if request.profile else None,
        options=options,
        recommendation=recommendation,
        plan=plan,
        place=asked.place,
        change=planned_change(asked.place, plan) if asked.place and plan else None,
        risks=risks(words, result, options, recommendation, _name(request), batch, asked.place),
        commands=_commands(asked, request, result, plan),
    )


class _Guide:
    """Walks the guide's tree as soon as the model is known, and tells where it leads."""

    def __init__(self, asked: AnalysisRequest, request: Request, words: Sentences, listener: Listener) -> None:
        self._asked, self._request, self._words, self._listener = asked, request, words, listener
        self._study, self._folder = "", Path()

    def __call__(self, event: Event) -> None:
        """Hand an event on, and follow the one that says that the model is there."""
        self._listener(event)
        if isinstance(event, SearchStarted):
            self._study, self._folder = event.study, Path(event.folder)
        if isinstance(event, TargetReady):
            findings = self.findings(_study_of(self._study, self._folder).facts)
            way = walk(findings)
            lines = walk_told(self._words, findings, way)
            summary = walk_summary(self._words, findings, way)
            self._listener(GuideWalked(**summary, lines=lines))

    def findings(self, facts: StudyFacts, options: Sequence[OptionResult] = ()) -> Findings:
        """Return what the tree's questions are answered from: the study's layout, and what became of ``options``."""
        layout = facts.layout
        assert layout is not None  # the model has been traced
        backend = backend_of(facts)
        is_simulated = backend is not None and backend.is_simulated
        source = "simulated" if is_simulated else "traced"
        if self._request.profile:
            layout, source = profile_hints.with_time_shares(layout, self._request.profile), "profile"
        attention = [row.status for row in options if row.option is ScopeOption.ATTENTION and row.trial is not None]
        # A simulation compares no bits.
        passed = attention[0] in (Status.PASSED, Status.SLOWER) if attention and not is_simulated else None
        return Findings.of(layout, self._asked.goal, source, passed)


def _with_backend(request: Request) -> tuple[Request, BackendChoice]:
    """Return the request on the best backend there is, unless it names one."""
    if request.recipe:
        spec, _ = request.target()
        return request, BackendChoice(spec.backend, spec.device, "recipe")
    if request.backend or request.device:
        return request, BackendChoice(request.backend or "", request.device, "asked")
    choice = best_backend(is_full_scale=request.scale == FULL)
    return replace(request, backend=choice.backend, device=choice.device), choice


def _searched(asked: AnalysisRequest, request: Request, guide: _Guide, began_s: float | None) -> SearchResult:
    """Search until a first attempt's plans are tried, nothing more is expected, or the time is spent."""
    budget_s = request.time_budget_s and max(request.time_budget_s - FILES_S, 1.0)
    trials = FIRST_TRIALS if asked.goal == FIRST else None
    limited = replace(
        request,
        trials=trials,
        time_budget_s=budget_s,
        until_converged=asked.goal != FIRST,
        exact_starting_points=True,
    )
    try:
        return fewer_layers.search(limited, guide, began_s)
    except TargetError as failure:
        if asked.place and request.model == str(asked.place.folder):
            raise TargetError(f"{failure}; name a model to search on with --model") from failure
        raise


def _study_of(name: str, folder: Path) -> TuningStudy:
    return TuningStudy.open(name, sqlite_url(folder.resolve()), create=False)


def _plan_file(result: SearchResult, recommendation: Recommendation) -> Path | None:
    """Return the plan file of what is recommended; a first attempt that is not the winner gets one of its own."""
    path = result.folder / FIRST_PLAN
    if recommendation.trial is None or recommendation.speedup is None:
        return None
    if result.winner and result.winner.number == recommendation.trial:
        return result.folder / BEST_PLAN
    speedups = result.comparison.speedups.get(str(recommendation.trial), ()) if result.comparison else ()
    chosen = FinalPlan(
        recommendation.trial, recommendation.plan, speedups or (recommendation.speedup,), recommendation.speedup
    )
    comparison = result.comparison if recommendation.compared else None
    try:
        text = plan_yaml(replace(result, verdict=Verdict(chosen, ()), comparison=comparison))
        path.write_text(text, encoding="utf-8")
    except OSError as failure:
        raise StudyError(f"{path} cannot be written ({failure.strerror}); free it and run again") from failure
    return path


def _commands(asked: AnalysisRequest, request: Request, result: SearchResult, plan: Path | None) -> tuple[Command, ...]:
    """Return what to run next, the most useful first."""
    commands = []
    of_study = ["--study", result.study, "--runs", str(request.runs)]
    place = [*(["--yaml", str(asked.place.yaml)] if asked.place and asked.place.yaml else [])]
    if plan and asked.place:
        commands.append(_command("next.apply", ["apply", str(plan), "--to", str(asked.place.folder), *place]))
    if asked.place:
        place = ["--dir", str(asked.place.folder), *place]
    same = ["--language", asked.language, *place]
    if not request.recipe and not result.is_of_npu:
        words = ["analyze", *_model_words(request, with_backend=False), "--device", "npu", "--goal", asked.goal, *same]
        commands.append(_command("next.npu", words))
    model = _model_words(request, with_backend=True)
    if asked.goal == FIRST:
        commands.append(_command("next.best", ["analyze", *model, *of_study, "--goal", BEST, *same]))
    commands.append(_command("next.search", ["search", *model, *of_study, "--time-budget", MORE_TIME]))
    commands.append(_command("next.show", ["show", result.study, "--why", "--runs", str(request.runs)]))
    return tuple(commands)


def _command(purpose: str, words: Sequence[str]) -> Command:
    return Command(purpose, shlex.join(["sktune", *words]))


def _model_words(request: Request, *, with_backend: bool) -> list[str]:
    """Return the options that name the same model again."""
    names = ("scale", "dtype", *(("backend", "device") if with_backend else ()), "batch", "context", "profile")
    given = [(f"--{name}", str(value)) for name in names if (value := getattr(request, name)) is not None]
    seed = [("--seed", str(request.seed))] if request.seed else []
    named = ("--recipe", str(request.recipe)) if request.recipe else ("--model", request.model)
    return [word for pair in [named, *given, *seed] for word in pair]


def _name(request: Request) -> str:
    """Return what is searched on, as the user named it."""
    return str(request.recipe or request.model)
