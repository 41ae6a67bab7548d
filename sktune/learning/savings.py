"""The savings of scopes: a Bayesian linear model of segments, learned from whole steps and from single scopes.

A plan's saving is a sum over its scopes; a scope's saving is a sum over its units and inner borders, terms for the
scope itself, its length and the layer borders that it crosses, effects of its options, an effect of its class of
segments, and the terms of the law of SuperKernels (``law``). All effects have normal priors whose spread is shared by
group, so that what is learned carries over to plans that were never tried. Spread and noise are chosen by the evidence
(type II maximum likelihood; MacKay 1992, "Bayesian interpolation"), once for each belief about how much options matter
(by the evidence of few trials not at all: a search would never try them again) and whether scopes follow the law.

What earlier studies found is the prior mean of the effects here, each study's times a factor of its own, near 1.
Whether a study is believed at all is one more thing that the evidence chooses.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from sktune.core.earlier import EarlierStudy
from sktune.core.plan import Option, Options, Plan, options_text
from sktune.learning.evidence import Evidence, Vector
from sktune.learning.law import COPIES, Law, Tangent
from sktune.learning.segments import Ints, SegmentCatalogue


@dataclass(frozen=True, slots=True)
class ScopeSaving:
    """The saving of one class of segments in a trial: mean over its scopes, as a share of the baseline step."""

    segment: int
    options: Options
    saving: float
    noise_sd: float


@dataclass(frozen=True, slots=True)
class Observation:
    """The measurements of one trial.

    Attributes:
        plan: that ran.
        saving: of the step, as a share of the baseline; None if only single scopes count.
        noise_sd: of ``saving``.
        scopes: savings of single scopes.
    """

    plan: Plan
    saving: float | None
    noise_sd: float
    scopes: tuple[ScopeSaving, ...] = ()


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The parameters chosen by the evidence.

    Attributes:
        unit_sd: typical saving of one unit, as a share of the baseline step.
        segment_ratio: spread of a segment class's own effect, in units of ``unit_sd`` times the root of its length.
        step_noise, scope_noise: factor from the stated noise to the actual one, including misfit of the model.
        option_ratio: factor from the stated spread of the effects of options to the actual one.
        follows_law: whether scopes save what the law of SuperKernels says, and the other effects what it does not.
        beyond_law: factor from the stated spread of the law's further terms to the actual one.
        trusted: the earlier studies that are believed, by their index.
    """

    unit_sd: float
    segment_ratio: float = 0.5
    step_noise: float = 1.0
    scope_noise: float = 1.0
    option_ratio: float = 1.0
    follows_law: bool = False
    beyond_law: float = 1.0
    trusted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Described:
    """Plans as rows of the linear model.

    Attributes:
        rows: shape (n_plans, n_effects); their product with the effects is the savings of the plans.
        unknown: shape (n_plans,); over the plan's classes of segments without observations, the sum of length times
            squared count, to which the variance that they add is proportional.
    """

    rows: Vector
    unknown: Vector


PRIOR_SD: Mapping[str, float] = {
    "scope": 2.0,
    "unit": 1.0,
    "unit key": 0.7,
    "unit type": 0.7,
    "border type": 1.0,
    "crossing": 1.0,
    "length": 0.1,
    "length step": 1.5,
    "beside": 0.2,
    "captured work": 1.0,
    "option of scope": 0.5,
    "option of unit": 0.2,
    "option of unit type": 0.1,
    "cut": 0.5,
    "observed scope": 0.3,
    "observed unit": 0.1,
}
"""Prior standard deviations, in units of what one unit typically saves."""
STEP_OPTION_SD = 0.02
"""Of an option of the whole step, as a share of the baseline."""
CAPTURE_SD = 0.003
"""Of the effect of capturing scopes at all, as a share of the baseline."""
TRUST_SD = 0.5
"""Of the factor, 1 in the mean, by which all effects of an earlier study are larger here."""
NO_EFFECT_SD = 1e-9
"""Of the law's terms where scopes do not follow it, as a share of the baseline."""

