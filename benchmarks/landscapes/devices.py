"""Devices: what scopes save over the operators of real models, under laws of operators that are drawn from the seed.

The operators are those of eight architectures as TorchAir converts them (``benchmarks/data/operators.json``), over 61
layers. A device's constants are drawn over a factor of ten around those of the simulator, its noise and the gain of its
best plan from ranges. Its laws are switched on and off by the seed: ``TRAIN`` and ``TEST`` laws are kept apart, so that
a sampler that was made on the former can be tested on the latter. ``known-devices`` have none of both: their law is the
simulator's.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import groupby, product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.landscape import Truth
from benchmarks.landscapes.failing import Fails
from sktune.backends import backend_info
from sktune.core.fused_scopes import FusedPart, FusedScope
from sktune.core.layout import OUTSIDE, CapturedWork, Kernel, KernelCore, Layer, Layout, Unit
from sktune.core.outcome import ScopeTime
from sktune.core.plan import Plan, Scope
from sktune.core.space import LAYERS_PER_SCOPE, SpaceSpec, bind, limit_of
from sktune.learning.best_partition import Partitioner
from sktune.learning.law import Runs
from sktune.learning.segments import SegmentCatalogue
from sktune.learning.threads import one_blas_thread

OPERATORS = Path(__file__).resolve().parent.parent / "data" / "operators.json"
LAYERS, DENSE_LAYERS = 61, 3
"""Layers of a model, and those of its first kind if it has two."""
OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "stream-fusion": (0, 1),
    "early-start": (1, 0, 2),
    "preload-code": ("per-func", "max", "none"),
    "split-mode": (4, 1, 2, 8),
}
TRAIN = ("gap by cores", "barrier by blocks", "unknown unfusable", "code cache")
TEST = ("head by blocks", "hooks", "slower inside", "launch", "imbalance")
CONSTANTS_US: Mapping[str, float] = {
    "task": 2.0, "barrier vector": 0.75, "barrier cube": 0.75, "barrier mix": 1.5, "signal": 0.5, "early start": 0.75,
    "fetch": 1.0, "contention": 2.0, "copy": 0.125,
}  # fmt: skip
"""Estimates; a device's lie up to a factor of the root of ten from them."""
AIC, AIV = 24, 48
TEXT_KIB = {"vector": 8.0, "cube": 16.0}
PRELOADED_KIB = 16.0
EASY, LEAST = 0.9, 0.05
"""Draws are left out if a starting point reaches this share of the gain, or if the best plan saves less than this share
of all gaps and heads."""

CHANGE = 0.3
"""Of operators, as a share of the spread among them."""
GAINS, NOISES = (0.01, 0.12), (0.003, 0.015)

Floats = npt.NDArray[np.float64]
Known = Literal["times", "all", "number", "nothing"]


@dataclass(frozen=True, slots=True)
class Device:
    """What is drawn from a seed.

    Attributes:
        us: the constants, by name.
        gain: of the best plan, as a share of the baseline.
        noise: relative standard deviation of one measured latency.
        laws: that are switched on.
    """

    us: Mapping[str, float]
    gain: float
    noise: float
    laws: frozenset[str]


@dataclass(slots=True)
class _Operators:
    """The operators of a step as arrays; equal layers have equal ones."""

    types: list[str] = field(default_factory=list)
    cores: list[KernelCore] = field(default_factory=list)
    parts: list[tuple[str, int]] = field(default_factory=list)
    """Which operator of which part it is; equal for all layers of a kind."""
    units: list[int] = field(default_factory=list)
    """Its unit, or the unit that it follows."""
    inside: list[bool] = field(default_factory=list)


