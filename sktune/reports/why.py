"""Why: what a study has learned about units, borders, options and segments, and what it would try next."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import ref

import numpy as np
from optuna.trial import FrozenTrial

from sktune.core.events.studies import BlamedSegment, EarlierStudyShown, Effect, Experiment, WhyShown
from sktune.core.plan import Options, Plan, Scope, options_text
from sktune.core.space import SearchSpace
from sktune.learning.contributions import Contribution, Prediction, contributions, predictions
from sktune.learning.device import found
from sktune.learning.evidence import Vector
from sktune.learning.history import Learned
from sktune.learning.savings import Described, Posterior
from sktune.learning.segments import SegmentCatalogue
from sktune.learning.threads import one_blas_thread
from sktune.samplers.partition import Outlook
from sktune.study.result import SearchResult
from sktune.study.stored_space import space_of


@dataclass(frozen=True)
class SegmentSavings:
    """What one scope over the units ``first`` to ``last`` of a layer saves, in ms.

    Attributes:
        kind: the layer kind.
        units: keys of its units.
        saving_ms, sd_ms: mean and standard deviation by first and last unit, shape (units, units); NaN where no such
            scope exists.
        tried: by first and last unit, the number of plans that had such a scope, in any layer of any kind.
        in_scope: for each unit of the layer, the number of its scope in the incumbent plan; 0 for none.
    """

    kind: str
    units: tuple[str, ...]
    saving_ms: Vector
    sd_ms: Vector
    tried: Vector
    in_scope: tuple[int, ...]


@dataclass(frozen=True)
class Why(WhyShown):
    """What a study has learned, and from what. All savings are per decode step, against the baseline.

    Attributes:
        segments: what scopes over consecutive units save, by layer kind.
        parts: of the expected saving of the winner, or else of the incumbent, as shares of the baseline.
        predictions: of the complete plans, each from the other trials.
    """

    segments: tuple[SegmentSavings, ...]
    parts: tuple[Contribution, ...]
    predictions: tuple[Prediction, ...]


@one_blas_thread()
def explain(
    space: SearchSpace,
    trials: Sequence[FrozenTrial],
    baseline_ms: float,
    plan: Plan | None = None,
    outlook: Outlook | None = None,
) -> Why | None:
    """Return what was learned from ``trials``; None before anything was measured.

    Args:
        space: of the study.
        trials: all trials of the study.
        baseline_ms: latency of the baseline's step.
        plan: whose saving to take apart; None for the incumbent.
        outlook: what further trials are expected to find; None to leave that out.
    """
    learned = Learned(space)
    learned.read_once(trials)
    if not learned.model.count:
        return None
    posterior = learned.posterior()
    tried = [plan for plan in learned.seen if not plan.is_baseline]
    return Why(
        baseline_ms,
        _of_units(learned, posterior, tried, baseline_ms),
        _of_borders(learned, posterior, tried, baseline_ms),
        _of_options(learned, posterior, tried, baseline_ms),
        _blamed(learned),
        _experiment(learned, posterior, outlook.candidates, baseline_ms) if outlook else None,
        outlook.expected_gain_left if outlook else None,
        posterior.chosen.step_noise,
        found(posterior),
        _of_earlier(learned, baseline_ms),
        tuple(_savings(learned, posterior, kind, baseline_ms) for kind in space.layout.kinds),
        contributions(learned, posterior, learned.incumbent if plan is None else plan),
        predictions(learned, posterior),
    )


def _of_earlier(learned: Learned, baseline_ms: float) -> tuple[EarlierStudyShown, ...]:
    model, beliefs = learned.model, learned.beliefs()
    rows = model.describe([complete.plan for complete in learned.ranked]).rows
    saved = np.array([complete.saving for complete in learned.ranked])
    found = []
    for index, study in enumerate(model.earlier):
        alone = replace(beliefs[0].posterior.chosen, trusted=(index,))
        weight = sum(belief.weight for belief in beliefs if index in belief.posterior.chosen.trusted)
        error_ms, spread_ms = (
            baseline_ms * float(np.sqrt(np.mean(each**2))) if len(saved) else None
            for each in (rows @ model.prior_mean(alone) - saved, saved)
        )
        found.append(EarlierStudyShown(study.name, model.shared_with(study), weight, error_ms, spread_ms))
    return tuple(found)


def _effect(posterior: Posterior, name: str, row: Vector, trials: int, baseline_ms: float) -> Effect:
    mean, sd = posterior.predict(row[None, :])
    low, high = float(mean[0] - 1.96 * sd[0]), float(mean[0] + 1.96 * sd[0])
    return Effect(name, float(mean[0]) * baseline_ms, (low * baseline_ms, high * baseline_ms), trials)


def _of_units(learned: Learned, posterior: Posterior, tried: Sequence[Plan], baseline_ms: float) -> tuple[Effect, ...]:
    catalogue = learned.catalogue
    effects = []
    for name in dict.fromkeys(catalogue.types):
        key = name.partition(".")[2]
        row = _row(posterior, catalogue, {("unit", "unit"), ("unit key", key), ("unit type", name)})
        at = catalogue.types.index(name)
        row += posterior.model.operators_row(int(catalogue.class_of[at, at]), _options(learned))
        count = sum(any(name in catalogue.types[first : last + 1] for first, last in catalogue.positions(plan))
                    for plan in tried)  # fmt: skip
        effects.append(_effect(posterior, name, row, count, baseline_ms))
    return tuple(effects)


def _of_borders(
    learned: Learned, posterior: Posterior, tried: Sequence[Plan], baseline_ms: float
) -> tuple[Effect, ...]:
    catalogue = learned.catalogue
    units = catalogue.layout.units
    effects = []
    for name in posterior.model.borders:
        at = next(position for position in range(1, catalogue.n_units) if catalogue.border(position) == name)
        crossing = {("crossing", "crossing")} if units[at - 1].layer != units[at].layer else set()
        row = _row(posterior, catalogue, {("border type", name), *crossing})
        if catalogue.class_of[at - 1, at] >= 0:
            both, left, right = (
                posterior.model.operators_row(int(catalogue.class_of[pair]), _options(learned))
                for pair in ((at - 1, at), (at - 1, at - 1), (at, at))
            )
            row += both - left - right
        count = sum(_holds_border(catalogue, plan, name) for plan in tried)
        effects.append(_effect(posterior, name, row, count, baseline_ms))
    return tuple(effects)


def _options(learned: Learned) -> Options:
    """Return the options of the best plan's scopes."""
    return learned.incumbent.scopes[0].options if learned.incumbent.scopes else ()


