"""CUDA graphs in search and in apply: state is read and written where the model stores it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.utils import fresh_cache

import sktune
from sktune.backends.inductor.backend import InductorBackend
from sktune.backends.inductor.info import EXACT
from sktune.core.plan import Plan, Scope
from sktune.core.space import SpaceSpec
from sktune.measure.bits import same_bits
from sktune.program.sktune_program.inductor.border import memory_use
from sktune.program.sktune_program.inductor.cuda_graph import CapturedRegion
from sktune.targets.base import Target, decode_inputs
from sktune.targets.tracing import trace_layout
from tests.backends import cuda_graphs

WIDTH, TOKENS, STEPS = 16, 64, 5
PLAN = Plan((Scope("inner", "inner", tuple(sorted({**EXACT, "cuda_graph": True}.items()))),))


@pytest.fixture(autouse=True)
def clean_compiler(tmp_path: Any) -> Iterator[None]:
    """Compile without caches, and emulate CUDA graphs on CPU."""
    torch._dynamo.reset()
    with torch.no_grad(), fresh_cache(), cuda_graphs.on_cpu():
        yield


class Cached(nn.Module):
    """One projection and a cache of all its results."""

    cache: torch.Tensor
    position: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(WIDTH, WIDTH, bias=False)
        self.held: dict[str, torch.Tensor] = {}

    def forward(self, hidden: torch.Tensor, state: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
        state = state or self.held or {"cache": self.cache, "position": self.position}
        state["cache"].index_copy_(0, state["position"], self.projection(hidden))
        state["position"].add_(1)
        return (state["cache"] * hidden).sum(0, keepdim=True)


class Case:
    """A model with its state in a ``buffer``, an ``attribute``, a ``closure`` or a ``list``."""

    def __init__(self, where: str, device: str = "cpu") -> None:
        torch.manual_seed(0)
        self.inner = Cached()
        self.model = nn.Module()
        self.model.inner = self.inner
        self.model.to(device).requires_grad_(False)
        cache, position = torch.zeros(TOKENS, WIDTH, device=device), torch.zeros(1, dtype=torch.long, device=device)
        self.state = {"cache": cache, "position": position}
        inner = self.inner
        self.step: Callable[[torch.Tensor], torch.Tensor] = lambda token: inner(token)
        if where == "buffer":
            inner.register_buffer("cache", cache)
            inner.register_buffer("position", position)
        elif where == "attribute":
            inner.held = dict(self.state)
        elif where == "closure":
            self.step = lambda token: inner(token, {"cache": cache, "position": position})
        else:
            values = [cache, position]
            self.step = lambda token: inner(token, {"cache": values[0], "position": values[1]})

    def applied(self) -> Callable[..., Any]:
        """Return the step as a user compiles it."""
        sktune.apply(self.model, PLAN)
        return torch.compile(self.step, backend="sktune", fullgraph=True, dynamic=False)


def tokens(device: str = "cpu") -> list[torch.Tensor]:
    """Return one input for each step."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(1, WIDTH, generator=generator).to(device) for _ in range(STEPS)]


def decoded(step: Callable[..., Any], state: dict[str, torch.Tensor], device: str = "cpu") -> list[torch.Tensor]:
    """Run all steps from an empty cache; return the outputs and the final state."""
    for tensor in state.values():
        tensor.zero_()
    outputs = [step(token).clone() for token in tokens(device)]
    return [*outputs, *(tensor.clone() for tensor in state.values())]


WHERE = ["buffer", "attribute", "closure", "list"]


@pytest.mark.parametrize("where", WHERE)
def test_apply_writes_the_state_wherever_the_model_stores_it(where: str) -> None:
    """Every step gives the model's bits, and every row of the cache is written."""
    case = Case(where)
    expected = decoded(case.step, case.state)
    got = decoded(case.applied(), case.state)
    assert all(map(same_bits, expected, got))
    assert case.state["cache"][:STEPS].any(-1).all()
    assert int(case.state["position"]) == STEPS


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("is_declared", [True, False])
def test_search_writes_the_state_whether_it_is_declared_or_not(where: str, is_declared: bool) -> None:
    """The same capture, compiled by a trial."""
    case = Case(where)

    def prefill(seed: int, steps: int) -> list[tuple[torch.Tensor]]:
        return [(token,) for token in tokens()[:steps]]

    target = Target(case.model, case.step, prefill, case.state if is_declared else {})
    expected = decoded(case.step, case.state)
    backend = InductorBackend(target, trace_layout(target, SpaceSpec()), decode_inputs(target, 0, 1)[0])
    step = backend.compile(PLAN).step
    step.prepare()
    got = decoded(step.run, case.state)
    assert all(map(same_bits, expected, got))


def test_state_that_moves_is_followed() -> None:
    """A model that replaces its cache between two sequences writes to the new one."""
    case = Case("attribute")
    step = case.applied()
    expected = decoded(step, case.state)
    case.inner.held = {name: torch.full_like(tensor, 7) for name, tensor in case.state.items()}
    got = decoded(step, case.inner.held)
    assert all(map(same_bits, expected, got))


def captured(function: nn.Module, *inputs: torch.Tensor, outlasting: tuple[int, ...] = ()) -> CapturedRegion:
    """Capture a traced function."""
    traced = torch.fx.symbolic_trace(function)
    return CapturedRegion(lambda *given: (traced(*given),), memory_use(traced, inputs).written, outlasting)


class AddsInPlace(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x.view(-1)


def test_a_written_activation_is_copied_back_and_its_views_remain_views() -> None:
    """At any address, for any number of addresses."""
    y = torch.ones(2, 3)
    region = captured(AddsInPlace(), torch.zeros(2, 3), y)
    for value in range(4):
        x = torch.full((2, 3), float(value))
        (view,) = region(x, y)
        assert torch.equal(x, torch.full((2, 3), value + 1.0))
        assert view.data_ptr() == x.data_ptr()


def test_expanded_inputs_keep_their_strides() -> None:
    """Each element is copied once, with the strides for which the code was compiled."""
    region = captured(AddsInPlace(), torch.zeros(2, 3), torch.zeros(1, 3).expand(2, 3))
    for value in range(3):
        x = torch.zeros(2, 3)
        region(x, torch.full((1, 3), float(value)).expand(2, 3))
        assert torch.equal(x, torch.full((2, 3), float(value)))


def test_written_inputs_that_share_memory_are_not_captured(caplog: pytest.LogCaptureFixture) -> None:
    """Their copies would not share it."""
    base = torch.zeros(3)
    region = captured(AddsInPlace(), base, torch.zeros(3))
    region(base + 1, torch.ones(3))
    shared = torch.ones(3)
    region(shared, shared)
    (doubled,) = region(shared, shared)
    assert torch.equal(doubled, torch.full((3,), 4.0))


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("where", WHERE)
def test_real_captures_write_the_state(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, without emulation."""
    from sktune.program.sktune_program.inductor import cuda_graph

    monkeypatch.setattr(cuda_graph, "capture", cuda_graphs.REAL)
    case = Case(where, "cuda")
    expected = decoded(case.step, case.state, "cuda")
    got = decoded(case.applied(), case.state, "cuda")
    assert all(map(same_bits, expected, got))
