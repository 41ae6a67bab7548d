"""Plans through the true TorchAir: the marked operators are those that the plan asks for, and no bit changes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch import fx

from sktune.backends.npu.backend import NpuBackend
from sktune.core.plan import Plan
from sktune.core.space import SearchSpace, SpaceSpec
from sktune.targets import TargetSpec
from sktune.targets.base import Target, decode_inputs
from sktune.targets.loading import load
from sktune.targets.tracing import trace_layout
from sktune.tuning.request import bind_space
from sktune.worker import replays
from tests.torchair import frontend
from tests.torchair.conformance_models import CONFIGURATIONS, MODELS, spec_of
from tests.torchair.frontend import newest_dump
from tests.torchair.marked import Marked, expected


@dataclass
class Conversion:
    """One model and its baseline, converted."""

    target: Target
    space: SearchSpace
    backend: NpuBackend
    baseline: Sequence[tuple[fx.Node, tuple[str, ...]]]
    operators: list[Marked]
    recordings: tuple[replays.Recording, ...]

    def check(self, plan: Plan) -> None:
        """Convert ``plan``; compare marks, options and bits."""
        compiled = self.backend.compile(plan)
        operators = newest_dump()
        assert [operator.type for operator in operators] == [operator.type for operator in self.operators]
        found = {operator.name: (operator.label, operator.options) for operator in operators if operator.label}
        assert found == expected(plan, self.baseline)
        assert {operator.label for operator in operators if operator.label} == {scope.label for scope in plan.scopes}
        assert replays.compare(compiled.step, self.recordings) is None


def convert(spec: TargetSpec, wanted: SpaceSpec) -> Conversion:
    """Load, trace and convert a model, and record its baseline."""
    torch.set_grad_enabled(False)
    target = load(spec, takes_torchair=True)
    layout = trace_layout(target, wanted)
    backend = NpuBackend(target, layout, decode_inputs(target, 0, 1)[0])
    with frontend.watched_conversion() as seen:
        compiled = backend.compile(Plan())
    recordings = replays.record(compiled.step, replays.prepare(target))
    return Conversion(target, bind_space(wanted, layout, spec), backend, seen, newest_dump(), recordings)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_starting_points_mark_what_they_ask_for(model: str, tmp_path: Path) -> None:
    """Each starting point of each model."""
    spec, wanted = spec_of(model, tmp_path)
    if model in CONFIGURATIONS:
        wanted = SpaceSpec(options=wanted.options)
    conversion = convert(spec, wanted)
    assert len(conversion.space.starting_points) >= 4
    for point in conversion.space.starting_points:
        conversion.check(conversion.space.plan(point.values))


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Conversion]:
    """Return a small DeepSeek-V3 of one dense and two MoE layers, converted at the first call."""
    made: list[Conversion] = []

    def conversion() -> Conversion:
        if not made:
            spec, wanted = spec_of("deepseek_v3", tmp_path_factory.mktemp("deepseek"))
            made.append(convert(spec, SpaceSpec(per_layer=True, options=wanted.options)))
        return made[0]

    return conversion


def random_plans(part: int) -> Any:
    """Return a test of points of the space where every layer has its own boundaries."""

    @pytest.mark.slow
    @seed(part)
    @settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(data=st.data())
    def test(data: st.DataObject, deepseek: Callable[[], Conversion]) -> None:
        """Each random plan marks what it asks for."""
        conversion = deepseek()
        choices = conversion.space.choices
        values = {name: data.draw(st.sampled_from(values), name) for name, values in choices.items()}
        conversion.check(conversion.space.plan(values))

    return test


# In four parts, so that processes can share them.
test_random_plans_1, test_random_plans_2, test_random_plans_3, test_random_plans_4 = map(random_plans, range(4))
