"""The simulation over the graph that the true TorchAir builds."""

from pathlib import Path

import pytest
import torch

from sktune.backends.npu.backend import NpuBackend
from sktune.core.codec import decoded
from sktune.core.plan import Plan
from sktune.sim.backend import SimBackend
from sktune.targets import describe
from sktune.targets.base import decode_inputs
from sktune.targets.loading import load
from sktune.targets.presets import load_preset
from sktune.targets.tracing import trace_layout
from tests.projects import long_gaps
from tests.torchair import frontend  # noqa: F401 - leaves the engine out


@pytest.mark.slow
@pytest.mark.parametrize("model", ["deepseek-v3", "llama"])
def test_the_simulation_starts_from_torchairs_graph(model: str, tmp_path: Path) -> None:
    """It says so, every unit has its share of the step, and one scope over all is faster where gaps are long."""
    torch.set_grad_enabled(False)
    target = load(describe(model, backend="sim")[0], takes_torchair=True)
    layout = trace_layout(target, load_preset(model).space)
    simulation = SimBackend(target, layout, decode_inputs(target, 0, 1)[0], str(long_gaps(tmp_path)))
    assert simulation.notes == "simulated over TorchAir's GE graph"
    shares = simulation.time_shares()
    assert all(shares[unit.name] > 0 for unit in layout.units)
    whole = decoded(Plan, {"scopes": [{"first": layout.units[0].name, "last": layout.units[-1].name, "options": {}}]})
    baseline, fused = simulation.compile(Plan()).simulated_ms, simulation.compile(whole).simulated_ms
    assert baseline is not None and fused is not None
    assert fused < baseline


@pytest.mark.slow
@pytest.mark.parametrize("model", ["deepseek-v3", "llama"])
def test_the_backend_knows_the_kernels_of_each_unit(model: str) -> None:
    """As the true TorchAir converts them; alike layers have equal ones, and the model's state is as before."""
    torch.set_grad_enabled(False)
    target = load(describe(model, backend="npu", device="cpu")[0], takes_torchair=True)
    layout = trace_layout(target, load_preset(model).space)
    before = {name: tensor.clone() for name, tensor in target.state.items()}
    backend = NpuBackend(target, layout, decode_inputs(target, 0, 1)[0])
    layout = layout.with_kernels(backend.kernels())
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.state.items())
    attention = [unit.kernels for unit in layout.units if unit.key == "self_attn"]
    assert {kernel.core for kernel in attention[0]} == {"vector", "cube"}
    assert len(set(attention)) == 1
    assert all(unit.kernels for unit in layout.units)
    simulation = SimBackend(target, layout, decode_inputs(target, 0, 1)[0])
    assert [kernel.type for _, kernel in simulation.kernels()] == [kernel.type for _, kernel in backend.kernels()]