class DeviceLandscape:
    """See ``benchmarks.landscape.Landscape``.

    Attributes:
        device: what was drawn.
        option_index: the column of each set of options in ``savings_us``.

    Args:
        name: in tables.
        seed: chooses the model, and what its operators are like.
        device: what was drawn.
        known: what the space's layout tells the sampler of the operators.
        layers: of the model.
        drawn: chooses what operators are like; None for ``seed``.
        changed: chooses how their durations, numbers of blocks and sizes of code differ from that, by about ``CHANGE``
            of their spread; None if they do not.
    """

    def __init__(
        self,
        name: str,
        seed: int,
        device: Device,
        known: Known = "all",
        layers: int = LAYERS,
        drawn: int | None = None,
        changed: int | None = None,
    ) -> None:
        self.name, self.device, self.noise = name, device, device.noise
        self._seed, self._known, self._layers, self._drawn, self._changed = seed, known, layers, drawn, changed
        models = _models()
        rng = np.random.default_rng([1, seed if drawn is None else drawn])
        operators, layout = _expanded(models[seed % len(models)]["parts"], layers)
        self._operators = operators
        self._draw(rng)
        times = self._busy if known == "times" else np.zeros(len(self._busy))
        each = zip(operators.types, operators.cores, self._expected, times, strict=True)
        kernels = [Kernel(kind, core, can_fuse, busy_us=float(us)) for kind, core, can_fuse, us in each]
        names = [layout.units[unit].name if is_inside else None
                 for unit, is_inside in zip(operators.units, operators.inside, strict=True)]  # fmt: skip
        self._layout = layout.with_kernels(zip(names, kernels, strict=True))
        rules = backend_info("sim").options.rules
        limits: dict[str, Any] = {"layers_per_scope": [1, 2, "all"]}
        told = {"times": self._layout, "all": self._layout, "number": _counted(self._layout), "nothing": layout}
        self.space = bind(SpaceSpec(**limits), told[known], OPTIONS, rules)
        self._ranges = _ranges(operators, len(layout.units))
        max_layers = max(map(limit_of, self.space.choices[LAYERS_PER_SCOPE]))
        self._catalogue = SegmentCatalogue(layout, max_layers)
        self._options = list(dict.fromkeys(
            self.space.chosen_options({**self.space.simplest, **dict(zip(OPTIONS, values, strict=True))})[0]
            for values in product(*OPTIONS.values())
        ))  # fmt: skip
        self.option_index = {options: index for index, options in enumerate(self._options)}
        self._position = {unit.name: index for index, unit in enumerate(layout.units)}
        self._fused: dict[int, FusedScope] = {}

    def _draw(self, rng: np.random.Generator) -> None:
        """Draw what operators are like: the same for all operators of a kind of layers."""
        ops, laws = self._operators, self.device.laws
        names = sorted(set(ops.parts))
        at = np.array([names.index(part) for part in ops.parts])
        cube = np.array([core == "cube" for core in ops.cores])
        self._is_cube = cube
        spread = rng.standard_normal((4, len(names)))[:, at]
        if self._changed is not None:
            others = np.random.default_rng([2, self._changed]).standard_normal((4, len(names)))[:, at]
            spread = np.sqrt(1 - CHANGE**2) * spread + CHANGE * others
        self._busy = np.where(cube, 15.0 * np.exp(0.7 * spread[0]), 2.0 * np.exp(0.5 * spread[0]))
        full = np.clip(np.exp(spread[1] - 0.7), 0.02, 1.0)
        self._blocks = np.where(cube, np.ceil(AIC * np.sqrt(full)), np.ceil(AIV * full))
        self._text = np.where(cube, TEXT_KIB["cube"], TEXT_KIB["vector"])
        if "code cache" in laws:
            self._text = self._text * np.exp(0.3 * spread[2])
        kinds = sorted({kind for kind, is_cube in zip(ops.types, cube, strict=True) if not is_cube})
        chance = dict(zip(kinds, rng.random(len(kinds)), strict=True))
        share = float(rng.choice((0.0, 0.1, 0.25)))
        self._expected = [chance.get(kind, 1.0) >= share for kind in ops.types]
        more = share + 0.1 if "unknown unfusable" in laws else share
        self._can_fuse = np.array([chance.get(kind, 1.0) >= more for kind in ops.types])
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(ops.types))}
        self._type = np.array([numbers[kind] for kind in ops.types])
        every = int(self._type.max()) + 1
        self._hooks = (rng.random(every) < 0.5)[self._type]
        slower = np.where(rng.random(every) < 3 / every, rng.uniform(0.02, 0.3, every), 0.0)
        self._slower = slower[self._type] * self._busy
        self._capacity_kib = 10 ** rng.uniform(1.8, 3.0)
        self._launch_us = 10 ** rng.uniform(0.0, 1.3)
        self._imbalance = 10 ** rng.uniform(-2.0, -1.0)
        self._mixed_gap_us = self.device.us["task"] * rng.uniform(-0.5, 1.0)

    def with_device(self, device: Device) -> "DeviceLandscape":
        """Return the landscape with other constants."""
        return DeviceLandscape(self.name, self._seed, device, self._known, self._layers, self._drawn, self._changed)

    def varied(self, layers: int = LAYERS, drawn: int | None = None, changed: int | None = None) -> "DeviceLandscape":
        """Return the same model with another number of layers, or with operators that are drawn anew or changed."""
        return DeviceLandscape(self.name, self._seed, self.device, self._known, layers, drawn, changed)

    @cached_property
    def savings_us(self) -> Floats:
        """Of a scope by class and options, shape (n_classes, n_options)."""
        fixed, early, waited = self._fixed_us(), self._early_start_us(), self._waited_us()
        barriers, full = self._barriers_us()
        columns = []
        for options in self._options:
            value = {**_DEFAULTS, **dict(options)}
            saved = fixed - waited[value["split-mode"], value["preload-code"]]
            saved = saved - (full if value["early-start"] == 0 else barriers)
            columns.append(saved + early * (value["early-start"] == 1 and value["stream-fusion"] == 0))
        return np.column_stack(columns)

    @cached_property
    def _linked(self) -> npt.NDArray[np.bool_]:
        """Whether an operator can be in one SuperKernel with the one before it."""
        return np.concatenate([[False], self._can_fuse[:-1] & self._can_fuse[1:]])

    @cached_property
    def _runs(self) -> Runs:
        first = np.array([self._ranges[unit][0] for unit in self._catalogue.first])
        last = np.array([self._ranges[unit][1] for unit in self._catalogue.last])
        return Runs(self._linked, self._text, first, last)

    def _before(self, values: Floats) -> Floats:
        """Return the values of the operators before."""
        return np.concatenate([[0.0], values[:-1]])

    def _fixed_us(self) -> Floats:
        """Return what options do not change."""
        us, laws, linked = self.device.us, self.device.laws, self._linked
        crosses = linked & (self._before(self._is_cube) != self._is_cube)
        saved = np.full(len(linked), us["task"])
        if "head by blocks" in laws:
            saved = us["task"] * (0.5 + self._blocks / np.where(self._is_cube, AIC, AIV))
        if "gap by cores" in laws:
            saved = saved + self._mixed_gap_us * crosses
        if "imbalance" in laws:
            saved = saved - self._imbalance * self._before(self._busy) * crosses
        if "slower inside" in laws:
            saved = saved - self._slower
        fixed = self._runs.total(linked * saved)
        if "slower inside" in laws:
            fixed -= self._runs.first_of_each(self._slower)
        return fixed - self._launch_us * self._runs.count if "launch" in laws else fixed

    def _barriers_us(self) -> tuple[Floats, Floats]:
        """Return the cost of barriers with early start, and of full ones without."""
        us, linked = self.device.us, self._linked
        is_cube_before = self._before(self._is_cube) > 0
        cost = np.where(is_cube_before, us["barrier cube"], us["barrier vector"])
        if "barrier by blocks" in self.device.laws:
            cores = np.where(is_cube_before, AIC, AIV)
            cost = cost * np.log2(1 + self._before(self._blocks)) / np.log2(1 + cores)
        crosses = is_cube_before != self._is_cube
        full = [us[f"barrier {core}"] for core in ("vector", "cube", "mix")]
        by_cores = self._runs.by_cores(self._is_cube.astype(np.int64))
        return (
            self._runs.total(linked * (cost + us["signal"] * crosses)),
            sum((count * each for count, each in zip(by_cores, full, strict=True)), np.zeros(len(by_cores[0]))),
        )

    def _early_start_us(self) -> Floats:
        hidden = np.minimum(self.device.us["early start"], np.minimum(self._before(self._busy), self._busy))
        return self._runs.total(self._linked * hidden * (self._hooks if "hooks" in self.device.laws else 1.0))

    def _waited_us(self) -> dict[tuple[int, str], Floats]:
        """Return how long sub-kernels wait for their code, by number of copies and way of preloading."""
        us, runs = self.device.us, self._runs
        changes = self._linked & (self._before(self._type) != self._type)
        count, late = runs.total(changes), runs.beyond(changes, PRELOADED_KIB)
        refetched = runs.beyond(self._linked, self._capacity_kib) if "code cache" in self.device.laws else 0.0
        share = np.minimum(1.0, PRELOADED_KIB / self._text)
        waited: dict[tuple[int, str], Floats] = {}
        for copies in OPTIONS["split-mode"]:
            cold = us["fetch"] + us["contention"] / copies + us["copy"] * copies
            hidden = np.minimum(cold * share, self._before(self._busy))
            waited[copies, "none"] = cold * (count + refetched)
            waited[copies, "max"] = cold * (late + refetched)
            waited[copies, "per-func"] = cold * (count + refetched) - runs.total(changes * hidden)
        return waited

    @cached_property
    def saving_us(self) -> float:
        """What the best plan saves."""
        return self._best(self.savings_us)

    @one_blas_thread()
    def _best(self, savings: Floats) -> float:
        cut = np.zeros((len(self._layout.units), len(self._options)))
        return float(Partitioner(self.space, self._catalogue).solve(savings, cut).score.max())

    @property
    def links(self) -> tuple[int, ...]:
        """How often each of ``sktune.learning.device.SUMS`` applies, if everything that can be fused is."""
        cube_before = self._linked & (self._before(self._is_cube) > 0)
        crosses = self._linked & (self._before(self._is_cube) != self._is_cube)
        changes = int((self._linked & (self._before(self._type) != self._type)).sum())
        every, cubes = int(self._linked.sum()), int(cube_before.sum())
        return every - cubes, cubes, int(crosses.sum()), every, changes, changes

    @property
    def potential_us(self) -> float:
        """All gaps and heads of the step."""
        return self.device.us["task"] * len(self._operators.types)

    @property
    def easiest(self) -> float:
        """The share of the gain that the best starting point reaches, with default options."""
        plans = (self.space.plan(point.values) for point in self.space.starting_points)
        savings = [
            sum(self.savings_us[self._class_of(scope), self.option_index[scope.options]] for scope in plan.scopes)
            for plan in plans
        ]
        return float(max(savings) / self.saving_us)

    def _class_of(self, scope: Scope) -> int:
        return int(self._catalogue.class_of[self._position[scope.first], self._position[scope.last]])

    @property
    def baseline_ms(self) -> float:
        """See ``Landscape.baseline_ms``."""
        return self.saving_us / self.device.gain / 1e3

    @property
    def best_ms(self) -> float:
        """See ``Landscape.best_ms``."""
        return self.baseline_ms - self.saving_us / 1e3

    def best_without(self, fails: Fails) -> float:
        """See ``benchmarks.landscapes.failing.Thinnable``."""
        catalogue = self._catalogue
        broken = [fails(int(first), int(last)) for first, last in zip(catalogue.first, catalogue.last, strict=True)]
        return self.baseline_ms - self._best(np.where(np.array(broken)[:, None], -np.inf, self.savings_us)) / 1e3

    def evaluate(self, plan: Plan) -> Truth:
        """See ``Landscape.evaluate``."""
        self._layout.check(plan)
        units = self._layout.units
        total_ms, reached = self.baseline_ms, 0
        times: list[ScopeTime] = []
        fused: dict[int, list[str]] = {}
        for scope in plan.scopes:
            first, last = self._position[scope.first], self._position[scope.last]
            if first > reached:
                alone_ms = self._alone_ms(reached, first - 1)
                times.append(ScopeTime(units[reached].name, units[first - 1].name, False, alone_ms, alone_ms))
            number = self._class_of(scope)
            saving_ms = float(self.savings_us[number, self.option_index[scope.options]]) / 1e3
            alone_ms = self._alone_ms(first, last)
            times.append(ScopeTime(scope.first, scope.last, True, alone_ms, max(0.05 * alone_ms, alone_ms - saving_ms)))
            total_ms -= saving_ms
            fused.setdefault(number, []).append(scope.label)
            reached = last + 1
        if reached < len(units):
            alone_ms = self._alone_ms(reached, len(units) - 1)
            times.append(ScopeTime(units[reached].name, units[-1].name, False, alone_ms, alone_ms))
        return Truth(total_ms, scope_times=tuple(times), fused=tuple(
            FusedScope(tuple(labels), self._parts(number)) for number, labels in fused.items()
        ))  # fmt: skip

    def _parts(self, number: int) -> tuple[FusedPart, ...]:
        """Return what a scope becomes: SuperKernels, and operators that cannot be fused."""
        first, last = self._ranges[self._catalogue.first[number]][0], self._ranges[self._catalogue.last[number]][1]
        if number not in self._fused:
            parts: list[FusedPart] = []
            can_fuse = self._can_fuse[first : last + 1]
            ends = np.flatnonzero(np.diff(can_fuse)) + 1
            for run in np.split(np.arange(first, last + 1), ends):
                types = tuple(self._operators.types[index] for index in run)
                is_fused = bool(self._can_fuse[run[0]])
                parts.append(FusedPart(len(run), "MIX_AIC_1_2" if is_fused else "", () if is_fused else types))
            self._fused[number] = FusedScope((), tuple(parts))
        return self._fused[number].parts

    @cached_property
    def _alone_until(self) -> Floats:
        return np.concatenate([[0.0], np.cumsum(self._busy + self.device.us["task"])])

    def _alone_ms(self, first: int, last: int) -> float:
        until = self._alone_until
        inside = until[self._ranges[last][1] + 1] - until[self._ranges[first][0]]
        return float(inside / until[-1] * self.baseline_ms)


