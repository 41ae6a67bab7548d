"""Which scopes fail, learned from failures, from the scopes blamed for them, and from successes.

A scope fails because of its units or because of an option. The former is a logistic model of the segment's unit types
(normal prior, posterior mode by Newton's method), the latter a rate for each value of an option (beta prior). A scope
that has worked is safe, and one that was blamed is not proposed again. Blame that cannot be assigned to one scope is
shared among the suspects by their odds, and shifts when one of them works. What failed in an earlier study is a risk
here as far as its other failures have been found to fail here, too.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from sktune.core.earlier import EarlierStudy
from sktune.core.plan import Option, Options
from sktune.learning.segments import SegmentCatalogue

Vector = npt.NDArray[np.float64]
Key = tuple[int, Options]
"""A class of segments and its scope's options."""
_Evidence = tuple[list[Key], dict[tuple[str, Option], float], Vector, dict[Key, float]]
"""Keys known to fail, the failure rate of each option value, the weights of unit types, and the odds that a class is to
blame: cached until the next trial."""

PRIOR_LOGIT, PRIOR_LOGIT_SD, TYPE_SD = -3.0, 1.5, 0.3
OPTION_PRIOR, CHANGES_BITS_PRIOR = (0.1, 6.0), (0.5, 1.0)
"""Prior failures and successes of an option value; the second for values that often change bits."""
NEWTON_STEPS, HALVINGS, NEWTON_END = 50, 50, 1e-9
"""Maximum number of steps, maximum halvings of a step, and the expected gain of a step below which it is the last."""
BANNED, BANNED_BESIDE_CHANGED_BITS = 0.2, 0.8
"""Odds that a class is itself to blame for its failure, above which it is banned with other options, too; the second if
it failed with a value that often changes bits."""


