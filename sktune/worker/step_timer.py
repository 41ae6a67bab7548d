"""Times compiled steps against each other, each from the same state, in random order."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch

from sktune.backends.base import Compiled, Observe, Step
from sktune.core.outcome import ScopeTime, Speedup
from sktune.measure import latency, machine
from sktune.measure.latency import Budget, Contender, Device
from sktune.measure.machine import MachineLoad
from sktune.targets.base import Inputs
from sktune.worker.jobs import Progress
from sktune.worker.replays import Replay, copied

SHORT_S = 0.002
"""A step below this leaves time for enough rounds in any budget."""
PACE_S, PACE_RUNS = 0.1, 3
"""Least time and runs that show a longer step's duration; the machine's counters advance by 10 ms."""


class StepTimer:
    """Times steps of one target.

    Args:
        device: where they run.
        replay: the replay whose start is that of each timed step.
        progress: is told of signs of life and of samples.
    """

    def __init__(self, device: Device, replay: Replay, progress: Progress) -> None:
        self._device, self._replay, self._progress = device, replay, progress

    def begin(self) -> Inputs:
        """Restore the state in which a timed step starts, and return its inputs."""
        self._replay.start.restore()
        return copied(self._replay.inputs[0])

    def observe(self, observe: Observe) -> tuple[ScopeTime, ...]:
        """Return the time of each scope and gap of a step."""
        with quiet_collector(), torch.no_grad():
            return observe(self.begin)

    def quiet_step_s(self, step: Step) -> float:
        """Return how long a step takes at its fastest; 0 if it is short, or if the machine was disturbed meanwhile."""
        contender = self._contender(step)

        def time_s() -> float:
            contender.prepare()
            return self._device.time_s(contender.run)

        if min(time_s(), time_s()) < SHORT_S:
            return 0.0
        began, before = time.perf_counter(), machine.read()
        times = [time_s()]
        while len(times) < PACE_RUNS or time.perf_counter() - began < PACE_S:
            times.append(time_s())
            self._progress.heartbeat()
        return 0.0 if machine.disturbance(before, machine.read()) else min(times)

    def compare(
        self,
        entries: Mapping[str, Compiled],
        budget: Budget,
        enough: Callable[[Speedup], bool] = lambda speedup: False,
    ) -> tuple[dict[str, Speedup], str]:
        """Time ``entries``, the baseline first; return their speedups over it and the machine's noise."""
        with quiet_collector():
            contenders = [self._contender(entry.step) for entry in entries.values()]
            # A new random order for each measurement: a fixed order would repeat the same error.
            measurement = latency.measure(contenders, budget, np.random.default_rng(), self._device, enough, self._load)
        self._progress.measured(list(entries), measurement)
        speedups = {name: latency.compare(measurement.counted, index) for index, name in enumerate(entries)}
        return speedups, measurement.noise

    def _load(self) -> MachineLoad | None:
        self._progress.heartbeat()
        return machine.read()

    def _contender(self, step: Step) -> Contender:
        replay = self._replay
        inputs = copied(replay.inputs[0])

        def prepare() -> None:
            replay.start.restore()
            for copy, original in zip(inputs, replay.inputs[0], strict=True):
                if isinstance(copy, torch.Tensor):
                    copy.copy_(original)
            step.prepare()

        return Contender(lambda: step.run(*inputs), prepare)


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep Python's garbage collector from running inside a timed step."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
