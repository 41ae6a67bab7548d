"""The count of exact plans that differ: what counts as a difference, and the bound that follows."""

import pytest
import torch

from benchmarks.exact_plans import DIFFERS, EQUAL, FIRST_SEED, REJECTED, bound, digests, table, with_special_values
from benchmarks.random_programs import program_of
from sktune.backends.base import Step
from sktune.targets.base import Snapshot, decode_inputs
from sktune.worker.replays import Replay
from sktune.worker.step_check import Digester


def digest_of(result: float, state: float) -> torch.Tensor:
    """Return the digests of a step that returns ``result`` and leaves ``state``."""
    held = {"state": torch.zeros(3, dtype=torch.bfloat16)}

    def run(token: torch.Tensor) -> torch.Tensor:
        held["state"].fill_(state)
        return torch.full((2,), result) + token

    return digests(Step(run), Replay(0, [(torch.tensor([0]),)] * 2, Snapshot(held), held), Digester())


def test_every_bit_of_results_and_state_counts_except_those_of_nans() -> None:
    """The last bit and the sign of zero do; all NaNs are alike, as no guarantee covers theirs."""
    nan, other_nan = (torch.tensor(bits, dtype=torch.int32).view(torch.float32).item() for bits in (0x7FC00000, -1))
    expected = digest_of(1.0, 0.0)
    assert torch.equal(expected, digest_of(1.0, 0.0))
    for result, state in ((1.0 + 2.0**-23, 0.0), (1.0, -0.0), (nan, 0.0)):
        assert (expected != digest_of(result, state)).any(-1).all()
    assert torch.equal(digest_of(nan, nan), digest_of(other_nan, -nan))


def test_only_further_steps_have_special_values() -> None:
    """The checks of a search see what they see in practice; further contexts are the same in each run."""
    target = with_special_values(program_of(6_000_000))
    for seed, is_special in ((1, False), (FIRST_SEED, False), (FIRST_SEED + 1, True)):
        given, again = (decode_inputs(target, seed, 64) for _ in range(2))
        assert all(map(torch.equal, given[5], again[5])) or is_special  # NaNs do not equal themselves
        assert (not all(hidden.isfinite().all() for _, hidden in given)) is is_special


def test_the_bound_counts_plans_and_what_further_steps_can_show() -> None:
    """It is the rule of three, and wider by the share of such plans that would have gone unseen."""
    assert bound(400, 6000) == pytest.approx(3 / 400, rel=0.01)
    assert bound(400, 680) == pytest.approx(3 / 400 / 0.632, rel=0.01)
    assert bound(0, 0) == 1.0
    row = {"population": "random", "name": "1", "steps": 2048}
    rows = [{**row, "outcome": EQUAL}] * 100
    assert "| both | 1 | 101 | 0 | 0 | 1 | 100 | 0 | 204,800 | 3.1" in table([*rows, {**row, "outcome": REJECTED}])
    assert "none" in table([*rows, {**row, "outcome": DIFFERS}]).splitlines()[-1]
