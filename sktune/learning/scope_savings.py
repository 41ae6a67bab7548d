"""The savings of a plan's scopes as they were timed, and as they will be."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from sktune.core.outcome import Outcome
from sktune.core.plan import Options, Plan
from sktune.learning.failures import Key
from sktune.learning.observations import ScopeSaving
from sktune.learning.segments import SegmentCatalogue

SCOPE_TIME_NOISE = 0.02


def expected_scope_savings(catalogue: SegmentCatalogue, keys: Sequence[Key]) -> tuple[ScopeSaving, ...]:
    """Return the observations of a running plan's scopes, as if all units took the same time; savings are 0."""
    unit_noise = 2 * SCOPE_TIME_NOISE / catalogue.n_units
    return tuple(
        ScopeSaving(segment, options, 0.0, max(1e-6, unit_noise * float(catalogue.length[segment]) / math.sqrt(count)))
        for (segment, options), count in Counter(keys).items()
    )


def scope_savings(
    catalogue: SegmentCatalogue, plan: Plan, outcome: Outcome, baseline_ms: float
) -> tuple[ScopeSaving, ...]:
    """Return the saving of each class of a plan's scopes."""
    times = {(piece.first, piece.last): piece for piece in outcome.scope_times if piece.in_scope}
    grouped: dict[tuple[int, Options], list[tuple[float, float]]] = {}
    for scope, pair in zip(plan.scopes, catalogue.positions(plan), strict=True):
        if piece := times.get((scope.first, scope.last)):
            key = (int(catalogue.class_of[pair]), scope.options)
            saving = (piece.baseline_ms - piece.latency_ms) / baseline_ms
            noise = SCOPE_TIME_NOISE * (piece.baseline_ms + piece.latency_ms) / baseline_ms
            grouped.setdefault(key, []).append((saving, noise))
    return tuple(
        ScopeSaving(
            segment,
            options,
            float(np.mean([saving for saving, _ in pairs])),
            max(1e-6, float(np.mean([noise for _, noise in pairs])) / math.sqrt(len(pairs))),
        )
        for (segment, options), pairs in grouped.items()
    )
