"""Every distinct region is compared with the kernels that it replaces, on inputs chosen to expose differences."""

from dataclasses import replace

import pytest
import torch

from sktune.backends.base import REGION_STEPS, Compiled, RegionBudget
from sktune.backends.inductor.backend import InductorBackend
from sktune.core.plan import Option, Plan, Scope
from sktune.core.space import SpaceSpec
from sktune.core.verification import RegionCheck
from sktune.measure.bits import difference
from sktune.targets import describe
from sktune.targets.base import decode_inputs
from sktune.targets.loading import load
from sktune.targets.tracing import trace_layout
from sktune.worker import replays
from tests.builders import ROOT

OWN = f"{ROOT / 'examples' / 'own_model.py'}:target"
EXACT: dict[str, Option] = {"emulate_precision_casts": True, "matmul": "aten", "reductions": "aten"}
FUSED: dict[str, Option] = {**EXACT, "reductions": "fused"}


class Bench:
    """A model's backend, and the replays on which its regions are compared."""

    def __init__(self, model: str) -> None:
        torch.set_grad_enabled(False)
        spec, preset = describe(model)
        self.target = load(spec)
        self.layout = trace_layout(self.target, preset.space if preset else SpaceSpec())
        self.backend = InductorBackend(self.target, self.layout, decode_inputs(self.target, 0, 1)[0])
        self.replays = replays.prepare(self.target)

    def compile(self, spans: list[tuple[str, str]], options: dict[str, Option]) -> Compiled:
        """Compile a plan of scopes from first to last unit."""
        return self.backend.compile(Plan(tuple(Scope(a, b, tuple(sorted(options.items()))) for a, b in spans)))

    def check(self, compiled: Compiled, budget: RegionBudget) -> tuple[RegionCheck, ...]:
        """Compare its regions with their kernels."""
        assert compiled.check_regions is not None
        return compiled.check_regions(replays.replayed_inputs(self.replays, REGION_STEPS // len(self.replays)), budget)


@pytest.fixture(scope="module")
def example() -> Bench:
    """Return the example's model."""
    return Bench(OWN)


SPANS = {
    "attention_norm": [(f"blocks.{layer}.attention_norm",) * 2 for layer in range(3)],
    "feed_forward": [(f"blocks.{layer}.feed_forward_norm", f"blocks.{layer}.feed_forward") for layer in range(3)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SPANS)
def test_regions_that_differ_on_rare_inputs_are_found(example: Bench, name: str) -> None:
    """The 16 steps of a trial miss differences that show on one seed out of 54 or 130."""
    baseline = example.backend.compile(Plan())
    compiled = example.compile([(first, last) for first, last in SPANS[name]], FUSED)
    assert replays.compare(compiled.step, replays.record(baseline.step, example.replays)) is None
    result = example.check(compiled, RegionBudget(seconds=10.0))
    assert len(result) == 1  # three layers share one region
    assert result[0].label in {f"{first}..{last}" if first != last else first for first, last in SPANS[name]}
    assert "differs from the kernels that it replaces" in result[0].difference
    assert result[0].key in compiled.region_labels


@pytest.mark.slow
@pytest.mark.parametrize("cpp_wrapper", [False, True])
def test_regions_of_exact_values_do_not_differ(example: Bench, cpp_wrapper: bool) -> None:
    """The same spans and the whole step, with ATen's reductions and products."""
    for spans in (*SPANS.values(), [("embedding", "head")]):
        compiled = example.compile([(first, last) for first, last in spans], {**EXACT, "cpp_wrapper": cpp_wrapper})
        for result in example.check(compiled, RegionBudget(elements=1_000_000, seconds=6.0)):
            assert result.difference == ""
            assert result.elements > 100_000


def test_the_check_does_not_change_state_and_outputs(example: Bench) -> None:
    """Varied values are restored, so that the step continues with its own."""
    baseline = example.backend.compile(Plan())
    recordings = replays.record(baseline.step, example.replays)
    compiled = example.compile([("blocks.0.attention", "blocks.0.attention")], EXACT)
    example.replays[0].start.restore()
    example.check(compiled, RegionBudget(elements=200_000, seconds=2.0))
    last = replace(example.replays[-1], inputs=example.replays[-1].inputs[: REGION_STEPS // 2])
    state = {name: tensor.clone() for name, tensor in example.target.state.items()}
    expected = replays.record(baseline.step, [last])[0].state
    assert difference(expected, state, 0, 0) is None
    assert replays.compare(compiled.step, recordings) is None