def _holds_border(catalogue: SegmentCatalogue, plan: Plan, name: str) -> bool:
    return any(
        catalogue.border(position) == name
        for first, last in catalogue.positions(plan)
        for position in range(first + 1, last + 1)
    )


def _row(posterior: Posterior, catalogue: SegmentCatalogue, wanted: set[tuple[str, str]]) -> Vector:
    row = np.zeros(len(posterior.mean))
    for index, feature in enumerate(catalogue.features):
        row[index] = (feature.group, feature.name) in wanted
    return row


def _of_options(
    learned: Learned, posterior: Posterior, tried: Sequence[Plan], baseline_ms: float
) -> tuple[Effect, ...]:
    incumbent, model = learned.incumbent, learned.model
    effects = []
    for name, value in (*model.options, *model.step_options):
        bare = _without(incumbent, name)
        if (name, value) in model.step_options:
            changed = Plan(bare.scopes, (*bare.options, (name, value)))
        else:
            changed = bare.with_option(name, value)
        row = model.row(changed) - model.row(bare)
        carried = [{*plan.options, *(option for scope in plan.scopes for option in scope.options)} for plan in tried]
        count = sum((name, value) in options for options in carried)
        effects.append(_effect(posterior, options_text(((name, value),)), row, count, baseline_ms))
    return tuple(effects)