GRIDS: Mapping[str, tuple[float, ...]] = {
    "unit_sd": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    "segment_ratio": (0.1, 0.3, 1.0, 3.0),
    "step_noise": (1.0, 2.0, 5.0, 15.0),
    "scope_noise": (0.5, 1.0, 3.0, 10.0),
}
"""Values among which the evidence chooses hyperparameters, ``unit_sd`` as factors of a typical saving."""
LAW_GRIDS: Mapping[str, tuple[float, ...]] = {
    **GRIDS,
    "unit_sd": (1e-4, 1e-3, *GRIDS["unit_sd"]),
    "beyond_law": (0.01, 0.05, 0.2, 1.0),
}
"""For scopes that follow the law, which may leave nothing to other effects."""


Singles = npt.NDArray[np.float32]
Pending = tuple[Evidence, Evidence]
"""The evidence of steps and of scopes that running trials will add."""

MAX_SEGMENT_EFFECTS, MAX_EARLIER_EFFECTS = 256, 64
"""Classes of segments with effects of their own; the second before they are tried, as an earlier study knows them."""
MIN_NOISE = 1e-3
"""Relative noise of a step's latency if the study does not state it."""
BLIND_SAVING = 0.3
"""What all units together may save, as a share of the baseline, before anything is known."""
OPTION_RATIOS = (1.0, 3.0, 10.0)
"""Values of ``Hyperparameters.option_ratio``; each gives one belief without the law and one with it."""
TEMPERING = 8.0
"""Nats of evidence that count as one: the dozens of scopes observed in one trial share the model's error."""
MIN_WEIGHT = 0.05
"""Share of the total weight below which a belief is dropped."""
MAX_ROUNDS = 3
"""Passes over the grids in search of the largest evidence."""


@dataclass(frozen=True, slots=True)
class _Prior:
    """A normal prior: its ``mean``, shape (n_effects,), the standard deviation ``sd`` of each effect by itself, and
    ``directions`` in which all may be off together, each by a standard normal factor, shape (n_effects, n_studies)."""

    mean: Vector
    sd: Vector
    directions: Vector

    def put(self, precision: Vector) -> tuple[Vector, float]:
        """Add the inverse of the covariance, by Woodbury's identity, to ``precision``.

        Returns its product with the mean, and the logarithm of the covariance's determinant.
        """
        inverse = self.sd**-2.0
        precision[np.diag_indices(len(inverse))] += inverse
        weighted, log_det = self.mean * inverse, 2 * float(np.log(self.sd).sum())
        if self.directions.size:
            scaled = self.directions * inverse[:, None]
            inner = np.eye(self.directions.shape[1]) + self.directions.T @ scaled
            off = np.linalg.solve(inner, scaled.T)
            precision -= scaled @ off
            weighted -= scaled @ (off @ self.mean)
            log_det += float(np.linalg.slogdet(inner)[1])
        return weighted, log_det


