"""Measurement with a fake clock: no test here depends on the machine's speed."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from sktune.core.errors import BackendError
from sktune.measure.latency import Budget, Contender, Measurement, compare, measure
from sktune.measure.machine import MachineLoad


class Machine:
    """A clock that is advanced by steps with noisy durations, on a machine that drifts."""

    def __init__(self, drift: float = 0.0) -> None:
        self.now = 0.0
        self._drift = drift
        self._rng = np.random.default_rng(0)

    def now_s(self) -> float:
        """Return the time of this machine."""
        return self.now

    def time_s(self, run: Callable[[], object]) -> float:
        """Run and return the time that passed on the clock."""
        start = self.now
        run()
        return self.now - start

    def reset_peak_memory(self) -> None:
        """Do nothing: there is no memory."""

    def peak_memory_bytes(self) -> int | None:
        """Return None: there is no memory."""
        return None

    def step(self, seconds: float, noise: float = 0.02) -> Callable[[], None]:
        """Return a step that takes about ``seconds``."""

        def run() -> None:
            self.now += seconds * (1 + self._drift * self.now) * (1 + noise * abs(self._rng.normal()))

        return run


def contender(run: Callable[[], None]) -> Contender:
    """Return a contender that needs no preparation."""
    return Contender(run, lambda: None)


def speedup(
    machine: Machine, base_s: float, candidate_s: float, budget: Budget | None = None
) -> tuple[float, tuple[float, float], int]:
    """Measure two steps and return ratio, interval and rounds."""
    rng = np.random.default_rng(1)
    budget = budget or Budget(halfwidth=0.002, seconds=30)
    steps = [contender(machine.step(base_s)), contender(machine.step(candidate_s))]
    found = compare(measure(steps, budget, rng, machine, read_load=lambda: None).counted, 1)
    return found.ratio, found.bounds, found.rounds


def test_the_interval_contains_the_true_ratio() -> None:
    """For a candidate that is 10% faster."""
    ratio, (low, high), _ = speedup(Machine(), 0.010, 0.009)
    assert low <= 10 / 9 <= high
    assert ratio == pytest.approx(10 / 9, rel=0.005)


class CoarseMachine(Machine):
    """A clock that shows wrong values for some times, in a cycle."""

    def __init__(self, values: Sequence[float | None]) -> None:
        super().__init__()
        self._values = itertools.cycle(values)

    def time_s(self, run: Callable[[], object]) -> float:
        """Run and return the time that passed on the clock, or a wrong value."""
        took = super().time_s(run)
        wrong = next(self._values)
        return took if wrong is None else wrong


@pytest.mark.parametrize("shown", [0.0, -1e-3, math.nan, math.inf])
def test_an_impossible_time_only_costs_its_block(shown: float) -> None:
    """As caused by the clock's resolution, or by an adjustment of the system's clock."""
    machine = CoarseMachine([None] * 12 + [shown])
    steps = [contender(machine.step(0.010)), contender(machine.step(0.009))]
    rng = np.random.default_rng(1)
    found = measure(steps, Budget(halfwidth=0.01, seconds=30), rng, machine, read_load=lambda: None)
    compared = compare(found.counted, 1)
    assert compared.bounds[0] <= 10 / 9 <= compared.bounds[1]
    assert compared.baseline_ms == pytest.approx(10, rel=0.05)
    assert "no time above 0" in found.noise


@pytest.mark.parametrize("shown", [0.0, -1e-3, math.nan, math.inf])
def test_a_clock_that_shows_no_time_ends_in_one_line(shown: float) -> None:
    """The message says what to do; nothing hangs."""
    machine = CoarseMachine([shown])
    steps = [contender(machine.step(0.010)), contender(machine.step(0.009))]
    with pytest.raises(BackendError, match=r"no time above 0 .* larger batch"):
        measure(steps, Budget(), np.random.default_rng(1), machine, read_load=lambda: None)
    with pytest.raises(BackendError, match="larger batch"):
        compare(np.full((40, 2), shown), 1)


@pytest.mark.parametrize("pace", [0.0, -1.0, math.nan])
def test_a_clock_that_stands_still_ends_in_one_line(pace: float) -> None:
    """As that of a lost device does."""

    class Still(Machine):
        def now_s(self) -> float:
            return pace * self.now

    machine = Still()
    steps = [contender(machine.step(0.010)), contender(machine.step(0.009))]
    with pytest.raises(BackendError, match="clock does not advance"):
        measure(steps, Budget(), np.random.default_rng(1), machine, read_load=lambda: None)


def test_drift_of_the_machine_cancels() -> None:
    """A machine that slows down affects both alike."""
    ratio, _, _ = speedup(Machine(drift=0.05), 0.010, 0.010)
    assert ratio == pytest.approx(1.0, rel=0.005)


def test_measuring_stops_when_the_interval_is_narrow_or_the_budget_spent() -> None:
    """Wide targets end early, narrow ones at the budget."""
    _, _, few = speedup(Machine(), 0.010, 0.009, Budget(halfwidth=0.05, seconds=30))
    _, _, many = speedup(Machine(), 0.010, 0.009, Budget(halfwidth=0.0001, seconds=3))
    assert Budget().min_rounds <= few < 60
    assert few < many <= (3 + Budget().look_s) / 0.019 + 2


def test_preparation_is_not_timed() -> None:
    """Restoring the state takes time that is in no sample."""
    machine = Machine()

    def prepare() -> None:
        machine.now += 1.0

    step = Contender(machine.step(0.010, noise=0.0), prepare)
    found = measure([step, step], Budget(seconds=1), np.random.default_rng(0), machine, read_load=lambda: None)
    assert found.samples.max() == pytest.approx(0.010)


class SharedMachine(Machine):
    """A machine with a load now and then, which slows our steps threefold and shows in its counters."""

    def __init__(self, is_busy: Callable[[float], bool]) -> None:
        super().__init__()
        self._is_busy = is_busy
        self.others_s = 0.0

    def step(self, seconds: float, noise: float = 0.02) -> Callable[[], None]:
        """Return a step that takes about ``seconds``, and more under load."""
        alone = super().step(seconds, noise)

        def run() -> None:
            began = self.now
            alone()
            if self._is_busy(began):
                self.now += 2 * (self.now - began)
                self.others_s += self.now - began

        return run

    def load(self) -> MachineLoad:
        """Return the counters of two cores, of which this process uses one."""
        return MachineLoad(self.now, self.now + self.others_s, 0.0, self.now, 2, None)


def measured(machine: SharedMachine, budget: Budget) -> Measurement:
    """Measure two equal steps."""
    steps = [contender(machine.step(0.010)), contender(machine.step(0.010))]
    return measure(steps, budget, np.random.default_rng(1), machine, read_load=machine.load)


def test_disturbed_rounds_are_left_out_and_waited_out() -> None:
    """A load that comes and goes costs time, but its samples do not count."""
    found = measured(SharedMachine(lambda now: now % 2 < 1), Budget(seconds=2, wait_s=2, halfwidth=0.0001))
    assert 0.3 < found.disturbed.mean() < 0.8
    assert found.counted.max() < 0.02 < found.samples.max()
    assert "disturbed by other load, left out" in found.noise


def test_waiting_for_a_permanent_load_is_bounded() -> None:
    """After the wait all samples count, and the measurement says so."""
    machine = SharedMachine(lambda now: True)
    found = measured(machine, Budget(seconds=2, wait_s=1, halfwidth=0.0001))
    assert len(found.counted) == len(found.samples)
    assert found.noise.startswith("100% of the rounds disturbed by other load, counted anyway")
    assert machine.now < 3.5


def test_a_quiet_machine_is_not_mentioned() -> None:
    """The noise is empty."""
    assert measured(SharedMachine(lambda now: False), Budget()).noise == ""


def test_a_machine_that_slows_down_is_reported() -> None:
    """Drift cancels in the ratio, but is mentioned."""
    machine = Machine(drift=0.05)
    step = contender(machine.step(0.010))
    budget = Budget(seconds=4, halfwidth=0.0001)
    found = measure([step, step], budget, np.random.default_rng(0), machine, read_load=lambda: None)
    assert found.noise.startswith("the machine became")
    assert found.noise.endswith("slower")


@pytest.mark.parametrize("busy", [True, False])
def test_a_budget_binds_however_few_rounds_there_are(busy: bool) -> None:
    """Steps that a busy machine makes slow end in time, with an interval that excludes nothing, and say so."""
    machine = SharedMachine(lambda now: busy)
    steps = [contender(machine.step(0.5)), contender(machine.step(0.4))]
    found = measure(steps, Budget(seconds=2, wait_s=1), np.random.default_rng(1), machine, read_load=machine.load)
    block_s = 2 * 0.9 * (3 if busy else 1)
    assert machine.now <= 2 + 1 * busy + 1.1 * block_s + 1.1 * block_s / 2
    assert 2 <= len(found.samples) < 10
    assert f"time for {len(found.samples)} rounds only, of 40" in found.noise
    low, high = compare(found.counted, 1).bounds
    assert low < 0.1 < 10 < high


def test_a_budget_may_give_slow_steps_time_and_a_deadline_takes_it() -> None:
    """On a quiet machine; a short step needs none."""
    budget = Budget(seconds=2, wait_s=2)
    assert budget.for_steps(0.001, 2) == budget
    slow = budget.for_steps(0.2, 2)
    machine = Machine()
    found = measure([contender(machine.step(0.2))] * 2, slow, np.random.default_rng(0), machine, read_load=lambda: None)
    assert len(found.samples) >= slow.min_rounds
    assert (slow.within(10).seconds, slow.within(10).wait_s) == (10, 0)
    assert (budget.within(3).seconds, budget.within(3).wait_s) == (2, 1)
    assert budget.within(math.inf) == budget
    assert (budget.within(-1).seconds, budget.within(-1).wait_s) == (0, 0)
