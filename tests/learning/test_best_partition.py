"""The best partition under an additive model."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from sktune.core.layout import Layout
from sktune.core.plan import Plan
from sktune.core.space import LAYERS_PER_SCOPE, OptionRules, SearchSpace, SpaceSpec, bind, limit_of
from sktune.learning.best_partition import Partitioner
from sktune.learning.segments import SegmentCatalogue
from tests.builders import decoder_layout

KEYS = ("norm", "attention", "mlp")
LAYOUTS: dict[str, tuple[Layout, bool, list[Any]]] = {
    "one kind": (decoder_layout(("moe", "moe", "moe"), KEYS), False, [1, 2, "all"]),
    "two kinds": (decoder_layout(("dense", "moe", "moe"), KEYS[:2]), False, [1, 2, "all"]),
    "alternating kinds": (decoder_layout(("dense", "moe", "dense", "moe"), KEYS[:2]), False, [2, 3]),
    "one unit a layer": (decoder_layout(("moe",) * 4, KEYS[:1]), False, [1, 2, 3, "all"]),
    "per_layer": (decoder_layout(("dense", "moe"), KEYS), True, ["all"]),
    "per_layer, one layer a scope": (decoder_layout(("dense", "moe", "moe"), KEYS[:2]), True, [1]),
}


def bound(layout: Layout, per_layer: bool, limits: list[Any]) -> SearchSpace:
    """Return the layout's space without options."""
    return bind(SpaceSpec(per_layer=per_layer, layers_per_scope=limits), layout, {}, OptionRules({}))


def worth(plan: Plan, catalogue: SegmentCatalogue, value: np.ndarray, cut: np.ndarray) -> float:
    """Return the sum of a plan's values."""
    scopes = sum(value[catalogue.class_of[first, last]] for first, last in catalogue.positions(plan))
    return float(scopes + sum(cut[position] for position in catalogue.cuts(plan)))


def all_points(space: SearchSpace) -> list[dict[str, Any]]:
    """Return every point of a space."""
    return [dict(zip(space.choices, point, strict=True)) for point in itertools.product(*space.choices.values())]


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_plan_of_the_space_is_better(name: str) -> None:
    """By brute force over every point, for random values, some of them forbidden; several problems in a batch."""
    space = bound(*LAYOUTS[name])
    catalogue = SegmentCatalogue(space.layout, max(map(limit_of, space.choices[LAYERS_PER_SCOPE])))
    rng = np.random.default_rng(0)
    problems = 8
    value = rng.normal(0.1, 1.0, (len(catalogue.first), problems))
    value[rng.random(value.shape) < 0.15] = -math.inf
    by_border = {catalogue.border(p): rng.normal(0, 0.5, problems) for p in range(1, catalogue.n_units)}
    cut = np.array([np.zeros(problems)] + [by_border[catalogue.border(p)] for p in range(1, catalogue.n_units)])

    solution = Partitioner(space, catalogue).solve(value, cut)

    plans = {space.plan(point) for point in all_points(space)}
    for problem in range(problems):
        best = max(worth(plan, catalogue, value[:, problem], cut[:, problem]) for plan in plans)
        assert solution.score[problem] == pytest.approx(best)
        decoded = space.plan(solution.decode(problem))
        assert worth(decoded, catalogue, value[:, problem], cut[:, problem]) == pytest.approx(best)