class SegmentModel:
    """Collects observations; ``fit`` returns the posterior.

    Attributes:
        law: of SuperKernels; None if the operators are not known.
        baseline_us: of the step, for the law's constants; before it is measured a guess, or 0 without one.
        earlier: studies whose findings may be the prior here.
    """

    def __init__(
        self,
        catalogue: SegmentCatalogue,
        options: Sequence[tuple[str, Option]],
        of_step: frozenset[str],
        law: Law | None = None,
        earlier: Sequence[EarlierStudy] = (),
    ) -> None:
        self.catalogue, self.earlier = catalogue, earlier
        self.options = tuple(option for option in options if option[0] not in of_step)
        self.step_options = tuple(option for option in options if option[0] in of_step)
        borders = [catalogue.border(position) for position in range(1, catalogue.n_units)]
        self.borders = {border: index for index, border in enumerate(dict.fromkeys(borders))}
        self._border_at = np.array([-1, *(self.borders[border] for border in borders)])
        self._options_at, small = len(catalogue.features), len(catalogue.small)
        self._cuts_at = self._options_at + small * len(self.options)
        self._steps_at = self._cuts_at + len(self.borders)
        self._others_at = self._steps_at + len(self.step_options)  # capture, observed scope, observed unit
        self.law_at = self._others_at + 3
        guesses = [study.baseline_us * catalogue.n_units / study.units for study in earlier if study.under_law]
        self.law, self.baseline_us = law, float(np.median(guesses or [0.0])) if law else 0.0
        self._law_weights: dict[Options, Vector] = {}
        self.n_fixed = self.law_at + (len(law.terms) if law else 0)
        self._prior = self._fixed_prior()
        self._effects: list[int] = []
        """Classes of segments with an effect of their own, in order."""
        self._effect_of = np.full(len(catalogue.first), -1)
        self._steps, self._scopes = Evidence(self.n_fixed), Evidence(self.n_fixed)
        self._observed: tuple[tuple[int, float, float], Vector] | None = None
        """The last precision of all observations, with what it was asked for."""
        self._per_unit: list[float] = []
        self._observations: list[Observation] = []
        self._give_effects(self._known_earlier())

    @property
    def count(self) -> int:
        """The number of observations."""
        return len(self._observations)

    def follow(self, law: Law) -> None:
        """Replace the law by one with the same terms."""
        self.law, self._law_weights = law, {}
        self._steps, self._scopes = Evidence(self.n_fixed), Evidence(self.n_fixed)
        self._per_unit.clear()
        observations, self._observations = self._observations, []
        for observation in observations:
            self.add(observation)

    def add(self, observation: Observation) -> None:
        """Add an observation."""
        self._observations.append(observation)
        self._observed = None
        self._put([observation], self._steps, self._scopes)
        if observation.saving is not None:
            units = self.catalogue.length[self._segments(observation.plan)].sum()
            if units:
                self._per_unit.append(abs(observation.saving) / units)
        elif observation.scopes:
            per_unit = [abs(scope.saving) / self.catalogue.length[scope.segment] for scope in observation.scopes]
            self._per_unit.append(float(np.median(per_unit)))

    def expect(self, observations: Sequence[Observation]) -> Pending:
        """Return the evidence that running trials will add; their savings do not matter."""
        steps, scopes = Evidence(self.n_fixed), Evidence(self.n_fixed)
        self._put(observations, steps, scopes)
        return steps, scopes

    def _put(self, observations: Sequence[Observation], steps: Evidence, scopes: Evidence) -> None:
        """Add the rows of observations to the evidence of steps and of scopes."""
        for observation in observations:
            self._give_effects(self._segments(observation.plan))
        rows = []
        for scope in [scope for each in observations for scope in each.scopes]:
            row = np.zeros(self.n_fixed + len(self._effects))
            self._put_scopes(row, np.array([scope.segment]), scope.options)
            row[self._others_at + 1] = 1.0
            row[self._others_at + 2] = self.catalogue.length[scope.segment]
            rows.append((row, scope.saving, scope.noise_sd))
        if rows:
            scopes.add(rows)
        if known := [(each.plan, each.saving, each.noise_sd) for each in observations if each.saving is not None]:
            described = self.describe([plan for plan, *_ in known]).rows
            steps.add([(row, saving, sd) for row, (_, saving, sd) in zip(described, known, strict=True)])

    def describe(self, plans: Sequence[Plan]) -> Described:
        """Return the rows of plans."""
        rows, unknown = np.zeros((len(plans), self.n_fixed + len(self._effects))), np.zeros(len(plans))
        for number, (plan, row) in enumerate(zip(plans, rows, strict=True)):
            segments = self._segments(plan)
            by_options: dict[Options, list[int]] = {}
            for index, scope in enumerate(plan.scopes):
                by_options.setdefault(scope.options, []).append(index)
            for options, indices in by_options.items():
                self._put_scopes(row, segments[indices], options)
            np.add.at(row, self._cuts_at + self._border_at[self.catalogue.cuts(plan)], 1.0)
            for index, (name, value) in enumerate(self.step_options):
                row[self._steps_at + index] = (name, value) in plan.options
            row[self._others_at] = 1.0
            new, counts = np.unique(segments[self._effect_of[segments] < 0], return_counts=True)
            unknown[number] = (counts**2 * self.catalogue.length[new]).sum()
        return Described(rows, unknown)

    def operators_row(self, segment: int, options: Options) -> Vector:
        """Return the part of one scope's row that its operators determine, shape (n_effects,)."""
        row = np.zeros(self.n_fixed + len(self._effects))
        if segment >= 0:
            row[self.catalogue.of_operators] = self.catalogue.matrix[segment, self.catalogue.of_operators]
        if self.law and segment >= 0:
            row[self.law_at : self.n_fixed] = self.law.counts[segment] @ self._weights(options)
        return row

    def row(self, plan: Plan) -> Vector:
        """Return the row of one plan, shape (n_effects,)."""
        row: Vector = self.describe([plan]).rows[0]
        return row

    @property
    def known_segments(self) -> list[int]:
        """The classes with an effect of their own."""
        return list(self._effects)

    def begin(self) -> Hyperparameters:
        """Return the initial hyperparameters: all earlier studies are believed, and the law if one follows it."""
        blind = [0.0 if self.count else BLIND_SAVING / self.catalogue.n_units]
        typical = float(np.median(self._per_unit or blind))
        follows_law = self.baseline_us > 0 and not self.count
        trusted = tuple(range(len(self.earlier)))
        return Hyperparameters(max(typical, 1e-6), follows_law=follows_law, trusted=trusted)

    def choose(self) -> dict[Hyperparameters, float]:
        """Return the hyperparameters with the largest evidence for each option ratio, and for each choice of earlier
        studies, with their weights.

        They are optimised on a coarse grid, one after another, until none improves. Weights sum to 1, the largest comes
        first, and negligible ones are left out.
        """
        ratios = OPTION_RATIOS if self.options else OPTION_RATIOS[:1]
        laws = (False, True) if self.law and self.baseline_us else (False,)
        each = range(len(self.earlier))
        trusted = dict.fromkeys([(), *((index,) for index in each), tuple(each)])
        begin = [
            replace(self.begin(), option_ratio=ratio, follows_law=law, trusted=studies)
            for ratio, law, studies in itertools.product(ratios, laws, trusted)
        ]
        best = dict(map(self.climb, begin))
        weights = _weights(best)
        likely = {chosen: weight for chosen, weight in weights.items() if weight > MIN_WEIGHT * sum(weights.values())}
        total = sum(likely.values())
        return {chosen: likely[chosen] / total for chosen in sorted(likely, key=lambda chosen: -likely[chosen])}

    def climb(self, begin: Hyperparameters) -> tuple[Hyperparameters, float]:
        """Return the hyperparameters with the largest evidence that a walk over the grids reaches, and its logarithm.

        The walk keeps the option ratio, whether scopes follow the law, and which earlier studies are believed.
        """
        evidence = cache(self._log_evidence)
        chosen = begin
        for _ in range(MAX_ROUNDS):
            before = chosen
            for name, grid in (LAW_GRIDS if begin.follows_law else GRIDS).items():
                base = begin.unit_sd if name == "unit_sd" else 1.0
                changed: list[dict[str, Any]] = [{name: base * factor} for factor in grid]
                tried = [chosen, *(replace(chosen, **each) for each in changed)]
                chosen = max(tried, key=evidence)
            if chosen == before:
                break
        return chosen, evidence(chosen)

    def _log_evidence(self, chosen: Hyperparameters) -> float:
        """Return the logarithm of the evidence; minus infinity where the posterior cannot be computed."""
        try:
            return self.fit(chosen).log_evidence
        except np.linalg.LinAlgError:
            return -math.inf

    def fit(self, chosen: Hyperparameters, pending: Pending | None = None) -> "Posterior":
        """Return the posterior of the effects; trials that are ``pending`` count as if they had ended as expected."""
        prior = self._prior_of(chosen)
        size = len(prior.mean)
        step, scope = chosen.step_noise**-2, chosen.scope_noise**-2
        precision = self._observed_precision(size, step, scope).copy()
        expected, log_det = prior.put(precision)
        target = self._steps.moment(size) * step + self._scopes.moment(size) * scope + expected
        factor = scipy.linalg.cho_factor(precision, lower=True, check_finite=False)
        mean = scipy.linalg.cho_solve(factor, target, check_finite=False)
        squares = self._steps.squares * step + self._scopes.squares * scope - float(target @ mean)
        squares += float(prior.mean @ expected)
        log_det += 2 * float(np.log(np.diag(factor[0])).sum())
        rows = self._steps.count * math.log(chosen.step_noise) + self._scopes.count * math.log(chosen.scope_noise)
        lower = factor[0]
        if pending:
            steps, scopes = pending
            precision += steps.gram(size) * step + scopes.gram(size) * scope
            lower = scipy.linalg.cholesky(precision, lower=True, check_finite=False)
        return Posterior(self, chosen, mean, lower, -0.5 * (squares + log_det) - rows)

    def _observed_precision(self, size: int, step: float, scope: float) -> Vector:
        """Return the precision that all observations give the effects, with these weights of steps and scopes.

        The last one is kept, as most of the hyperparameters that are tried one after another have the same weights.
        """
        if self._observed is None or self._observed[0] != (size, step, scope):
            precision = self._steps.gram(size) * step + self._scopes.gram(size) * scope
            self._observed = (size, step, scope), precision
        return self._observed[1]

    def prior_mean(self, chosen: Hyperparameters) -> Vector:
        """Return what is expected of the effects before anything is measured, as shares of the baseline."""
        return self._prior_of(chosen).mean

    def _prior_of(self, chosen: Hyperparameters) -> "_Prior":
        of_segments = chosen.segment_ratio * chosen.unit_sd * np.sqrt(self.catalogue.length[self._effects])
        sd = np.concatenate([self._prior * chosen.unit_sd, of_segments])
        fixed = slice(self._steps_at, self._others_at + 1)
        sd[fixed] = self._prior[fixed]  # shares of the baseline
        sd[self._options_at : self._cuts_at] *= chosen.option_ratio
        mean = self._put_law_prior(sd, chosen)
        if not chosen.trusted:
            return _Prior(mean, sd, np.zeros((len(sd), 0)))
        found = np.column_stack([self._found_earlier(index, mean, chosen) for index in chosen.trusted])
        found /= len(chosen.trusted)
        return _Prior(mean + found.sum(axis=1), sd, TRUST_SD * found)

    def _put_law_prior(self, prior: Vector, chosen: Hyperparameters) -> Vector:
        """Set the prior standard deviations of the law's terms, and return the prior mean of all effects."""
        expected = np.zeros_like(prior)
        if self.law:
            inside = slice(self.law_at, self.n_fixed)
            prior[inside] = NO_EFFECT_SD
            if chosen.follows_law:
                ratio = chosen.beyond_law
                prior[inside] = [
                    term.sd_us * (1.0 if term.mean_us else ratio) / self.baseline_us for term in self.law.terms
                ]
                expected[inside] = [term.mean_us / self.baseline_us for term in self.law.terms]
        return expected

    def effects_by_name(self, posterior: "Posterior") -> dict[str, float]:
        """Return the mean of each effect by a name that it has in other models, too; those of the law in us."""
        scale = np.ones(len(posterior.mean))
        scale[self.law_at : self.n_fixed] = self.baseline_us
        each = zip(self._names(), (posterior.mean * scale).tolist(), strict=True)
        return {name: float(f"{mean:.4g}") for name, mean in each if abs(mean) > NO_EFFECT_SD}

    def shared_with(self, study: EarlierStudy) -> int:
        """Return the number of an earlier study's effects that this model has, too."""
        return len((study.effects.keys() | study.under_law.keys()).intersection(self._names()))

    def _names(self) -> Iterator[str]:
        """Yield the name of every effect."""
        features = [f"{feature.group}: {feature.name}" for feature in self.catalogue.features]
        yield from features
        for option in self.options:
            yield from (f"{options_text((option,))} of {features[index]}" for index in self.catalogue.small)
        yield from (f"cut: {border}" for border in self.borders)
        yield from (f"step: {options_text((option,))}" for option in self.step_options)
        yield from ("capture", "observed scope", "observed unit")
        yield from (f"law: {term.name}" for term in self.law.terms) if self.law else ()
        yield from map(self.catalogue.digest, self._effects)

    def _found_earlier(self, index: int, expected: Vector, chosen: Hyperparameters) -> Vector:
        """Return how the effects in an earlier study differ from those expected without it, as shares of the baseline.

        A unit's share of the step is smaller the more units there are; options of the step are a share of the whole.
        The constants of a device stay as they are.
        """
        study = self.earlier[index]
        effects = study.under_law if chosen.follows_law else study.effects
        scale = np.full(len(expected), study.units / self.catalogue.n_units)
        scale[self._steps_at : self._others_at + 1] = 1.0
        scale[self.law_at : self.n_fixed] = 1.0 / self.baseline_us if chosen.follows_law else 0.0
        pairs = zip(self._names(), expected / np.maximum(scale, NO_EFFECT_SD), strict=True)
        found: Vector = np.array([effects.get(name, mean) - mean for name, mean in pairs]) * scale
        return found

    def _known_earlier(self) -> Ints:
        """Return the classes of segments whose own effects earlier studies know, the largest effects first."""
        sizes = dict[str, float]()
        for study in self.earlier:
            for name, effect in (*study.effects.items(), *study.under_law.items()):
                sizes[name] = max(abs(effect), sizes.get(name, 0.0))
        classes = range(len(self.catalogue.first)) if sizes else ()
        known = [segment for segment in classes if self.catalogue.digest(segment) in sizes]
        known.sort(key=lambda segment: -sizes[self.catalogue.digest(segment)])
        return np.array(known[:MAX_EARLIER_EFFECTS], dtype=np.int64)

    def value(self, effects: Vector, options: Sequence[Options], segments: Ints | None = None) -> Singles:
        """Return the saving of each class of segments.

        Args:
            effects: shape (n_draws, n_effects).
            options: of scopes; each combination is a separate problem.
            segments: the classes to return; None for all.

        Returns shape (n_classes, n_draws * len(options)), options innermost.
        """
        catalogue = self.catalogue
        matrix = catalogue.single if segments is None else catalogue.single[segments]
        effects = effects.astype(np.float32)
        base = matrix @ effects[:, : self._options_at].T
        at = self._effect_of if segments is None else self._effect_of[segments]
        known = np.flatnonzero(at >= 0)
        base[known] += effects[:, self.n_fixed + at[known]].T
        small = matrix[:, catalogue.small]
        width = len(catalogue.small)
        by_option = {
            option: small @ effects[:, self._options_at + index * width : self._options_at + (index + 1) * width].T
            for index, option in enumerate(self.options)
        }
        columns = []
        for combination in options:
            active = [by_option[option] for option in combination if option in by_option]
            columns.append(np.sum(active, axis=0) if active else np.zeros_like(base))
        stacked = base[:, :, None] + np.stack(columns, axis=2)
        flat: Singles = stacked.reshape(len(base), -1)
        if self.law:
            of_law = effects[:, self.law_at : self.n_fixed]
            each = np.stack([self._weights(combination) @ of_law.T for combination in options], axis=2)
            counts = self.law.counts if segments is None else self.law.counts[segments]
            flat += counts @ each.reshape(len(each), -1).astype(np.float32)
        return flat

    def _weights(self, options: Options) -> Vector:
        assert self.law
        if options not in self._law_weights:
            self._law_weights[options] = self.law.weights(options)
        return self._law_weights[options]

    def cut(self, effects: Vector, repeats: int) -> Vector:
        """Return the saving of each cut by position, shape (n_units, n_draws * repeats)."""
        table = np.zeros((self.catalogue.n_units, len(effects)))
        table[1:] = effects[:, self._cuts_at : self._steps_at].T[self._border_at[1:]]
        return np.repeat(table, repeats, axis=1)

    def step_value(self, effects: Vector, of_step: Options) -> Vector:
        """Return what a step saves apart from its scopes, shape (n_draws,)."""
        total = effects[:, self._others_at].copy()
        for index, option in enumerate(self.step_options):
            if option in of_step:
                total += effects[:, self._steps_at + index]
        return total

    def _segments(self, plan: Plan) -> Ints:
        """Return the classes of a plan's scopes."""
        firsts, lasts = np.array(self.catalogue.positions(plan), dtype=np.int64).reshape(-1, 2).T
        return self.catalogue.class_of[firsts, lasts]

    def _put_scopes(self, row: Vector, segments: Ints, options: Options) -> None:
        described = self.catalogue.matrix[segments].sum(axis=0)
        row[: self._options_at] += described
        width = len(self.catalogue.small)
        for index, option in enumerate(self.options):
            if option in options:
                at = self._options_at + index * width
                row[at : at + width] += described[self.catalogue.small]
        known = self._effect_of[segments]
        np.add.at(row, self.n_fixed + known[known >= 0], 1.0)
        if self.law:
            row[self.law_at : self.n_fixed] += self.law.counts[segments].sum(axis=0) @ self._weights(options)

    def _give_effects(self, segments: Ints) -> None:
        for segment in dict.fromkeys(segments.tolist()):
            if self._effect_of[segment] < 0 and len(self._effects) < MAX_SEGMENT_EFFECTS:
                self._effect_of[segment] = len(self._effects)
                self._effects.append(segment)

    def _fixed_prior(self) -> Vector:
        catalogue = self.catalogue
        of_option = {"scope": "option of scope", "unit": "option of unit", "unit type": "option of unit type"}
        option = [PRIOR_SD[of_option[catalogue.features[index].group]] for index in catalogue.small]
        return np.array(
            [PRIOR_SD[feature.group] for feature in catalogue.features]
            + option * len(self.options)
            + [PRIOR_SD["cut"]] * len(self.borders)
            + [STEP_OPTION_SD] * len(self.step_options)
            + [CAPTURE_SD, PRIOR_SD["observed scope"], PRIOR_SD["observed unit"]]
            + [NO_EFFECT_SD] * (self.n_fixed - self.law_at)
        )


