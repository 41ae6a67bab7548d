"""Public profiles with and without SuperKernel: their tasks, what was gained, and what the cost model says.

The tasks are facts of four profiles; only ``fit`` sees what was gained. Those of npugraph_ex are simulated as captured
graphs with its default options.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from sktune.core.layout import Layout, Unit
from sktune.core.plan import Plan, Scope
from sktune.sim.captured import CapturedPath
from sktune.sim.constants import Constants
from sktune.sim.model import StepModel
from sktune.sim.operators import Core, Operator, numbered
from sktune.sim.paths import GePath, SuperKernelPath

FITTED = ("barrier_mix_us", "first_use_us")
"""The constants that are fitted to what was gained; all others are as in ``atlas_a3.yaml``."""
HUB = "cann-learning-hub, 06_advanced_features"

# Name, type, cores, blocks, duration in us, gap before it in us, from start and end times.
_Task = tuple[str, str, Core, int, float, float]
HOMEWORK_1: Sequence[_Task] = (
    ("pre", "GroupedMatmul", "mix", 20, 55.14, 0.0),
    ("swiglu", "DequantSwigluQuant", "vector", 36, 10.18, 1.24),
    ("gelu", "gelu_custom_kernel", "vector", 36, 124.46, 0.02),
    ("after", "GroupedMatmul", "mix", 20, 37.06, 1.34),
    ("quant", "DynamicQuant", "vector", 40, 355.86, 1.00),
    ("clear", "clear_ops", "mix", 20, 32.38, 0.96),
)
HOMEWORK_2: Sequence[_Task] = (
    ("pre", "GroupedMatmul", "mix", 20, 51.80, 0.0),
    ("swiglu", "DequantSwigluQuant", "vector", 36, 9.32, 0.98),
    ("gelu", "gelu_custom_kernel", "vector", 36, 125.08, 0.02),
    ("after", "GroupedMatmul", "mix", 20, 36.98, 1.04),
    ("quant", "DynamicQuant", "vector", 40, 355.48, 1.08),
    ("clear", "clear_ops", "mix", 20, 33.66, 1.34),
)
LAYER: Sequence[_Task] = (
    ("pre", "GroupedMatmul", "mix", 20, 49.5, 2.8),
    ("swiglu", "DequantSwigluQuant", "vector", 36, 8.2, 0.82),
    ("after", "GroupedMatmul", "mix", 20, 38.4, 1.13),
    ("quant", "DynamicQuant", "vector", 40, 329.5, 1.06),
    ("clear", "clear_ops", "mix", 20, 29.0, 1.29),
)
"""Means over 50 layers of equal tasks, so that no kernel runs for the first time."""
# The profiling demo: totals of 15, 5 and 5 calls. Blocks are those of the kernels' tiling, for 24 AIC and 48 AIV.
MATMUL: _Task = ("m", "GroupedMatmul", "mix", 24, 126.26 / 15, 0.0)
GATE: _Task = ("g", "MoeGatingTopK", "vector", 48, 68.32 / 5, 0.0)
SWIGLU: _Task = ("q", "DequantSwigluQuant", "vector", 16, 24.18 / 5, 0.0)
OTHERS: _Task = ("others", "Transpose", "vector", 48, 188.78, 0.0)


@dataclass(frozen=True, slots=True)
class Pair:
    """A profile without and one with SuperKernel.

    Attributes:
        before_us, after_us: of the published profiles.
        simulate: the model's figures for both.
    """

    name: str
    source: str
    before_us: float
    after_us: float
    simulate: Callable[[Constants], tuple[float, float]]

    @property
    def gain(self) -> float:
        """What the SuperKernel gained, in percent."""
        return 100 * (1 - self.after_us / self.before_us)

    def simulated_gain(self, constants: Constants) -> float:
        """What the model says that it gains, in percent."""
        before_us, after_us = self.simulate(constants)
        return 100 * (1 - after_us / before_us)


def _step(
    scopes: Sequence[Sequence[_Task]], constants: Constants, path: type[SuperKernelPath] = CapturedPath
) -> tuple[StepModel, Plan]:
    operators = []
    for index, tasks in enumerate(scopes):
        for name, kind, core, blocks, duration_us, gap_us in tasks:
            # The two matmuls of the exercise have different kernels; shapes tell them apart.
            shapes = ((2048, 7168),) if name == "after" else ()
            operators.append(
                Operator(f"{name}_{index}", kind, core, unit=f"u{index}", blocks=blocks, can_fuse=kind != "Transpose",
                         duration_us=duration_us, wait_us=gap_us, shapes=shapes)
            )  # fmt: skip
    layout = Layout(tuple(Unit(f"u{index}", f"u{index}") for index in range(len(scopes))), ())
    plan = Plan(tuple(Scope(unit.name, unit.name) for unit in layout.units))
    return StepModel(numbered(operators), layout, constants, path), plan


def _times_us(model: StepModel, plan: Plan) -> float:
    table = model.timeline(plan)
    return float((table["start_us"] + table["duration_us"]).max())


def _on_a2(constants: Constants) -> Constants:
    return set_values(constants, {"aic_cores": 20, "aiv_cores": 40})


def _homework(tasks: Sequence[_Task]) -> Callable[[Constants], tuple[float, float]]:
    def simulate(constants: Constants) -> tuple[float, float]:
        model, plan = _step([tasks], _on_a2(constants))
        return _times_us(model, Plan()), _times_us(model, plan)

    return simulate


def _layer(constants: Constants) -> tuple[float, float]:
    """Return the time from one layer's start to the next one's, which the first layer does not affect."""
    (few, few_plan), (more, more_plan) = (_step([LAYER] * n, _on_a2(constants)) for n in (2, 3))
    return _times_us(more, Plan()) - _times_us(few, Plan()), _times_us(more, more_plan) - _times_us(few, few_plan)


def _demo(constants: Constants) -> tuple[float, float]:
    """Return the sum of durations, as the demo has it: gaps are not in its figures."""
    scopes = [[MATMUL, GATE, MATMUL, MATMUL]] * 5 + [[SWIGLU], [SWIGLU], [SWIGLU], [SWIGLU] * 2, [OTHERS]]
    model, plan = _step(scopes, constants, GePath)
    before, after = (float(model.timeline(each)["duration_us"].sum()) for each in (Plan(), plan))
    return before, after


PAIRS = (
    Pair("exercise with GELU, first pass", f"{HUB}, 06.05", 619.64, 597.52, _homework(HOMEWORK_1)),
    Pair("exercise with GELU, second pass", f"{HUB}, 06.05", 616.78, 587.90, _homework(HOMEWORK_2)),
    Pair("one of 50 layers", f"{HUB}, 06.04", 461.7, 452.8, _layer),
    Pair("profiling demo", "graph-autofusion, super_kernel_profiling", 407.54, 384.66, _demo),
)


def fit(pairs: Sequence[Pair], constants: Constants, names: Sequence[str] = FITTED) -> Constants:
    """Return the constants with ``names`` fitted to the gains of ``pairs``, by least squares in points.

    Gains are not smooth in them: a preload takes no longer than what runs meanwhile.
    """

    def error(values: npt.NDArray[np.float64]) -> float:
        tried = set_values(constants, dict(zip(names, np.abs(values).tolist(), strict=True)))
        return sum((pair.simulated_gain(tried) - pair.gain) ** 2 for pair in pairs)

    found = minimize(error, [constants[name] for name in names], method="Nelder-Mead", options={"xatol": 0.005})
    return set_values(constants, {name: abs(float(value)) for name, value in zip(names, found.x, strict=True)})


def left_out(constants: Constants, apart: Sequence[Pair], names: Sequence[str] = FITTED) -> list[float]:
    """Return the simulated gains of ``apart``, in percent, with ``names`` fitted to the other pairs."""
    fitted = fit([pair for pair in PAIRS if pair not in apart], constants, names)
    return [pair.simulated_gain(fitted) for pair in apart]


def first_use_of_unfused_us() -> float:
    """Return by how much unfused tasks of the exercise's single pass are longer than those of repeated layers.

    It sees no SuperKernel. ``DynamicQuant`` is left out: 26 us longer, on another device, which no code explains.
    """
    passes = [{task[0]: task[4] for task in tasks} for tasks in (HOMEWORK_1, HOMEWORK_2)]
    longer = [sum(each[task[0]] for each in passes) / 2 - task[4] for task in LAYER if task[0] != "quant"]
    return sum(longer) / len(longer)


def set_values(constants: Constants, values: Mapping[str, float]) -> Constants:
    """Return a copy with other values."""
    return constants.with_constants(
        {name: constants.constants[name].model_copy(update={"value": value}) for name, value in values.items()}
    )
