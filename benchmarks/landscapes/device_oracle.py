"""An oracle for device landscapes: the partition sampler with the device's own law, whose constants alone it learns.

What no sampler can know better shows how much of a figure is noise and luck.
"""

from dataclasses import replace

import numpy as np

from benchmarks.landscapes.devices import CONSTANTS_US, DeviceLandscape
from sktune.core.plan import Options
from sktune.core.space import SearchSpace
from sktune.learning.evidence import Vector
from sktune.learning.law import Law, Term
from sktune.learning.savings import Hyperparameters, SegmentModel
from sktune.samplers.partition import PartitionSampler
from sktune.study.strategy import Strategy

STEP = 1e-3
"""Relative change of a constant, to find what it is worth."""


class TrueLaw(Law):
    """The law of one device: what each constant is worth in each class of segments, by options."""

    def __init__(self, landscape: DeviceLandscape) -> None:
        savings = landscape.savings_us
        blocks = []
        for name in CONSTANTS_US:
            us = {**landscape.device.us, name: landscape.device.us[name] * (1 + STEP)}
            changed = landscape.with_device(replace(landscape.device, us=us)).savings_us
            blocks.append((changed - savings) / (STEP * landscape.device.us[name]))
        worth = np.stack(blocks, axis=2)
        rest = savings - worth @ np.array([landscape.device.us[name] for name in CONSTANTS_US])
        columns = np.concatenate([worth, rest[:, :, None]], axis=2)
        self._index = landscape.option_index
        self._width = columns.shape[2]
        self.counts = columns.reshape(len(columns), -1).astype(np.float32)
        self.terms = (*(Term(name, us, us) for name, us in CONSTANTS_US.items()), Term("rest", 1.0, 1e-6))

    def weights(self, options: Options) -> Vector:
        """See ``Law.weights``."""
        weights = np.zeros((self.counts.shape[1], self._width))
        begin = self._index[options] * self._width
        weights[begin : begin + self._width] = np.eye(self._width)
        return weights


class _OracleModel(SegmentModel):
    def begin(self) -> Hyperparameters:
        return Hyperparameters(1e-9, segment_ratio=0.1, follows_law=bool(self.baseline_us))

    def choose(self) -> dict[Hyperparameters, float]:
        return {self.begin(): 1.0}

    def follow(self, law: Law) -> None:
        """It knows already what is fused."""


def oracle(landscape: DeviceLandscape) -> Strategy:
    """Return the strategy for one landscape."""

    def make(space: SearchSpace, seed: int) -> PartitionSampler:
        sampler = PartitionSampler(space, seed, probes=True)
        learned = sampler._learned  # noqa: SLF001
        model = learned.model
        learned.model = _OracleModel(
            learned.catalogue, (*model.options, *model.step_options), space.options.of_step, TrueLaw(landscape)
        )
        return sampler

    return Strategy("oracle", make, persistent=True, takes_starting_points=True)
