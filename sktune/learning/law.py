"""The law of SuperKernels: what a scope saves by the operators that it holds, with the device's constants as unknowns.

Which of a scope's operators become one SuperKernel, and what the compiler generates between two of them, is counted;
each count costs or saves one constant of the device. The terms are those of the simulator (``sktune.sim``),
whose constants are the prior. Further terms, with a prior mean of zero, are for what the simulator does not know: pairs
of cores, types of operators (which of them start early, which are too short to hide that the next one's code is
loaded), the start of a SuperKernel, code beyond the instruction cache. Only those that say where a task is launched as
MIX have a mean, the simulator's.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from sktune.core.layout import Kernel, Layout
from sktune.core.plan import Options
from sktune.learning.evidence import Vector
from sktune.learning.segments import SegmentCatalogue

Ints = npt.NDArray[np.int64]
Singles = npt.NDArray[np.float32]

PRIOR_US: Mapping[str, tuple[float, float]] = {
    "task_us": (1.796, 2.0),
    "barrier_vector_us": (0.75, 0.75),
    "barrier_cube_us": (0.75, 0.75),
    "barrier_mix_us": (1.36, 1.5),
    "signal_us": (0.5, 0.5),
    "early_start_us": (0.1, 0.75),
    "icache_fetch_us": (0.3, 1.0),
    "icache_contention_us": (2.0, 2.0),
    "icache_copy_us": (0.125, 0.125),
}
"""Prior mean and standard deviation: the simulator's constants, which may be several times as large on a device;
``task_us`` is gap and head together, of a vector operator on half of the cores."""
INTO_MIX_US, OUT_OF_MIX_US = 1.39, 1.17
"""How much longer the gaps before and after a MIX task are: the simulator's. Every SuperKernel is launched as one."""
UNHIDDEN_US = (0.2, 0.5)
"""Prior mean and standard deviation of the code-loading time that the operator before is too short to hide."""
UNHIDDEN_SD_US: Mapping[str, float] = {"vector": 2.0, "cube": 0.2, "mix": 2.0}
"""By the cores of the operator before: cube operators mostly run long enough to hide it."""
PAIR_SD_US, TYPE_SD_US, EARLY_START_SD_US, SUPERKERNEL_SD_US, CODE_SD_US = 0.5, 0.4, 0.5, 5.0, 0.5
"""Prior standard deviations of the further terms."""
COPIES = (1, 2, 4, 8)
"""Numbers of copies from which more of the loading may be hidden, or less."""
HIDDEN = 1.0, 0.1
"""Of the time that an operator is known to run, the share that hides the loading of the next one's code: prior."""
TEXT_KIB: Mapping[str, float] = {"vector": 8.0, "cube": 16.0, "mix": 24.0, "other": 8.0}
PRELOADED_KIB = 16.0
CODE_KNOTS_KIB = (64.0, 128.0, 256.0, 512.0)
CORES = ("vector", "cube", "mix")
DEFAULTS: Mapping[str, Any] = {"stream-fusion": 0, "early-start": 1, "preload-code": "per-func", "split-mode": 4}


@dataclass(frozen=True, slots=True)
class Tangent:
    """The point at which the law is linearised: two durations that an operator hides only if it runs long enough.

    Attributes:
        loads_us: loading an operator's code, by the number of copies in ``COPIES``.
        early_start_us: what early start saves.
    """

    loads_us: tuple[float, ...]
    early_start_us: float


PRIOR_TANGENT = Tangent(tuple(0.3 + 2.0 / copies + 0.125 * copies for copies in COPIES), 0.1)


@dataclass(frozen=True, slots=True)
class Term:
    """An unknown constant of the device, in us, with its prior."""

    name: str
    mean_us: float
    sd_us: float


