"""What a captured graph tells of units before anything is compiled: how many operators they have, what these write."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from sktune.backends.inductor.backend import InductorBackend
from sktune.core.codec import decoded, encoded
from sktune.core.layout import CapturedWork, Layer, Layout, Unit
from sktune.core.plan import Plan, Scope
from sktune.core.space import SpaceSpec
from sktune.learning.savings import Observation, ScopeSaving, SegmentModel
from sktune.learning.segments import SegmentCatalogue
from sktune.targets.base import Target, decode_inputs
from sktune.targets.tracing import trace_layout


class Twice(nn.Module):
    """Two operators, each with a result of 16 bytes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 1) * 2


class Step(nn.Module):
    """Two units, and an operator between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Twice(), Twice()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self.second(self.first(x).sum(dim=0, keepdim=True))
        return total


def test_units_and_what_lies_between_them_are_counted() -> None:
    """On the real captured graph."""
    torch._dynamo.reset()
    step = Step()
    target = Target(step, lambda x: step(x), lambda seed, steps: [(torch.full((4,), float(seed)),)] * steps)
    with torch.no_grad():
        layout = trace_layout(target, SpaceSpec())
        known = InductorBackend(target, layout, decode_inputs(target, 0, 1)[0]).with_operators(layout)
    first, second = known.units
    assert (first.work, first.work_between) == (CapturedWork(2, 32), CapturedWork(1, 4))
    assert (second.work, second.work_between) == (CapturedWork(2, 8), CapturedWork())


def layout_of(operators: list[int]) -> Layout:
    """Return a layout whose units are of different types."""
    units = [Unit(f"layers.0.u{n}", f"u{n}", 0, work=CapturedWork(count, 8 * count), work_between=CapturedWork(1, 8))
             for n, count in enumerate(operators)]  # fmt: skip
    return Layout(tuple(units), (Layer("layers.0", "dense"),))


def test_layouts_keep_it() -> None:
    """Stored and read again; studies without it are read as before, and the digest does not change."""
    layout = layout_of([3, 5])
    bare = layout.with_work({}, {})
    assert decoded(Layout, json.loads(json.dumps(encoded(layout)))) == layout
    assert "work" not in str(encoded(bare))
    assert bare.digest == layout.digest


@pytest.mark.parametrize("seed", range(3))
def test_it_predicts_scopes_of_other_units(seed: int) -> None:
    """If scopes save a time for each operator, a few of them tell about units that were never in a scope."""
    rng = np.random.default_rng(seed)
    operators = [int(count) for count in rng.integers(1, 80, 16)]

    def correlation(layout: Layout) -> float:
        catalogue = SegmentCatalogue(layout, float("inf"))
        model = SegmentModel(catalogue, (), frozenset())
        at = [int(catalogue.class_of[n, n]) for n in range(16)]
        for n in range(0, 6, 2):
            saving = (1 + operators[n] + 1 + operators[n + 1]) * 1e-3
            plan = Plan((Scope(f"layers.0.u{n}", f"layers.0.u{n + 1}"),))
            scopes = (ScopeSaving(int(catalogue.class_of[n, n + 1]), (), saving, 1e-3),)
            model.add(Observation(plan, saving, 1e-3, scopes))
        posterior = model.fit(next(iter(model.choose())))
        predicted = model.value(posterior.mean[None], [()])[at[6:], 0]
        spread = float(np.ptp(predicted))
        return float(np.corrcoef(predicted, operators[6:])[0, 1]) if spread > 1e-6 else 0.0

    assert correlation(layout_of(operators)) > 0.9
    assert correlation(layout_of(operators).with_work({}, {})) < 0.5
