"""`sktune analyze`: from a model to a recommendation within a time budget; the scope guide calls it 自动分析工具.

The study is the only record: layout, options and figures are read from it, so that an analysis can be reproduced.
"""

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sktune.analysis import report
from sktune.analysis.decision import BEST, FIRST, GOALS, Findings, ScopeOption, walk_tree
from sktune.analysis.guide_options import OptionResult, OptionStatus, option_results
from sktune.analysis.model import SENTENCES, Analysis, Command, decision_steps, walk_lines
from sktune.analysis.model_folder import ModelFolder, model_or_recipe, place_of, planned_change
from sktune.analysis.recommendation import Recommendation, recommend, risks
from sktune.backends.availability import BackendChoice, best_backend
from sktune.core.errors import BadInputError, StudyError, TargetError
from sktune.core.events.analysis import AnalysisStarted, GuideWalked
from sktune.core.events.base import Event, Listener
from sktune.core.events.search import SearchStarted, TargetReady
from sktune.core.files import real_path, write_text
from sktune.core.language import LANGUAGES, Language, Sentences
from sktune.measure.verdict import FinalPlan, Verdict
from sktune.profiling import hints
from sktune.reports.plan_output import plan_yaml
from sktune.source.yaml_flag import CAPTURED_MODE, MODE
from sktune.study.facts import StudyFacts
from sktune.study.result import BEST_PLAN, SearchResult, backend_of
from sktune.study.study import TuningStudy, sqlite_url
from sktune.targets.presets import FULL
from sktune.tuning import loop
from sktune.tuning.request import Request

FIRST_TRIALS = 8
"""Trials of a first attempt: the guide's options, and the starting points that presets add to them."""
FILES_S = 3.0
"""Part of the time budget that is reserved for the steps after the search: the source change and the files."""
MORE_TIME = "30m"
FIRST_PLAN = "first_attempt_plan.yaml"


@dataclass(frozen=True)
class AnalysisRequest:
    """A request for an analysis.

    Attributes:
        search: the model, its options, and the time budget; the analysis decides how many trials to run.
        goal: ``first`` attempt or ``best`` performance.
        language: ``en`` or ``zh``.
        place: where the plan is to be applied; None if only the plan is wanted.
        out: folder for the skill's files; None for the study's folder.
    """

    search: Request
    goal: str
    language: Language
    place: ModelFolder | None = None
    out: Path | None = None

    @classmethod
    def of(
        cls,
        model: str | None = None,
        recipe: Path | None = None,
        folder: Path | None = None,
        yaml: Path | None = None,
        goal: str = BEST,
        language: str = "en",
        out: Path | None = None,
        **search: Any,
    ) -> "AnalysisRequest":
        """Check the user's input; ``search`` are other fields of ``Request``.

        Raises:
            BadInputError: one line with the fix.
        """
        if goal not in GOALS:
            raise BadInputError(f"--goal must be {' or '.join(GOALS)}; got {goal!r}")
        if language not in LANGUAGES:
            raise BadInputError(f"--language must be {' or '.join(LANGUAGES)}; got {language!r}")
        place = place_of(folder, yaml)
        known_language = LANGUAGES[LANGUAGES.index(language)]
        model, recipe = model_or_recipe(model, recipe, folder)
        return cls(Request(model, recipe=recipe, **search), goal, known_language, place, out)