class Posterior:
    """The posterior of the effects.

    Attributes:
        mean: of each effect, as shares of the baseline step.
        log_evidence: of the hyperparameters, up to a constant.
    """

    def __init__(
        self, model: SegmentModel, chosen: Hyperparameters, mean: Vector, factor: Vector, log_evidence: float
    ) -> None:
        self.model, self.chosen, self.mean, self._factor, self.log_evidence = model, chosen, mean, factor, log_evidence

    def draw(self, count: int, rng: np.random.Generator, width: float = 1.0) -> Vector:
        """Return draws of the effects, shape (count, n_effects); ``width`` stretches their spread."""
        normal = rng.standard_normal((len(self.mean), count))
        spread = scipy.linalg.solve_triangular(self._factor, normal, lower=True, trans=1, check_finite=False)
        drawn: Vector = self.mean + width * spread.T
        return drawn

    def draw_unknown(self, count: int, rng: np.random.Generator, width: float = 1.0) -> Singles:
        """Return draws of the effects of classes without observations, shape (n_classes, count); 0 for the others."""
        scale = width * self.chosen.segment_ratio * self.chosen.unit_sd * np.sqrt(self.model.catalogue.length)
        scale[self.model.known_segments] = 0.0
        drawn: Singles = scale[:, None].astype(np.float32) * rng.standard_normal((len(scale), count), dtype=np.float32)
        return drawn

    def predict(self, rows: Vector) -> tuple[Vector, Vector]:
        """Return mean and standard deviation of ``rows @ effects``, without unknown segments."""
        return rows @ self.mean, np.sqrt((self.spread(rows) ** 2).sum(axis=0))

    def spread(self, rows: Vector) -> Vector:
        """Return ``rows`` so that the products of columns are covariances, shape (n_effects, n_rows)."""
        spread: Vector = scipy.linalg.solve_triangular(self._factor, rows.T, lower=True, check_finite=False)
        return spread

    def predict_law(self, rows: Vector) -> tuple[Vector, Vector]:
        """Return mean and standard deviation, in us, of sums of the law's terms, shape (n_sums, n_terms)."""
        model = self.model
        whole = np.zeros((len(rows), len(self.mean)))
        whole[:, model.law_at : model.n_fixed] = rows
        mean, sd = self.predict(whole)
        return mean * model.baseline_us, sd * model.baseline_us

    def predict_plans(self, plans: Described) -> tuple[Vector, Vector]:
        """Return mean and standard deviation of the plans' savings, as shares of the baseline."""
        means, deviations = self.predict(plans.rows)
        return means, np.sqrt(deviations**2 + self.unknown_variance(plans))

    def unknown_variance(self, plans: Described) -> Vector:
        """Return the variance that classes of segments without observations add to each plan's saving."""
        return (self.chosen.segment_ratio * self.chosen.unit_sd) ** 2 * plans.unknown