def _without(plan: Plan, name: str) -> Plan:
    scopes = tuple(
        replace(scope, options=tuple(option for option in scope.options if option[0] != name)) for scope in plan.scopes
    )
    return Plan(scopes, tuple(option for option in plan.options if option[0] != name))


def _blamed(learned: Learned) -> tuple[BlamedSegment, ...]:
    blamed = []
    for segment, options in learned.feasibility.blamed():
        numbers = learned.failed_in(segment, options)
        reasons = {str(learned.reasons[number]) for number in numbers}
        reason = ", ".join(sorted(reasons))
        blamed.append(BlamedSegment(learned.catalogue.name(segment), dict(options), tuple(numbers), reason))
    return tuple(blamed)


def _experiment(
    learned: Learned, posterior: Posterior, candidates: Sequence[Plan], baseline_ms: float
) -> Experiment | None:
    new = [plan for plan in dict.fromkeys(candidates) if plan not in learned.seen]
    if not new:
        return None
    mean, sd = posterior.predict_plans(learned.model.describe(new))
    best = learned.ranked[0].saving if learned.ranked else 0.0
    may_win = mean + 1.96 * sd > best
    if not may_win.any():
        return None
    index = int(np.argmax(np.where(may_win, sd, -1.0)))
    low, high = mean[index] - 1.96 * sd[index], mean[index] + 1.96 * sd[index]
    return Experiment(
        new[index], float(mean[index]) * baseline_ms, (float(low) * baseline_ms, float(high) * baseline_ms)
    )


def _savings(learned: Learned, posterior: Posterior, kind: str, baseline_ms: float) -> SegmentSavings:
    catalogue, layout, model = learned.catalogue, learned.space.layout, learned.model
    # The last layer of the kind: the first one may be next to units outside of layers.
    layer = max(index for index, each in enumerate(layout.layers) if each.kind == kind)
    positions = [index for index, unit in enumerate(layout.units) if unit.layer == layer]
    options = _options(learned)
    cells = [
        (row, column)
        for row, first in enumerate(positions)
        for column, last in enumerate(positions)
        if first <= last and catalogue.class_of[first, last] >= 0
    ]
    names = [layout.units[position].name for position in positions]
    described = model.describe([Plan((Scope(names[row], names[column], options),)) for row, column in cells])
    means, deviations = posterior.predict_plans(Described(described.rows - model.row(Plan()), described.unknown))
    counts = Counter(segment for plan in learned.seen for segment in {key[0] for key in learned.keys(plan)})
    saving_ms, sd_ms, tried = (np.full((len(positions), len(positions)), empty) for empty in (np.nan, np.nan, 0.0))
    for (row, column), mean, sd in zip(cells, means, deviations, strict=True):
        saving_ms[row, column], sd_ms[row, column] = mean * baseline_ms, sd * baseline_ms
        tried[row, column] = counts[int(catalogue.class_of[positions[row], positions[column]])]
    scope_of = {
        position: number
        for number, (first, last) in enumerate(catalogue.positions(learned.incumbent), start=1)
        for position in range(first, last + 1)
    }
    numbers = tuple(scope_of.get(position, 0) for position in positions)
    keys = tuple(layout.units[position].key for position in positions)
    return SegmentSavings(kind, keys, saving_ms, sd_ms, tried, numbers)


_last: list[tuple[ref[SearchResult], Why | None]] = []
"""What was learned from the last result: its page and each of its figures ask."""


def learned_from(result: SearchResult, outlook: Outlook | None = None) -> Why | None:
    """Return what a study has learned; None before anything was measured."""
    for known, why in _last if outlook is None else ():
        if known() is result:
            return why
    space = space_of(result.facts, result.history)
    if space is None or result.baseline_ms is None:
        return None
    plan = result.winner.plan if result.winner else None
    why = explain(space, result.history, result.baseline_ms, plan, outlook)
    if outlook is None:
        _last[:] = [(ref(result), why)]
    return why
