"""Models that TorchAir refuses, whole or once they are marked; target functions for ``--model``."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torchair import register_fx_node_ge_converter
from torchair._ge_concrete_graph import ge_apis

import tests.torchair.frontend  # noqa: F401 - no device is needed any more
from sktune.targets.base import Target

SIZE = 16
_running: dict[str, nn.Module] = {}


@torch.library.custom_op("conformance::run_by_name", mutates_args=())
def run_by_name(hidden: torch.Tensor, name: str) -> torch.Tensor:
    """Run the module ``name`` inside an operator, where Dynamo does not look; vLLM runs its attention layers so."""
    output: torch.Tensor = _running[name](hidden)
    return output


@run_by_name.register_fake
def _(hidden: torch.Tensor, name: str) -> torch.Tensor:
    return torch.empty_like(hidden)


def convert(hidden: Any, name: str, meta_outputs: Any = None) -> Any:
    """Return the GE operator of ``run_by_name``, as a user registers one for an operator of their own."""
    return ge_apis.Relu(hidden)


register_fx_node_ge_converter(torch.ops.conformance.run_by_name.default)(convert)


class HiddenModule(nn.Module):
    """Three units, the middle one inside an operator of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.hidden, self.last = nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE)
        _running["hidden"] = self.hidden

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (batch, size) to the same shape."""
        output: torch.Tensor = self.last(torch.ops.conformance.run_by_name(self.first(hidden), "hidden"))
        return output


class Operation(nn.Module):
    """A module around one function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Call it."""
        return self._function(hidden)


class Unconvertible(nn.Module):
    """Two units: a linear layer, and what TorchAir has no converter for."""

    def __init__(self, operation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.operation = nn.Linear(SIZE, SIZE), Operation(operation)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (batch, size) to whatever the operation returns."""
        output: torch.Tensor = self.operation(self.linear(hidden))
        return output


def hidden_module() -> Target:
    """Return a model whose baseline converts; a scope that begins or ends at ``hidden`` has one boundary only."""
    return _target(HiddenModule())


def index_copy() -> Target:
    """Return a model with transformers' way to write a static KV cache."""
    return _target(Unconvertible(lambda hidden: hidden.index_copy(0, torch.tensor([1]), hidden[:1])))


def attention() -> Target:
    """Return a model with fused attention as it is captured on the CPU."""

    def attend(hidden: torch.Tensor) -> torch.Tensor:
        heads = hidden.view(1, 1, -1, SIZE)
        return F.scaled_dot_product_attention(heads, heads, heads)

    return _target(Unconvertible(attend))


def histogram() -> Target:
    """Return a model that counts as transformers' grouped experts do."""
    return _target(Unconvertible(lambda hidden: torch.histc(hidden, SIZE, 0, 1)))


def without_values() -> Target:
    """Return a model with shapes that depend on data: TorchAir's wrapper loses the text of this failure."""
    return _target(Unconvertible(lambda hidden: hidden.nonzero()))


def _target(model: nn.Module) -> Target:
    torch.manual_seed(0)
    model.eval().requires_grad_(False)
    return Target(model, model.forward, lambda seed, steps: [(torch.full((4, SIZE), 0.5),)] * steps)