def analyze(
    request: AnalysisRequest, listener: Listener = lambda event: None, began_s: float | None = None
) -> Analysis:
    """Search within the budget, and return the results of the guide's options and a recommendation.

    Args:
        request: what to analyze.
        listener: called with each event.
        began_s: when the time budget began, on the clock of ``time.monotonic``; None for now.

    Raises:
        SktuneError: as a search would.
    """
    text = Sentences(SENTENCES, request.language)
    search, choice = _with_backend(request)
    spec, _ = search.target()
    backend_text = text(f"backend.{choice.why}", backend=spec.backend, device=spec.device)
    listener(
        AnalysisStarted(
            model=_name(search), goal=request.goal, backend=spec.backend, device=spec.device, lines=[backend_text]
        )
    )
    guide = _Guide(request, search, text, listener)
    result = _run_search(request, search, guide, began_s)
    study = _study_of(result.study, result.folder)
    if search.profile:
        study.remember(profile=hints.figures(search.profile))
    result = replace(result, facts=study.facts)
    options = option_results(result, study.space())
    findings = guide.findings(result.facts, options)
    walk = walk_tree(findings)
    recommendation = recommend(result, options, walk, request.goal)
    plan = _plan_file(result, recommendation)
    analysis = Analysis(
        model=_name(search),
        text=text,
        backend_text=backend_text,
        batch=spec.sequences,
        result=result,
        findings=findings,
        walk=walk,
        profile=result.facts.profile if search.profile else None,
        options=options,
        recommendation=recommendation,
        plan=plan,
        place=request.place,
        change=planned_change(request.place, plan) if request.place and plan else None,
        risks=risks(text, result, options, recommendation, _name(search), spec.sequences, request.place),
        commands=_commands(request, search, result, plan),
    )
    return replace(analysis, files=report.write(analysis, request.out or result.folder))


class _Guide:
    """Walks the guide's decision tree as soon as the model is known, and reports where it leads."""

    def __init__(self, request: AnalysisRequest, search: Request, text: Sentences, listener: Listener) -> None:
        self._request, self._search, self._text, self._listener = request, search, text, listener
        self._study, self._folder = "", Path()

    def __call__(self, event: Event) -> None:
        """Forward an event; once the model is loaded, also emit the walk through the tree."""
        self._listener(event)
        if isinstance(event, SearchStarted):
            self._study, self._folder = event.study, Path(event.folder)
        if isinstance(event, TargetReady):
            findings = self.findings(_study_of(self._study, self._folder).facts)
            walk = walk_tree(findings)
            self._listener(
                GuideWalked(
                    model_type=findings.model_type,
                    kinds=findings.kinds,
                    shares=findings.shares,
                    decision=decision_steps(self._text, findings, walk),
                    guide_choice=walk.choice,
                    lines=walk_lines(self._text, findings, walk),
                )
            )

    def findings(self, facts: StudyFacts, options: Sequence[OptionResult] = ()) -> Findings:
        """Return the facts that answer the tree's questions: the study's layout, and the results of ``options``."""
        layout = facts.layout
        assert layout is not None  # the model has been traced
        backend = backend_of(facts)
        is_simulated = backend is not None and backend.is_simulated
        source = "simulated" if is_simulated else "traced"
        if self._search.profile:
            layout, source = hints.with_time_shares(layout, self._search.profile), "profile"
        attention = [row.status for row in options if row.option is ScopeOption.ATTENTION and row.trial is not None]
        # A simulation does not compare bits.
        passed = attention[0] in (OptionStatus.PASSED, OptionStatus.SLOWER) if attention and not is_simulated else None
        return Findings.of(layout, self._request.goal, source, passed)


def _with_backend(request: AnalysisRequest) -> tuple[Request, BackendChoice]:
    """Return the search with the best backend on this machine, unless it names one."""
    search = request.search
    if search.recipe:
        spec, _ = search.target()
        return search, BackendChoice(spec.backend, spec.device, "recipe")
    if search.backend or search.device:
        return search, BackendChoice(search.backend or "", search.device, "asked")
    is_captured = request.place is not None and request.place.settings.get(MODE) == CAPTURED_MODE
    choice = best_backend(is_full_scale=search.scale == FULL, is_captured=is_captured)
    return replace(search, backend=choice.backend, device=choice.device), choice


