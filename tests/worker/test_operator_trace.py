"""Where the baseline differs from the uncompiled model, the operator is named."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import nn

from sktune.backends.base import Compiled, Step
from sktune.targets.base import Snapshot
from sktune.worker.operator_trace import first_difference
from sktune.worker.replays import Replay


class Mixed(nn.Module):
    """Two layers and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the second layer's outputs."""
        out: torch.Tensor = self.down(torch.tanh(self.up(hidden_states)))
        return out


def found(other: Callable[[torch.Tensor], torch.Tensor]) -> str:
    """Return what is said of a step beside the model's own."""
    torch.manual_seed(0)
    inputs = [(torch.randn(1, 8),) for _ in range(3)]

    def inside(context: AbstractContextManager[object]) -> Step:
        def watched(hidden_states: torch.Tensor) -> torch.Tensor:
            with context:
                return other(hidden_states)

        return Step(watched)

    compiled = Compiled(Step(other), inside=inside)
    return first_difference(MODEL, Step(MODEL), compiled, Replay(0, inputs, Snapshot({}), {}), 3)


MODEL = Mixed().eval().requires_grad_(False)


def test_the_operator_is_named_with_its_module_and_its_counterpart() -> None:
    """The product is computed with the bias apart, which rounds twice."""

    def apart(hidden_states: torch.Tensor) -> torch.Tensor:
        inner = torch.tanh(MODEL.up(hidden_states))
        return (inner.double() @ MODEL.down.weight.double().T + MODEL.down.bias).float() + 1e-7

    text = found(apart)
    assert text.startswith("in down, aten.addmm.default is the first operator whose result differs")
    assert "the compiled model calls aten._to_copy.default" in text


def test_nothing_is_named_where_nothing_differs() -> None:
    """Views are no difference; what the compiled model adds is."""
    assert found(MODEL) == ""
    assert found(lambda hidden_states: MODEL(hidden_states) * 2) == (
        "aten.mul.Tensor is called by the compiled model only"
    )
    assert found(lambda hidden_states: MODEL(hidden_states.view(8).view(1, 8))) == ""
