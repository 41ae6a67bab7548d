"""Times compiled steps against each other, from the same state on, step by step in an order drawn by lot."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from sktune.backends.base import Compiled, Step
from sktune.core.outcome import Speedup
from sktune.measure import latency, machine
from sktune.measure.latency import Budget, Contender, Device, Measurement
from sktune.measure.machine import MachineLoad
from sktune.runners.worker.replays import Replay, copied
from sktune.targets.base import Inputs

SampleSink = Callable[[Sequence[str], Measurement], None]
"""Takes the names of the contenders and all their samples."""


def discard(names: Sequence[str], measurement: Measurement) -> None:
    """Keep no samples."""


class StepTimer:
    """Times steps of one target.

    Args:
        device: where they run.
        replay: where each timed step starts from; None where latencies are computed.
        alive: called now and then while something is measured.
    """

    def __init__(self, device: Device, replay: Replay | None, alive: Callable[[], None]) -> None:
        self._device, self._given, self._alive = device, replay, alive

    @property
    def _replay(self) -> Replay:
        assert self._given is not None  # a step whose latency is computed is not timed
        return self._given

    def begin(self) -> Inputs:
        """Put the state to where a timed step starts, and return its inputs."""
        self._replay.start.restore()
        return copied(self._replay.inputs[0])

    def compare(
        self,
        entries: Mapping[str, Compiled],
        budget: Budget,
        keep: SampleSink = discard,
        enough: Callable[[Speedup], bool] = lambda speedup: False,
    ) -> tuple[dict[str, Speedup], str]:
        """Time ``entries``, the baseline first; returns their speedups over it, and the noise of the machine."""
        simulated_ms = [entry.simulated_ms for entry in entries.values() if entry.simulated_ms is not None]
        if len(simulated_ms) == len(entries):
            return {name: _computed(simulated_ms[0], own) for name, own in zip(entries, simulated_ms, strict=True)}, ""
        with quiet_collector():
            contenders = [self._contender(entry.step) for entry in entries.values()]
            # A coin of its own for each measurement: an order that repeats would repeat its errors.
            found = latency.measure(contenders, budget, np.random.default_rng(), self._device, enough, self._load)
        keep(list(entries), found)
        speedups = {name: latency.compare(found.counted, index) for index, name in enumerate(entries)}
        return speedups, found.noise

    def _load(self) -> MachineLoad | None:
        self._alive()
        return machine.read()

    def _contender(self, step: Step) -> Contender:
        replay = self._replay
        inputs = copied(replay.inputs[0])

        def prepare() -> None:
            replay.start.restore()
            for own, given in zip(inputs, replay.inputs[0], strict=True):
                if isinstance(own, torch.Tensor):
                    own.copy_(given)
            step.prepare()

        return Contender(lambda: step.run(*inputs), prepare)


def _computed(baseline_ms: float, latency_ms: float) -> Speedup:
    """Return a speedup that was computed."""
    ratio = baseline_ms / latency_ms
    return Speedup(baseline_ms, latency_ms, ratio, None, 1)


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