_DEFAULTS: Mapping[str, Any] = {"stream-fusion": 0, "early-start": 1, "preload-code": "per-func", "split-mode": 4}


@cache
def _models() -> list[dict[str, Any]]:
    models: list[dict[str, Any]] = json.loads(OPERATORS.read_text())["models"]
    return models


def _expanded(parts: Sequence[Mapping[str, Any]], n_layers: int = LAYERS) -> tuple[_Operators, Layout]:
    """Return the operators and the layout of a model of so many layers."""
    kinds = [part for part in parts if not part["part"].startswith(OUTSIDE)]
    counts = [n_layers] if len(kinds) == 1 else [DENSE_LAYERS, n_layers - DENSE_LAYERS]
    layers = [kind["part"] for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]
    by_name = {part["part"]: part["operators"] for part in parts}
    operators, units = _Operators(), list[Unit]()
    sequence = [(OUTSIDE, None), *((kind, index) for index, kind in enumerate(layers)), (f"{OUTSIDE} end", None)]
    for part, layer in sequence:
        previous = ""
        for number, (key, kind, core) in enumerate(_in_halves(by_name[part])):
            if key and key != previous:
                units.append(Unit(key if layer is None else f"layers.{layer}.{key}", key, layer))
                previous = key
            operators.types.append(kind)
            operators.cores.append(core)
            operators.parts.append((part, number))
            operators.units.append(len(units) - 1)
            operators.inside.append(bool(key))
    return operators, Layout(tuple(units), tuple(Layer(f"layers.{n}", kind) for n, kind in enumerate(layers)))