class Law:
    """See the module.

    Attributes:
        terms: the unknowns.
        names: of what is counted.
        counts: of each class of segments, shape (n_classes, n_counts).

    Args:
        catalogue: the classes of segments; its layout has kernels.
        unfusable: types that were seen outside of SuperKernels.
        tangent: used for operators whose durations are known; what others do not hide is an unknown of their type.
    """

    def __init__(
        self, catalogue: SegmentCatalogue, unfusable: frozenset[str] = frozenset(), tangent: Tangent | None = None
    ) -> None:
        self.tangent = tangent or PRIOR_TANGENT
        kernels, ranges = _sequence(catalogue.layout)
        self._kernels = kernels
        self._can_fuse = np.array([kernel.can_fuse and kernel.type not in unfusable for kernel in kernels])
        self._core = np.array([CORES.index(kernel.core) if kernel.core in CORES else 0 for kernel in kernels])
        types = list(dict.fromkeys(kernel.type for kernel in kernels))
        self._type = np.array([types.index(kernel.type) for kernel in kernels])
        self._core_of = {kernel.type: CORES[core] for kernel, core in zip(kernels, self._core, strict=True)}
        self._linked = np.concatenate([[False], self._can_fuse[:-1] & self._can_fuse[1:]])
        self._before = np.concatenate([[-1], self._core[:-1]])
        self._busy_us = np.array([kernel.busy_us for kernel in kernels])
        self._first = np.minimum(np.array([ranges[unit][0] for unit in catalogue.first]), len(kernels) - 1)
        self._last = np.maximum(np.array([ranges[unit][1] for unit in catalogue.last]), self._first)
        columns = self._counted(types)
        self.names = list(columns)
        self.counts: Singles = np.column_stack(list(columns.values())).astype(np.float32)
        self.terms = (
            *(Term(name, *prior) for name, prior in PRIOR_US.items()),
            Term("unhidden_us", *UNHIDDEN_US),
            Term("hidden", *HIDDEN),
            Term("superkernel_us", INTO_MIX_US + OUT_OF_MIX_US, SUPERKERNEL_SD_US),
            *(Term(name, _longer_gap_us(name), PAIR_SD_US) for name in self.names if name.startswith("pair ")),
            *(Term(f"type {kind}", 0.0, TYPE_SD_US) for kind in types),
            *(Term(f"early start of {kind}", 0.0, EARLY_START_SD_US) for kind in types),
            *(Term(f"unhidden after {kind}", 0.0, UNHIDDEN_SD_US[self._core_of[kind]]) for kind in types),
            *(
                Term(f"unhidden after {core} in {copies} or more copies", 0.0, UNHIDDEN_SD_US[core])
                for core, copies in product(sorted({*self._core_of.values()}), COPIES)
            ),
            *(Term(name, 0.0, CODE_SD_US) for name in self.names if name.startswith("code ")),
        )

    def weights(self, options: Options) -> Vector:
        """Return how much each count is of each term in a scope's saving, shape (n_counts, n_terms)."""
        value = {**DEFAULTS, **dict(options)}
        at = {term.name: index for index, term in enumerate(self.terms)}
        weights = np.zeros((len(self.names), len(self.terms)))
        copies = float(value["split-mode"])
        least = max(each for each in COPIES if each <= copies)
        starts_early = value["early-start"] == 1 and value["stream-fusion"] == 0
        hides_loading = value["preload-code"] == "per-func"
        waits = {
            "per-func": ("changes beyond the preload",), "max": ("changes after the first lines",), "none": ("changes",)
        }[str(value["preload-code"])]  # fmt: skip
        for row, name in enumerate(self.names):
            kind = name.removeprefix("type ").removeprefix("changes after ")
            if name == f"type {kind}":
                weights[row, at[name]] = 1.0
                weights[row, at[f"early start of {kind}"]] = starts_early
            elif kind in self._core_of:
                by_core = f"unhidden after {self._core_of[kind]} in {least} or more copies"
                weights[row, [at[f"unhidden after {kind}"], at[by_core]]] = -hides_loading
            elif name == "changes of unknown times" and hides_loading:
                weights[row, at["unhidden_us"]] = -1.0
            elif name == f"late in {least} copies" and hides_loading:
                _put_loading(weights[row], at, copies)
            elif name == f"hidden in {least} copies" and hides_loading:
                weights[row, at["hidden"]] = 1.0
            elif name in at:  # what has a term of its own
                weights[row, at[name]] = -1.0 if name == "superkernel_us" else 1.0
            elif name == "links":
                weights[row, at["task_us"]] = 1.0
            elif name == "early starts":
                weights[row, at["early_start_us"]] = starts_early
            elif name == "short early starts":
                weights[row, at["hidden"]] = starts_early
            elif name in waits:
                _put_loading(weights[row], at, copies)
            elif value["early-start"] == 0:
                if name.startswith("full "):
                    weights[row, at[f"barrier_{name.removeprefix('full ')}_us"]] = -1.0
            elif name.startswith("after "):
                weights[row, at[f"barrier_{name.removeprefix('after ')}_us"]] = -1.0
            elif name == "crossings":
                weights[row, at["signal_us"]] = -1.0
        return weights

    @property
    def knows_times(self) -> bool:
        """Whether it is known how long operators run."""
        return bool(self._busy_us.any())

    def types_after(self, *cores: str) -> dict[str, float]:
        """Return the share of each type among operators that follow one on ``cores`` and do not run on MIX cores."""
        codes = [CORES.index(core) for core in cores]
        chosen = self._linked & np.isin(self._before, codes) & (self._core != CORES.index("mix"))
        types = [self._kernels[index].type for index in np.flatnonzero(chosen)]
        return {kind: count / len(types) for kind, count in Counter(types).items()}

    def _counted(self, types: Sequence[str]) -> dict[str, Vector]:
        """Return the counts of each class of segments, by name."""
        core, linked, before = self._core, self._linked, self._before
        changes = linked & np.concatenate([[False], self._type[1:] != self._type[:-1]])
        text = np.array([TEXT_KIB[kernel.core] for kernel in self._kernels])
        function = np.where(core == CORES.index("mix"), text / 2, text)  # a MIX kernel has two, each preloaded
        runs = Runs(linked, text, self._first, self._last)
        columns = {
            "links": runs.total(linked),
            **{f"after {name}": runs.total(linked & (before == code)) for code, name in enumerate(CORES)},
            "crossings": runs.total(linked & (before != core) & (before != 2) & (core != 2)),
            **{f"full {name}": counted for name, counted in zip(CORES, runs.by_cores(core), strict=True)},
            "changes": runs.total(changes),
            "changes beyond the preload": runs.total(changes * np.maximum(0.0, 1 - PRELOADED_KIB / function)),
            "changes after the first lines": runs.beyond(changes, PRELOADED_KIB),
            "superkernel_us": runs.count,
        }
        busy_us = np.concatenate([[0.0], self._busy_us[:-1]])
        unknown = changes & (busy_us == 0.0)
        shorter_us = np.minimum(busy_us, self._busy_us)
        is_short = linked & (shorter_us > 0.0) & (shorter_us < self.tangent.early_start_us)
        columns["early starts"] = runs.total(linked & ~is_short)
        columns["short early starts"] = runs.total(is_short * shorter_us)
        columns["changes of unknown times"] = runs.total(unknown)
        for copies, load_us in zip(COPIES, self.tangent.loads_us, strict=True):
            late = changes & ~unknown & (busy_us < load_us)
            columns[f"late in {copies} copies"] = runs.total(late)
            columns[f"hidden in {copies} copies"] = runs.total(late * busy_us)
        for (one, left), (other, right) in product(enumerate(CORES), repeat=2):
            if one != other or one != 0:
                columns[f"pair {left} {right}"] = runs.total(linked & (before == one) & (core == other))
        type_before = np.concatenate([[-1], self._type[:-1]])
        for number, name in enumerate(types):
            columns[f"type {name}"] = runs.total(linked & (self._type == number))
            columns[f"changes after {name}"] = runs.total(unknown & (type_before == number))
        for knot in CODE_KNOTS_KIB:
            columns[f"code beyond {knot:g} KiB"] = -runs.beyond(linked, knot)
        return columns