def _run_search(request: AnalysisRequest, search: Request, guide: _Guide, began_s: float | None) -> SearchResult:
    """Search until the plans of a first attempt are tried, the search has converged, or the time is up."""
    if search.time_budget_s:  # the search's time has begun earlier, by what is reserved
        began_s = time.monotonic() if began_s is None else began_s
        began_s -= max(min(FILES_S, search.time_budget_s - 1.0), 0.0)
    trials = FIRST_TRIALS if request.goal == FIRST else None
    limited = replace(
        search,
        trials=trials,
        until_converged=request.goal != FIRST,
        exact_starting_points=True,
    )
    try:
        return loop.search(limited, guide, began_s)
    except TargetError as failure:
        if request.place and search.model == str(request.place.folder):
            raise TargetError(f"{failure}; name a model to search on with --model") from failure
        raise


def _study_of(name: str, folder: Path) -> TuningStudy:
    return TuningStudy.open(name, sqlite_url(real_path(folder)), create=False)


def _plan_file(result: SearchResult, recommendation: Recommendation) -> Path | None:
    """Return the file of the recommended plan; a first attempt that is not the winner is written to another file."""
    path = result.folder / FIRST_PLAN
    if recommendation.trial is None or recommendation.speedup is None:
        return None
    if result.winner and result.winner.number == recommendation.trial:
        return result.folder / BEST_PLAN
    speedups = result.comparison.speedups.get(str(recommendation.trial), ()) if result.comparison else ()
    recommended = FinalPlan(
        recommendation.trial, recommendation.plan, speedups or (recommendation.speedup,), recommendation.speedup
    )
    comparison = result.comparison if recommendation.compared else None
    try:
        text = plan_yaml(replace(result, verdict=Verdict(recommended, ()), comparison=comparison))
        write_text(path, text)
    except OSError as failure:
        raise StudyError(f"{path} cannot be written ({failure.strerror}); fix that and run again") from failure
    return path


def _commands(
    request: AnalysisRequest, search: Request, result: SearchResult, plan: Path | None
) -> tuple[Command, ...]:
    """Return the commands to run next, the most useful first."""
    commands = []
    of_study = ["--study", result.study, "--runs", str(search.runs)]
    place = [*(["--yaml", str(request.place.yaml)] if request.place and request.place.yaml else [])]
    if plan and request.place:
        commands.append(_command("next.apply", ["apply", str(plan), "--to", str(request.place.folder), *place]))
    if request.place:
        place = ["--dir", str(request.place.folder), *place]
    same = ["--language", request.language, *place]
    if not search.recipe and not result.is_of_npu:
        on_npu = [*_model_arguments(search, with_backend=False), "--device", "npu", "--goal", request.goal, *same]
        commands.append(_command("next.npu", ["analyze", *on_npu]))
    model = _model_arguments(search, with_backend=True)
    if request.goal == FIRST:
        commands.append(_command("next.best", ["analyze", *model, *of_study, "--goal", BEST, *same]))
    commands.append(_command("next.search", ["search", *model, *of_study, "--time-budget", MORE_TIME]))
    commands.append(_command("next.show", ["show", result.study, "--why", "--runs", str(search.runs)]))
    return tuple(commands)


def _command(purpose: str, arguments: Sequence[str]) -> Command:
    return Command(purpose, shlex.join(["sktune", *arguments]))


def _model_arguments(search: Request, *, with_backend: bool) -> list[str]:
    """Return the command-line options that name the same model again."""
    names = ("scale", "dtype", *(("backend", "device") if with_backend else ()), "batch", "context", "profile")
    options = [(f"--{name}", str(value)) for name in names if (value := getattr(search, name)) is not None]
    seed = [("--seed", str(search.seed))] if search.seed else []
    model = ("--recipe", str(search.recipe)) if search.recipe else ("--model", search.model)
    trust = ["--trust"] if search.trust else []
    return [*(argument for pair in [model, *options, *seed] for argument in pair), *trust]


def _name(search: Request) -> str:
    """Return the model or the recipe, as the user named it."""
    return str(search.recipe or search.model)
