"""What an analysis recommends, and the risks of relying on it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sktune.analysis.decision import FIRST, ScopeOption, TreeWalk
from sktune.analysis.guide_options import OptionResult, OptionStatus, improvement_percent, option_of
from sktune.analysis.model_folder import ModelFolder
from sktune.core.events.analysis import Risk
from sktune.core.language import Sentences
from sktune.core.outcome import Reason, Speedup
from sktune.core.plan import Plan
from sktune.core.scope_flavour import ScopeFlavour
from sktune.core.scope_options import SUPERKERNEL_OPTIONS
from sktune.core.verification import Verification
from sktune.source.yaml_flag import MODE, NEEDED_MODE
from sktune.study.result import SearchResult

GUIDE_THRESHOLD_PERCENT = 10
"""The saving that the guide requires of a scope, "Q1: 如何判断 Scope 范围是否合适"."""
LISTED = 3
"""Scopes that are named in one sentence; the study's report has all."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to do, and on what evidence.

    Attributes:
        option: of the guide; None if the answer is "no scope".
        trial, plan, speedup: of the recommended plan; None and empty without one.
        compared: whether the figure is from the final comparison.
        why: key of the sentence with the reason.
    """

    option: ScopeOption | None
    why: str
    trial: int | None = None
    plan: Plan = field(default_factory=Plan)
    speedup: Speedup | None = None
    compared: bool = False
    verification: Verification | None = None


def recommend(result: SearchResult, options: Sequence[OptionResult], walk: TreeWalk, goal: str) -> Recommendation:
    """Return the search's winner; for a first attempt the tree's choice or, if not faster, the narrowest that is."""
    if goal == FIRST:
        by_preference = sorted(options, key=lambda row: row.option is not walk.choice)  # stable: the narrowest first
        row = next((row for row in by_preference if row.is_faster), None)
        if row is None or row.plan is None:
            return Recommendation(None, "why.none")
        why = "why.first" if row.option is walk.choice else "why.next_narrowest"
        verification = result.verification_of(row.trial) if row.trial is not None else None
        is_final = row.final is not None
        return Recommendation(row.option, why, row.trial, row.plan, row.final or row.speedup, is_final, verification)
    if not (winner := result.winner):
        return Recommendation(None, "why.none", compared=result.is_compared)
    option = option_of(winner.number, options)
    return Recommendation(
        option, "why.winner", winner.number, winner.plan, winner.speedup, result.is_compared, result.verification
    )


def risks(
    text: Sentences,
    result: SearchResult,
    options: Sequence[OptionResult],
    recommendation: Recommendation,
    model: str,
    batch: int | None,
    place: ModelFolder | None,
) -> tuple[Risk, ...]:
    """Return all risks, the most important first.

    Args:
        text: sentences in the language of the report.
        result, options, recommendation: the study, the guide's options, and the advice.
        model: the model or recipe, as the user named it.
        batch: sequences decoded together; None if unknown.
        place: where the plan is to be applied; None without a model folder.
    """
    extent = result.usage.extent
    parts = (
        _of_figures(text, result, recommendation),
        _of_the_model(text, result, model, batch, place),
        _of_the_plan(text, result, recommendation),
        _of_trials(text, result, options),
        (_risk(text, "prefill"), _risk(text, extent)),
    )
    return tuple(risk for part in parts for risk in part)


def _risk(text: Sentences, name: str, **values: Any) -> Risk:
    return Risk(name, text(f"risk.{name}", **values))


def _of_figures(text: Sentences, result: SearchResult, recommendation: Recommendation) -> Iterable[Risk]:
    if result.is_simulated:
        yield _risk(text, "simulated")
    elif not result.is_of_npu:
        device = result.facts.fingerprint.get("device", "?")
        yield _risk(text, "stand_in", device=device)
        if result.usage.is_own_program:
            yield _risk(text, "kernel_by_kernel")
    if recommendation.trial is not None and not recommendation.compared:
        yield _risk(text, "not_compared")
    elif result.comparison and not result.is_simulated:
        count = len(result.comparison.speedups.get(str(recommendation.trial), ()))
        wanted = result.wanted_processes
        if 0 < count < wanted:
            yield _risk(text, "few_processes", count=count, wanted=wanted)
    noisy = sum(bool(record.outcome and record.outcome.noise) for record in result.trials)
    processes = result.comparison.noise if result.comparison else ()
    if noisy or any(processes):
        values = {"finals": sum(map(bool, processes)), "processes": len(processes)}
        yield _risk(text, "noise", count=noisy, trials=len(result.trials), **values)


def _of_the_model(
    text: Sentences, result: SearchResult, model: str, batch: int | None, place: ModelFolder | None
) -> Iterable[Risk]:
    facts = result.facts
    if facts.fingerprint.get("scale") in ("tiny", "small"):
        yield _risk(text, "small_model", description=facts.description or model)
    if place is None:
        return
    if model != str(place.folder) and not result.usage.is_own_program:
        yield _risk(text, "other_model", model=model, folder=place.folder)
    mode, next_n = (place.settings.get(name) for name in (MODE, "next_n"))
    if mode is not None and mode != NEEDED_MODE:
        yield _risk(text, "mode", mode=mode)
    if batch and place.batch and batch != place.batch:
        whole = place.settings["batch_size"]
        yield _risk(text, "batch", yaml=whole, die=place.batch, searched=batch)
    if next_n:
        yield _risk(text, "draft", next_n=next_n)


def _of_the_plan(text: Sentences, result: SearchResult, recommendation: Recommendation) -> Iterable[Risk]:
    if recommendation.speedup is None:
        return
    gain = improvement_percent(recommendation.speedup)
    if gain <= GUIDE_THRESHOLD_PERCENT:
        yield _risk(text, "below_bar", improvement=f"{gain:.2f}")
    names = dict.fromkeys(name for scope in recommendation.plan.scopes for name, _ in scope.options)
    if result.backend and result.backend.scope_flavour is ScopeFlavour.REGION:
        if names:
            yield _risk(text, "inductor_options", options=", ".join(names))
        return
    undocumented = [name for name in names if name in SUPERKERNEL_OPTIONS and not SUPERKERNEL_OPTIONS[name].documented]
    if undocumented:
        yield _risk(text, "options", options=", ".join(undocumented))


def _of_trials(text: Sentences, result: SearchResult, options: Sequence[OptionResult]) -> Iterable[Risk]:
    trials = len(result.trials)
    failed = [r.outcome for r in result.trials if r.outcome and not r.outcome.is_feasible]
    mismatched = [outcome for outcome in failed if outcome.reason is Reason.MISMATCH]
    if mismatched:
        blamed = _blamed(text, [outcome.blamed for outcome in mismatched])
        yield _risk(text, "mismatch", count=len(mismatched), trials=trials, blamed=blamed)
    broken = [outcome for outcome in failed if outcome.reason is not Reason.MISMATCH]
    if broken:
        reasons = ", ".join(dict.fromkeys(text(f"status.{outcome.reason}") for outcome in broken))
        blamed = _blamed(text, [outcome.blamed for outcome in broken])
        yield _risk(text, "failed", count=len(broken), trials=trials, reasons=reasons, blamed=blamed)
    not_reached = [text(f"option.{row.option}") for row in options if row.status is OptionStatus.NOT_REACHED]
    if not_reached:
        yield _risk(text, "not_reached", options=", ".join(not_reached))


def _blamed(text: Sentences, labels: Iterable[str]) -> str:
    counts = Counter(filter(None, labels))
    return ", ".join(label for label, _ in counts.most_common(LISTED)) or text("none_blamed")