def _in_halves(part: Sequence[Sequence[Any]]) -> Iterator[tuple[str, str, KernelCore]]:
    """Yield a part's operators, with units that hold several matmuls divided before the middle one: finer scopes."""
    for key, run in groupby(part, key=lambda operator: operator[0]):
        inside = list(run)
        cubes = [index for index, (_, _, core) in enumerate(inside) if core == "cube"]
        middle = cubes[len(cubes) // 2] if key and len(cubes) > 1 else 0
        for index, (_, kind, core) in enumerate(inside):
            yield (f"{key}.{int(index >= middle)}" if middle else key), kind, core


def _counted(layout: Layout) -> Layout:
    """Return the layout with the number of its operators, as a graph that was captured for Inductor has it."""
    bare = layout.with_kernels(())
    return bare.with_work(
        {unit.name: CapturedWork(len(unit.kernels)) for unit in layout.units},
        {unit.name: CapturedWork(len(unit.between)) for unit in layout.units},
    )


def _ranges(operators: _Operators, units: int) -> list[tuple[int, int]]:
    """Return first and last operator of each unit."""
    found: list[tuple[int, int]] = [(-1, -1)] * units
    for index, (unit, is_inside) in enumerate(zip(operators.units, operators.inside, strict=True)):
        if is_inside:
            found[unit] = (index if found[unit][0] < 0 else found[unit][0], index)
    return found


def drawn(laws: Sequence[str], seed: int, gain: float | None = None, noise: float | None = 0.003) -> Device:
    """Return a device with each of ``laws`` switched on or off; gain and noise are drawn where None."""
    rng = np.random.default_rng([0, seed, len(laws)])
    us = {name: value * 10 ** rng.uniform(-0.5, 0.5) for name, value in CONSTANTS_US.items()}
    drawn_gain, drawn_noise = (10 ** rng.uniform(*np.log10(bounds)) for bounds in (GAINS, NOISES))
    on = frozenset(law for law in laws if rng.random() < 0.5)
    return Device(us, drawn_gain if gain is None else gain, drawn_noise if noise is None else noise, on)


def device(
    name: str, laws: Sequence[str], seed: int, gain: float | None = None, noise: float | None = 0.003,
    known: Known = "all",
) -> DeviceLandscape:  # fmt: skip
    """Return the first of the seed's draws on which some plan saves time, and no starting point reaches ``EASY``."""
    for attempt in range(1000):
        drawn_device = drawn(laws, 1000 * seed + attempt, gain, noise)
        landscape = DeviceLandscape(name, seed, drawn_device, known)
        if landscape.saving_us > LEAST * landscape.potential_us and landscape.easiest < EASY:
            return landscape
    raise AssertionError("no draw has a plan that saves time")


def _sources(prefix: str, laws: Sequence[str]) -> dict[str, Callable[[int], DeviceLandscape]]:
    return {
        prefix: partial(device, prefix, laws),
        f"{prefix}-small-gain": partial(device, f"{prefix}-small-gain", laws, gain=0.03, noise=0.01),
        f"{prefix}-any-noise": partial(device, f"{prefix}-any-noise", laws, noise=None),
        f"{prefix}-timed": partial(device, f"{prefix}-timed", laws, known="times"),
        f"{prefix}-counted": partial(device, f"{prefix}-counted", laws, known="number"),
        f"{prefix}-blind": partial(device, f"{prefix}-blind", laws, known="nothing"),
    }


DEVICES: Mapping[str, Callable[[int], DeviceLandscape]] = {
    **_sources("known-devices", ()), **_sources("train-devices", TRAIN), **_sources("test-devices", TEST),
}  # fmt: skip
"""Of ``blind`` ones the sampler knows no operators, of ``counted`` ones their number alone, of ``timed`` ones also how
long each runs, as a profile tells."""
