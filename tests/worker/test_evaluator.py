"""A judge ends in time: on steps that are slow, with the deadline of a time budget."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from sktune.backends.base import Compiled, Step
from sktune.core.layout import Layout
from sktune.core.outcome import Reason
from sktune.core.plan import Plan, Scope
from sktune.measure.confidence_sequence import Comparison
from sktune.measure.devices import Cpu
from sktune.measure.machine import MachineLoad
from sktune.targets.base import Target
from sktune.worker.evaluator import PlanEvaluator
from sktune.worker.jobs import Compare, Judge, Progress, SampleNoiseFloor, Verify, silent
from sktune.worker.replays import prepare
from sktune.worker.step_timer import StepTimer

PLANS = [("1", Plan((Scope("a", "a"),)))]


def target() -> Target:
    """Return a target that adds one."""
    return Target(nn.Identity(), lambda x: x + 1, lambda seed, steps: [(torch.full((2,), float(seed)),)] * steps)


class Slow:
    """A backend whose steps wait, whatever the plan."""

    notes = ""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s

    def compile(self, plan: Plan, on_scope: Callable[[str], None] = lambda label: None) -> Compiled:
        """Return a step that waits."""

        def run(x: torch.Tensor) -> torch.Tensor:
            time.sleep(self._wait_s)
            return x + 1

        return Compiled(Step(run), len(plan.scopes), code_digest=plan.digest)

    def written(self) -> Mapping[str, Any]:
        """Return nothing."""
        return {}

    def with_operators(self, layout: Layout) -> Layout:
        """Return it as it is."""
        return layout

    def check_machine(self) -> None:
        """See ``Backend``."""

    def references(self) -> dict[str, Callable[[], Compiled]]:
        """Return nothing."""
        return {}


@pytest.fixture(scope="module")
def judge() -> PlanEvaluator:
    """Return a judge of steps that take 20 ms."""
    return PlanEvaluator(target(), Slow(0.02))


def test_a_deadline_leaves_figures_without_enough_rounds(judge: PlanEvaluator) -> None:
    """Of a trial, the noise floor and the final comparison: nothing is claimed, and the noise says why."""
    judge.ends_s = time.monotonic() + 0.5
    outcome = judge.judge(Judge(PLANS[0][1], ""), silent)
    judge.ends_s = time.monotonic() + 0.5
    floor = judge.sample_noise_floor(SampleNoiseFloor(0), silent)
    judge.ends_s = time.monotonic() + 0.5
    compared = judge.compare(Compare(PLANS), silent)
    rows, noise = compared.rows, compared.noise
    assert floor is not None
    assert outcome.is_complete
    assert outcome.comparison == Comparison.UNDECIDED
    for speedup in (outcome.speedup, floor.speedup, *(row.speedup for row in rows[1:])):
        assert speedup is not None
        assert 2 <= speedup.rounds < 28
        assert speedup.bounds[0] < 0.2 < 5 < speedup.bounds[1]
    for text, rounds in ((outcome.noise, 40), (floor.noise, 40), (noise, 28)):
        assert f"rounds only, of {rounds} that an interval needs" in text


def test_a_verification_ends_with_its_time_and_claims_what_it_compared(judge: PlanEvaluator) -> None:
    """A plan of which no more was compared than in its trial is left out: that one's verification stands."""
    judge.ends_s = math.inf
    assert judge.verify(Verify("1", PLANS[0][1], steps=2048, seconds=0.0), silent) is None
    judge.ends_s = time.monotonic()
    assert judge.verify(Verify("1", PLANS[0][1], steps=2048), silent) is None
    judge.ends_s = math.inf
    verification = judge.verify(Verify("1", PLANS[0][1], steps=640, seconds=1.5), silent)
    assert verification is None or 16 < verification.steps < 640


@pytest.mark.parametrize("others_s", [0.0, 1.0])
def test_only_steps_that_are_slow_on_a_quiet_machine_get_more_time(
    others_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy one they may become as slow as they like."""
    loads = iter(MachineLoad(at_s, at_s * others_s, 0.0, 0.0, 1, None) for at_s in range(100))
    monkeypatch.setattr("sktune.measure.machine.read", lambda: next(loads))
    timer = StepTimer(Cpu(), prepare(target())[0], Progress())
    took_s = timer.quiet_step_s(Slow(0.03).compile(Plan()).step)
    assert took_s == 0.0 if others_s else took_s >= 0.03


class Damaging(Slow):
    """A backend whose plans write to memory that is no state of the step, from their 50th step on."""

    def __init__(self, first: int) -> None:
        super().__init__(0.0)
        self._first, self._added, self._steps = first, torch.ones(2), 0

    def compile(self, plan: Plan, on_scope: Callable[[str], None] = lambda label: None) -> Compiled:
        """Return a step that adds one, as long as nothing is damaged."""

        def run(x: torch.Tensor) -> torch.Tensor:
            self._steps += bool(plan.scopes)
            if plan.scopes and self._steps >= self._first:
                self._added += 1
            return x + self._added

        return Compiled(Step(run), len(plan.scopes), code_digest=plan.digest)


@pytest.mark.parametrize("first", [1, 50])
def test_a_plan_that_damages_memory_is_to_blame_for_it(first: int) -> None:
    """Not the baseline, which is deterministic: in its trial, and where the damage comes later, in its verification."""
    judge = PlanEvaluator(target(), Damaging(first))
    if first == 1:
        outcome = judge.judge(Judge(PLANS[0][1], ""), silent)
        assert outcome.reason is Reason.CRASHED and "writes to memory" in outcome.detail
    else:
        verification = judge.verify(Verify("1", PLANS[0][1], 200), silent)
        assert verification is not None and verification.is_broken and "writes to memory" in str(verification)
