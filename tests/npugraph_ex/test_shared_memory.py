"""State that is written through one view and read through another, on both sides of a captured scope's border."""

import pytest
import torch

from sktune.backends.npugraph_ex.backend import NpugraphExBackend
from sktune.core.plan import Plan, Scope
from sktune.core.space import SpaceSpec
from sktune.measure.bits import same_bits
from sktune.targets.base import decode_inputs
from sktune.targets.tracing import trace_layout
from tests.models import stacked_cache
from tests.npugraph_ex import frontend


@pytest.mark.parametrize("scopes", [(), ("first",), ("second",), ("first", "second")])
def test_views_of_one_state_keep_its_bits_across_scopes(scopes: tuple[str, ...]) -> None:
    """Marks are operators of one graph, which is functional: scopes are no borders for memory."""
    assert frontend  # the device is left out
    target = stacked_cache.target()
    with torch.no_grad():
        expected = stacked_cache.run(target, target.decode_step)
        backend = NpugraphExBackend(target, trace_layout(target, SpaceSpec()), decode_inputs(target, 0, 1)[0])
        compiled = backend.compile(Plan(tuple(Scope(name, name) for name in scopes))).step
        compiled.prepare()
        got = stacked_cache.run(target, compiled.run)
    assert all(map(same_bits, expected, got))
