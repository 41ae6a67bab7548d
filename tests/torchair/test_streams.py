"""TorchAir's other scopes in the model's own code: streams and limits of cores are borders of scopes."""

import torch
import torchair
from torch import nn

from sktune.core.space import SpaceSpec
from sktune.targets.base import Target
from sktune.targets.tracing import trace_layout
from tests.torchair import frontend  # noqa: F401 - imports torchair as a user would

SIZE = 16


class TwoStreams(nn.Module):
    """A layer whose experts run on a stream and on cores of their own, as LongCat-Flash has them."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.experts, self.dense = (nn.Linear(SIZE, SIZE) for _ in range(3))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (batch, size) to the same shape."""
        hidden = self.attention(hidden)
        with torchair.scope.npu_stream_switch("1"), torchair.scope.limit_core_num(8, 16):
            routed = self.experts(hidden)
        output: torch.Tensor = self.dense(hidden) + routed
        return output


def test_units_know_their_stream_and_cores() -> None:
    """One eager step shows it; a scope over all three units would cross two borders."""
    module = TwoStreams()
    target = Target(module, module.forward, lambda seed, steps: [(torch.ones(2, SIZE),)] * steps)
    places = {unit.key: unit.place for unit in trace_layout(target, SpaceSpec()).units}
    assert places["attention"] == places["dense"] == ""
    assert "_user_stream_label=1" in places["experts"]
    assert "_op_aicore_num=8" in places["experts"]
