"""Compare a candidate with its baseline: what each SuperKernel gains over the operators that it replaces.

For each SuperKernel, the baseline's figure is the span of those operators, from the first one's start to the last one's
end within a step, and medians over the steps are compared: the method of graph-autofusion's profile analysis.
"""

from collections import defaultdict
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd

from sktune.ascend.kernel_name import SuperKernelName, parse_superkernel_name
from sktune.core.events.values import ProfileComparison, ReplacedOperator, SuperKernelFigures, SuperKernelVerdict
from sktune.profiling.analysis import Profile
from sktune.profiling.kernel_table import type_of_npu_name
from sktune.profiling.structure import on_main_stream

MIN_OCCURRENCES = 3
NOISE_SHARE = 0.03
NOISE_US = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class MatchedProfiles:
    """A candidate compared with its baseline; ``gains`` in execution order."""

    baseline: Profile
    candidate: Profile
    gains: tuple[SuperKernelFigures, ...]

    @property
    def speedup(self) -> float:
        """Median step of the baseline divided by that of the candidate; both are slowed down by profiling."""
        return self.baseline.median.step_ms / self.candidate.median.step_ms

    @property
    def shown(self) -> ProfileComparison:
        """What is told of it: ``comparison`` in the event ``profile_finished``."""
        return ProfileComparison(self.candidate.median.step_ms, self.speedup, self.gains)


def compare(baseline: Profile, candidate: Profile) -> MatchedProfiles:
    """Compare every SuperKernel of ``candidate`` with the operators of ``baseline`` that it replaces."""
    superkernels = candidate.kernels[candidate.kernels["is_superkernel"]]
    before = _main_rows(baseline, baseline.shown_step)
    places = _replaced(before, _main_rows(candidate, candidate.shown_step))
    operators = [ReplacedOperator(*pair) for pair in zip(before["name"], before["type"], strict=True)]
    spans = _spans(baseline, places)
    is_certain = not (baseline.withheld or candidate.withheld)
    gains = []
    for name, rows in ((str(name), rows) for name, rows in superkernels.groupby("name", sort=False)):
        parsed = parse_superkernel_name(name) or SuperKernelName(name, "", "")
        candidate_us = rows["duration_us"].to_numpy()
        after_us = float(np.median(candidate_us))
        replaced: tuple[ReplacedOperator, ...] = ()
        before_us, noise_us, verdict = None, NOISE_US, SuperKernelVerdict.INSUFFICIENT
        if is_certain and (baseline_us := spans.get(name)):
            before_us = float(np.median(baseline_us))
            noise_us = max(
                NOISE_SHARE * before_us, _deviation(np.array(baseline_us)), _deviation(candidate_us), NOISE_US
            )
            replaced = tuple(operators[slice(*places[name])])
            if min(len(baseline_us), len(candidate_us)) >= MIN_OCCURRENCES:
                gained = before_us > after_us
                verdict = SuperKernelVerdict.BENEFICIAL if gained else SuperKernelVerdict.REGRESSED
                if abs(before_us - after_us) <= noise_us:
                    verdict = SuperKernelVerdict.NEUTRAL
        gains.append(
            SuperKernelFigures(name, parsed.scope, parsed.is_fragment, replaced, before_us, after_us, noise_us, verdict)
        )
    return MatchedProfiles(baseline, candidate, tuple(gains))


def _deviation(values: npt.NDArray[np.float64]) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def _main_rows(profile: Profile, step: int) -> pd.DataFrame:
    rows = profile.kernels[profile.kernels["step"] == step]
    return rows[on_main_stream(rows)]


def _replaced(baseline: pd.DataFrame, candidate: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Return for each SuperKernel the baseline's kernels that it replaces, as positions on the main stream.

    They are found by the names of its first and last operators if the baseline has them, else by its neighbours in both
    profiles.
    """
    # A name that recurs within a step, as aclnn's do, has no unique position.
    once = ~baseline["name"].duplicated(keep=False).to_numpy()
    names = {name: place for place, name in enumerate(baseline["name"]) if once[place]}
    by_name = {}
    missing = False
    for name in candidate.loc[candidate["is_superkernel"], "name"].unique():
        parsed = parse_superkernel_name(name)
        if parsed and parsed.first in names and names[parsed.first] <= names.get(parsed.last, -1):
            by_name[name] = (names[parsed.first], names[parsed.last] + 1)
        else:
            missing = True
    return {**_between_neighbours(baseline, candidate), **by_name} if missing else by_name


def _between_neighbours(baseline: pd.DataFrame, candidate: pd.DataFrame) -> dict[str, tuple[int, int]]:
    before, after = baseline["token"].tolist(), candidate["token"].tolist()
    names, fused = candidate["name"].tolist(), candidate["is_superkernel"].tolist()
    types = baseline["type"].tolist()
    replaced = {}
    for kind, low, high, first, last in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "replace":
            continue
        inside = [names[place] for place in range(first, last) if fused[place]]
        if len(inside) == 1:
            replaced[inside[0]] = (low, high)
        elif len(inside) == last - first:  # one SuperKernel after the other
            replaced.update(_shared_out(inside, types[low:high], low))
    return replaced


def _shared_out(names: list[str], types: list[str], low: int) -> dict[str, tuple[int, int]]:
    """Return which of the consecutive kernels of ``types``, from position ``low``, each SuperKernel replaces.

    Each begins and ends with operators of the types in its name; empty unless that leaves exactly one way.
    """
    parsed = [parse_superkernel_name(name) for name in names]
    ends = [(type_of_npu_name(each.first), type_of_npu_name(each.last)) for each in parsed if each]
    if len(ends) < len(names) or len(set(names)) < len(names):
        return {}
    # For each SuperKernel, how many ways there are to give it and those before it the kernels up to each position.
    ways = [np.zeros(len(types) + 1, dtype=object) for _ in range(len(names) + 1)]
    ways[0][0] = 1
    for index, (first, last) in enumerate(ends):
        begun = 0
        for place, kind in enumerate(types):
            begun += ways[index][place] if kind == first else 0
            ways[index + 1][place + 1] = begun if kind == last else 0
    if ways[-1][-1] != 1:
        return {}
    cuts = [len(types)]
    for index in range(len(names) - 1, 0, -1):
        earlier = range(cuts[0] - 1, 0, -1)
        cuts.insert(0, next(cut for cut in earlier if ways[index][cut] and types[cut] == ends[index][0]))
    return {name: (low + begin, low + end) for name, (begin, end) in zip(names, pairwise([0, *cuts]), strict=True)}


def _spans(baseline: Profile, replaced: dict[str, tuple[int, int]]) -> dict[str, list[float]]:
    """Return the spans of the replaced kernels in every step that has as many kernels as the shown one."""
    spans: dict[str, list[float]] = defaultdict(list)
    usual = len(_main_rows(baseline, baseline.shown_step))
    for step in baseline.steps:
        rows = _main_rows(baseline, step.number)
        if len(rows) != usual:
            continue
        start = rows["start_us"].to_numpy()
        end = start + rows["duration_us"].to_numpy()
        for name, (low, high) in replaced.items():
            spans[name].append(float(end[low:high].max() - start[low:high].min()))
    return spans