def _put_loading(weights: Vector, at: Mapping[str, int], copies: float) -> None:
    """Charge a wait for code."""
    weights[at["icache_fetch_us"]] = -1.0
    weights[at["icache_contention_us"]] = -1.0 / copies
    weights[at["icache_copy_us"]] = -copies


def _longer_gap_us(pair: str) -> float:
    """Return how much longer the gap between two operators on ``pair`` of cores is than between vector operators."""
    _, before, after = pair.split()
    return INTO_MIX_US * (after == "mix") + OUT_OF_MIX_US * (before == "mix")


class Runs:
    """Counts over ranges of operators, whose runs of linked operators become one SuperKernel each.

    Args:
        linked: whether each operator is in one SuperKernel with the one before it, if both are in the range.
        text: size of each operator's code, in KiB.
        first, last: of each range.
    """

    def __init__(self, linked: npt.NDArray[np.bool_], text: Vector, first: Ints, last: Ints) -> None:
        self._linked, self._first, self._last = linked, first, last
        self._text_until = np.concatenate([[0.0], np.cumsum(text)])
        places = np.arange(len(linked))
        starts = np.flatnonzero(~linked)
        self._run = np.cumsum(~linked) - 1
        self._start = starts[self._run]
        self._end = np.concatenate([starts[1:], [len(linked)]])[self._run] - 1
        self._reach = np.minimum(self._end[first], last)
        """Where the first run of each range ends."""
        self._loaded = self._text_until[places + 1] - self._text_until[self._start]

    def total(self, counted: npt.NDArray[np.bool_] | Vector) -> Vector:
        """Return the sum over the links of each range."""
        return self._between(counted, self._first + 1, self._last)

    @property
    def count(self) -> Vector:
        """The number of SuperKernels of two operators or more."""
        return self.first_of_each(np.ones(len(self._linked)))

    def first_of_each(self, counted: Vector) -> Vector:
        """Return the sum over the first operators of each SuperKernel of two operators or more."""
        begins = self._linked & ~np.concatenate([[False], self._linked[:-1]])
        inside: Vector = self.total(begins * np.concatenate([[0.0], counted[:-1]]))
        is_cut = (self._reach > self._first) & self._linked[self._first]
        return inside + np.where(is_cut, counted[self._first], 0.0)

    def by_cores(self, core: Ints) -> list[Vector]:
        """Return the number of links in runs of vector operators alone, of cube operators alone, and of others."""
        kinds = []
        of_run = [np.bincount(self._run, core == code) > 0 for code in range(3)]
        vector_only, cube_only = of_run[0] & ~of_run[1] & ~of_run[2], of_run[1] & ~of_run[0] & ~of_run[2]
        tail = np.maximum(self._start[self._last], self._reach + 1)
        for number, whole in enumerate((vector_only, cube_only)):
            code = number
            inside = self._between(self._linked & whole[self._run], self._reach + 1, tail - 1)
            ends = np.zeros(len(self._first))
            for begin, end in ((self._first, self._reach), (tail, self._last)):
                links = np.maximum(0, end - begin)
                others = self._between(core != code, begin, end)
                ends += np.where(others == 0, links, 0)
            kinds.append(inside + ends)
        return [*kinds, self.total(self._linked) - kinds[0] - kinds[1]]

    def beyond(self, counted: npt.NDArray[np.bool_], kib: float) -> Vector:
        """Return the sum over links at which a run has loaded more than so much code."""
        # In the first run of a range, code is counted from the range's beginning.
        limit = self._text_until[self._first] + kib
        reached = np.searchsorted(self._text_until[1:], limit + 1e-9)
        first_run = self._between(counted, np.maximum(reached, self._first + 1), self._reach)
        return first_run + self._between(counted & (self._loaded > kib), self._reach + 1, self._last)

    def _between(self, counted: npt.NDArray[np.bool_] | Vector, first: Ints, last: Ints) -> Vector:
        until = np.concatenate([[0.0], np.cumsum(counted)])
        inside = until[np.maximum(last, 0) + 1] - until[np.minimum(first, len(counted))]
        total: Vector = np.where(last >= first, inside, 0.0)
        return total


def _sequence(layout: Layout) -> tuple[list[Kernel], list[tuple[int, int]]]:
    """Return all kernels of a step, and the first and last one of each unit."""
    kernels: list[Kernel] = []
    ranges: list[tuple[int, int]] = []
    for unit in layout.units:
        begin = len(kernels)
        kernels += unit.kernels
        ranges.append((begin, len(kernels) - 1))
        kernels += unit.between
    return kernels, ranges