class Feasibility:
    """A model of which scopes fail.

    Args:
        catalogue: the segments.
        defaults: the compiler's default of every option, which plans leave out.
        changes_bits: option values that often change bits.
        earlier: studies in which other scopes may have failed.
    """

    def __init__(
        self,
        catalogue: SegmentCatalogue,
        defaults: Mapping[str, Option],
        changes_bits: frozenset[tuple[str, Option]] = frozenset(),
        earlier: Sequence[EarlierStudy] = (),
    ) -> None:
        self._defaults, self._changes_bits = defaults, changes_bits
        names = list(dict.fromkeys(catalogue.types))
        spans = [
            set(catalogue.types[first : last + 1]) for first, last in zip(catalogue.first, catalogue.last, strict=True)
        ]
        described = [[1.0, *(float(name in span) for name in names)] for span in spans]
        self._described = np.array(described)
        self._good: dict[int, set[Options]] = {}
        self._bad: set[Key] = set()
        self._suspects: list[tuple[Key, ...]] = []
        self._evidence: _Evidence | None = None
        known = {catalogue.digest(segment): segment for segment in range(len(described))} if earlier else {}
        self._failed_earlier = [
            {(known[scope.segment], scope.options) for scope in study.failed if scope.segment in known}
            for study in earlier
        ]

    @property
    def has_failures(self) -> bool:
        """Whether anything has failed so far."""
        return bool(self._suspects or self._bad)

    @property
    def has_risks(self) -> bool:
        """Whether anything has failed so far, or the options have values that often do."""
        return self.has_failures or bool(self._changes_bits) or any(self._failed_earlier)

    def succeeded(self, scopes: Sequence[Key]) -> None:
        """Record scopes that compiled and kept every bit."""
        self._evidence = None
        for segment, options in scopes:
            self._good.setdefault(segment, set()).add(options)

    def failed(self, scopes: Sequence[Key], blamed: Key | None) -> None:
        """Record a plan that failed, and the scope to blame if known."""
        self._evidence = None
        if blamed is None:
            self._suspects.append(tuple(dict.fromkeys(scopes)))
        else:
            self._bad.add(blamed)

    def blamed(self) -> list[Key]:
        """Return the keys that are known to fail and have never worked."""
        guilty = set(self._bad)
        for group in self._suspects:
            if len(unknown := [key for key in group if not self._is_good(key)]) == 1:
                guilty.add(unknown[0])  # all others have worked
        return sorted((key for key in guilty if not self._is_good(key)), key=repr)

    def log_safe(self, options: Sequence[Options]) -> Vector:
        """Return the logarithm of the probability that a scope works, shape (n_classes, len(options)).

        It is 0 for a scope that has worked, and ``-inf`` for one that is known to fail.
        """
        if self._evidence is None:
            guilty = self.blamed()
            self._evidence = guilty, *self._rates(guilty)
        guilty, rates, weights, odds = self._evidence
        unknown = -np.logaddexp(0.0, self._described @ weights)
        unknown[list(self._good)] = 0.0
        assigned = [self._assigned(combination) for combination in options]
        of_options = np.array([_log_safe(values, rates) for values in assigned])
        table: Vector = unknown[:, None] + of_options[None, :]
        for segment, good in self._good.items():
            proven = set().union(*(self._assigned(combination) for combination in good))
            for column, (combination, values) in enumerate(zip(options, assigned, strict=True)):
                table[segment, column] = 0.0 if combination in good else _log_safe(values - proven, rates)
        for segment, combination in guilty:
            if segment not in self._good:
                of_class = odds[segment, combination]
                limit = BANNED_BESIDE_CHANGED_BITS if self.changes_bits(combination) else BANNED
                table[segment] += -np.inf if of_class > limit else np.log1p(-of_class)
            if combination in options:
                table[segment, options.index(combination)] = -np.inf
        for (segment, combination), risk in self._risks_from_earlier(guilty).items():
            if combination in options:
                table[segment, options.index(combination)] += math.log1p(-risk)
        return table

    def _risks_from_earlier(self, guilty: Sequence[Key]) -> dict[Key, float]:
        """Return how probably a scope that failed in an earlier study, and was not tried here, fails (beta prior)."""
        risks: dict[Key, float] = {}
        for failed in self._failed_earlier:
            worked = sum(map(self._is_good, failed))
            risk = (1 + len(failed.intersection(guilty))) / (2 + len(failed.intersection(guilty)) + worked)
            risks |= {key: risk for key in failed.difference(guilty) if not self._is_good(key)}
        return dict(sorted(risks.items(), key=repr))

    def changes_bits(self, options: Options) -> frozenset[tuple[str, Option]]:
        """Return the values of a scope's options, including defaults, that often change bits."""
        return self._assigned(options) & self._changes_bits

    def _is_good(self, key: Key) -> bool:
        return key[1] in self._good.get(key[0], ())

    def _assigned(self, options: Options) -> frozenset[tuple[str, Option]]:
        return frozenset({**self._defaults, **dict(options)}.items())

    def _rates(self, guilty: Sequence[Key]) -> tuple[dict[tuple[str, Option], float], Vector, dict[Key, float]]:
        """Return failure rates of option values, weights of unit types, and the odds that a class is to blame.

        Two rounds of sharing each failure between class and options by expectation.
        """
        successes: dict[tuple[str, Option], float] = {}
        for good in self._good.values():
            for value in set().union(*(self._assigned(combination) for combination in good)):
                successes[value] = successes.get(value, 0.0) + 1.0
        weights = self._mode({})
        rates: dict[tuple[str, Option], float] = {}
        odds: dict[Key, float] = {}
        for _ in range(2):
            failures: dict[tuple[str, Option], float] = {}
            labels: dict[int, float] = {}
            for key, share in self._accused(guilty, weights).items():
                of_class, of_values = self._shares(key, weights, rates, successes)
                odds[key] = of_class
                labels[key[0]] = max(labels.get(key[0], 0.0), share * of_class)
                for value, part in of_values.items():
                    failures[value] = failures.get(value, 0.0) + share * part
            expected = dict.fromkeys(self._changes_bits, 0.0) | failures
            rates = {value: self._rate(value, failed, successes) for value, failed in expected.items()}
            weights = self._mode(labels)
        return rates, weights, odds

    def _rate(self, value: tuple[str, Option], failed: float, successes: Mapping[tuple[str, Option], float]) -> float:
        """Return the failure rate of an option value with ``failed`` expected failures."""
        bad, good = CHANGES_BITS_PRIOR if value in self._changes_bits else OPTION_PRIOR
        return (bad + failed) / (bad + good + failed + successes.get(value, 0.0))

    def _accused(self, guilty: Sequence[Key], weights: Vector) -> dict[Key, float]:
        """Return the share of blame of each key that failed, or may have failed."""
        shares = dict.fromkeys(guilty, 1.0)
        for group in self._suspects:
            unknown = [key for key in group if not self._is_good(key)]
            if any(key in guilty for key in unknown) or not unknown:
                continue
            odds = np.array([np.exp(self._described[segment] @ weights) for segment, _ in unknown])
            for key, share in zip(unknown, odds / odds.sum(), strict=True):
                shares[key] = max(shares.get(key, 0.0), float(share))
        return shares

    def _shares(
        self,
        key: Key,
        weights: Vector,
        rates: Mapping[tuple[str, Option], float],
        successes: Mapping[tuple[str, Option], float],
    ) -> tuple[float, dict[tuple[str, Option], float]]:
        """Share one failure between a scope's units and the values of its options."""
        segment, options = key
        proven = set().union(*(self._assigned(good) for good in self._good.get(segment, ())))
        chance = 0.0 if segment in self._good else float(1 / (1 + np.exp(-self._described[segment] @ weights)))
        of_values = {
            value: rates.get(value, self._rate(value, 0.0, successes)) for value in self._assigned(options) - proven
        }
        total = chance + math.fsum(of_values.values())
        if not total:
            return 1.0, {}
        return chance / total, {value: rate / total for value, rate in of_values.items()}

    def _mode(self, labels: Mapping[int, float]) -> Vector:
        """Return the weights of the constant and the unit types; ``labels`` is the blame of classes."""
        segments = [*self._good, *(segment for segment in labels if segment not in self._good)]
        weights = np.zeros(self._described.shape[1])
        weights[0] = PRIOR_LOGIT
        if not segments:
            return weights
        prior, precision = weights.copy(), np.full(len(weights), TYPE_SD**-2)
        precision[0] = PRIOR_LOGIT_SD**-2
        rows = self._described[segments]
        bad = np.array([0.0 if segment in self._good else labels[segment] for segment in segments])
        weight = np.array([1.0 if segment in self._good else labels[segment] for segment in segments])

        def fit(weights: Vector) -> float:
            logits = rows @ weights
            return float(bad @ logits - weight @ np.logaddexp(0.0, logits) - precision @ np.square(weights - prior) / 2)

        for _ in range(NEWTON_STEPS):
            chance = expit(rows @ weights)
            gradient = rows.T @ (bad - weight * chance) - (weights - prior) * precision
            curvature = rows.T @ (rows * (weight * chance * (1 - chance))[:, None]) + np.diag(precision)
            step = np.linalg.solve(curvature, gradient)
            if gradient @ step < NEWTON_END:
                return weights + step
            before = fit(weights)
            halves = (weights + step / 2**halving for halving in range(HALVINGS))
            # Full steps oscillate where the curve is flat.
            weights = next((tried for tried in halves if fit(tried) > before), weights)
        return weights


def _log_safe(values: Iterable[tuple[str, Option]], rates: Mapping[tuple[str, Option], float]) -> float:
    """Return the logarithm of the probability that none of the option values fails.

    ``fsum`` because sets are ordered differently in every process: a resumed search must get the same sum, bit by bit.
    """
    return math.fsum(math.log1p(-rates.get(value, 0.0)) for value in values)
