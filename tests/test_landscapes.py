"""Landscapes: their optimum is the optimum, and a replay is what a search would have seen."""

from itertools import product

import pytest

from benchmarks.landscapes.synthetic import SyntheticLandscape, Traits
from sktune.plan import Plan


def tiny(traits: Traits, seed: int) -> SyntheticLandscape:
    """Return a landscape of three layers, small enough to evaluate every point."""
    kinds = {"dense": ("input_norm", "self_attn", "mlp"), "moe": ("self_attn", "post_norm", "gate", "experts")}
    return SyntheticLandscape("tiny", traits, seed, kinds, ("dense", "moe", "moe"), {"fusion": (0, 1)})


VARIANTS = {
    "plain": Traits(),
    "failing": Traits(failing_share=0.3),
    "coupled": Traits(coupling=1.0),
    "cliff": Traits(longest=3),
    "spoiler": Traits(spoiler=True),
    "shuffled": Traits(is_shuffled=True),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(3))
def test_the_stated_optimum_is_the_best_of_all_plans(variant: str, seed: int) -> None:
    """What is computed by dynamic programming is what an enumeration through the space finds."""
    landscape = tiny(VARIANTS[variant], seed)
    space = landscape.space
    values = (dict(zip(space.choices, point, strict=True)) for point in product(*space.choices.values()))
    plans: set[Plan] = {space.plan(each) for each in values}
    assert len(plans) == space.size
    latencies = [truth.latency_ms for truth in map(landscape.evaluate, plans) if truth.latency_ms is not None]
    assert min(latencies) == pytest.approx(landscape.best_ms)
    assert landscape.evaluate(Plan()).latency_ms == pytest.approx(landscape.baseline_ms)
