"""Measurement, on a clock of our own: no test here depends on the machine's speed."""

from collections.abc import Callable

import numpy as np
import pytest

from sktune.latency import Budget, Contender, compare, measure


class Machine:
    """A clock that steps advance: durations with noise, on a machine that drifts."""

    def __init__(self, drift: float = 0.0) -> None:
        self.now = 0.0
        self._drift = drift
        self._rng = np.random.default_rng(0)

    def now_s(self) -> float:
        """Return the time of this machine."""
        return self.now

    def time_s(self, run: Callable[[], object]) -> float:
        """Run and return how far the clock went."""
        start = self.now
        run()
        return self.now - start

    def reset_peak_memory(self) -> None:
        """There is no memory."""

    def peak_memory_bytes(self) -> int | None:
        """There is no memory."""
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
    machine: Machine, base_s: float, own_s: float, budget: Budget | None = None
) -> tuple[float, tuple[float, float], int]:
    """Measure two steps and return ratio, interval and rounds."""
    rng = np.random.default_rng(1)
    budget = budget or Budget(halfwidth=0.002, seconds=30)
    samples = measure([contender(machine.step(base_s)), contender(machine.step(own_s))], budget, rng, machine)
    found = compare(samples, 1, rng)
    return found.ratio, found.ci95, found.rounds


def test_the_interval_holds_the_true_ratio() -> None:
    """A candidate 10% faster is seen as such."""
    ratio, (low, high), _ = speedup(Machine(), 0.010, 0.009)
    assert low <= 10 / 9 <= high
    assert ratio == pytest.approx(10 / 9, rel=0.005)


def test_drift_of_the_machine_cancels() -> None:
    """A machine that doubles its speed of heating up moves both alike."""
    ratio, _, _ = speedup(Machine(drift=0.05), 0.010, 0.010)
    assert ratio == pytest.approx(1.0, rel=0.005)


def test_measuring_stops_when_the_interval_is_narrow_or_the_budget_spent() -> None:
    """Wide goals end early, narrow ones at the budget."""
    _, _, few = speedup(Machine(), 0.010, 0.009, Budget(halfwidth=0.05, seconds=30))
    _, _, many = speedup(Machine(), 0.010, 0.009, Budget(halfwidth=0.0001, seconds=3))
    assert few == Budget().least_rounds
    assert few < many <= 3 / 0.019 + Budget().rounds_at_once


def test_preparation_is_not_timed() -> None:
    """Putting the state back takes time that no sample holds."""
    machine = Machine()

    def prepare() -> None:
        machine.now += 1.0

    step = Contender(machine.step(0.010, noise=0.0), prepare)
    samples = measure([step, step], Budget(seconds=1), np.random.default_rng(0), machine)
    assert samples.max() == pytest.approx(0.010)
