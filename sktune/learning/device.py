"""What a study has found the device to be: the constants of the law of SuperKernels that its figures determine.

Savings show differences alone: every fused operator saves its gap and head and costs a barrier. What is found are
therefore the sums below, not each constant.
"""

import math
from collections.abc import Mapping

import numpy as np

from sktune.core.events.studies import DeviceConstant
from sktune.learning.law import CORES, PRIOR_US
from sktune.learning.savings import TEMPERING, Posterior

SUMS: Mapping[str, Mapping[str, float]] = {
    "gap and head, less a barrier of vector cores": {"task_us": 1.0, "barrier_vector_us": -1.0},
    "gap and head, less a barrier of cube cores": {"task_us": 1.0, "barrier_cube_us": -1.0},
    "signal between cube and vector cores": {"signal_us": 1.0},
    "early start": {"early_start_us": 1.0},
    "loading code, in 1 copy": {"icache_fetch_us": 1.0, "icache_contention_us": 1.0, "icache_copy_us": 1.0},
    "loading code, in 4 copies": {"icache_fetch_us": 1.0, "icache_contention_us": 0.25, "icache_copy_us": 4.0},
}
"""Each as a sum of the law's terms."""


def found(posterior: Posterior) -> tuple[DeviceConstant, ...]:
    """Return what is known of the device; nothing if its operators are unknown, or if scopes do not follow the law."""
    law = posterior.model.law
    if law is None or not posterior.chosen.follows_law:
        return ()
    at = {term.name: index for index, term in enumerate(law.terms)}
    rows = np.zeros((len(SUMS), len(law.terms)))
    for row, terms in zip(rows, SUMS.values(), strict=True):
        for name, factor in terms.items():
            row[at[name]] = factor
    # What single types add is part of the mean over the step's operators.
    vector, cube, _, early, *_ = rows
    by_type = ((vector, "type", ["vector"]), (cube, "type", ["cube"]), (early, "early start of", CORES))
    for row, effect, cores in by_type:
        for kind, share in law.types_after(*cores).items():
            row[at[f"{effect} {kind}"]] = share
    means, deviations = posterior.predict_law(rows)
    prior = np.sqrt(rows**2 @ np.array([term.sd_us for term in law.terms]) ** 2)
    # The scopes that one trial observes share the law's error, so that the posterior is surer than it may be.
    deviations = np.minimum(prior, math.sqrt(TEMPERING) * deviations)
    return tuple(
        DeviceConstant(name, float(mean), float(sd), float(prior_sd))
        for name, mean, sd, prior_sd in zip(SUMS, means, deviations, prior, strict=True)
    )


def constants_us(posterior: Posterior) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation in us of the law's constants that were found, by their name.

    ``barrier_vector_us`` keeps its prior mean, and gap and head (``task_us``) follow from it: only their difference
    shows. The constants of loading code are there if both of their sums are determined. Early start is never there: it
    is found as a mean over all operators, and the simulator's constant is that of kernels with hooks for it.
    """
    known = {each.name: each for each in found(posterior) if each.is_determined}
    vector, cube, signal, _, *loading = (known.get(name) for name in SUMS)
    values: dict[str, tuple[float, float]] = {}
    if vector:
        task_us = vector.us + PRIOR_US["barrier_vector_us"][0]
        values["task_us"] = task_us, vector.sd_us
        if cube:
            values["barrier_cube_us"] = task_us - cube.us, float(np.hypot(vector.sd_us, cube.sd_us))
    if signal:
        values["signal_us"] = signal.us, signal.sd_us
    if all(loading):
        assert posterior.model.law
        names = [term.name for term in posterior.model.law.terms]
        for name in ("icache_fetch_us", "icache_contention_us", "icache_copy_us"):
            mean, sd = posterior.predict_law(np.eye(len(names))[[names.index(name)]])
            values[name] = float(mean[0]), math.sqrt(TEMPERING) * float(sd[0])
    return {name: value for name, value in values.items() if value[0] > 0}