def _weights(evidence: Mapping[Hyperparameters, float]) -> dict[Hyperparameters, float]:
    """Return weights by log evidence, the largest 1; it is tempered, but not for the choice of earlier studies, which
    were not fitted to what was measured here."""
    alike: dict[tuple[float, bool], list[float]] = {}
    for chosen, value in evidence.items():
        alike.setdefault((chosen.option_ratio, chosen.follows_law), []).append(value)
    total = {group: float(np.logaddexp.reduce(values)) for group, values in alike.items()}
    logs = {}
    for chosen, value in evidence.items():
        of_group = total[chosen.option_ratio, chosen.follows_law]
        logs[chosen] = value - of_group + of_group / TEMPERING
    largest = max(logs.values())
    return {chosen: math.exp(each - largest) for chosen, each in logs.items()}


LEAST_US, STEP = 0.05, 1.25
"""A tangent's durations are rounded to a geometric grid, so that it settles: the smallest value, and the ratio of
neighbours."""


def tangent(posterior: Posterior) -> Tangent:
    """Return where the law is to be made linear: at the device as it has been found to be."""
    assert posterior.model.law
    names = [term.name for term in posterior.model.law.terms]
    at = [names.index(f"icache_{name}_us") for name in ("fetch", "contention", "copy")]
    rows = np.zeros((len(COPIES) + 1, len(names)))
    for row, copies in zip(rows[1:], COPIES, strict=True):
        row[at] = 1.0, 1.0 / copies, copies
    rows[0, names.index("early_start_us")] = 1.0
    means, _ = posterior.predict_law(rows)
    early, *loads = (STEP ** round(math.log(max(LEAST_US, mean), STEP)) for mean in means)
    return Tangent(tuple(loads), early)
