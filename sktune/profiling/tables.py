"""A profile in text and tables, for both the terminal and the page."""

import re
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from sktune.core.events.values import SuperKernelFigures
from sktune.profiling.analysis import Bottleneck, Bound, Profile
from sktune.profiling.comparison import MatchedProfiles

LISTED_SCOPES = 20
UNITS_TO_TRY = 3


@dataclass(frozen=True, slots=True)
class FigureTable:
    """Cells as text; the first column is a name, the others are figures.

    ``spare`` are the columns that a narrow terminal leaves out, the least important first.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    spare: tuple[str, ...] = ()


def headline(profile: Profile) -> str:
    """Return what scopes can save and where to try them, in two sentences; or why that is not said."""
    if profile.withheld:
        return f"Nothing is concluded about scopes: {'; '.join(profile.withheld)}."
    first = (
        f"The device is idle for {profile.median.gap_ms:.3f} ms of a step of {profile.median.step_ms:.3f} ms "
        f"({profile.gap_share:.1%}): the most that scopes can save by closing gaps."
    )
    promising = [unit for unit in profile.units if unit.potential_ms > 0][:UNITS_TO_TRY]
    if not promising:
        return first
    listed = ", ".join(f"{unit.parameter} ({unit.gap_ms:.3f} ms of gaps inside)" for unit in promising)
    return f"{first} Try scopes first on {listed}."


def overview(profile: Profile) -> str:
    """Return source, steps and layers in one line."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(profile.layer_kinds).items())
    device = f", device {profile.device}" + (f" of {profile.devices} (the slowest)" if profile.devices > 1 else "")
    steps = "1 step" if len(profile.steps) == 1 else f"{len(profile.steps)} steps"
    return (
        f"{profile.source.replace('_', ' ')}{device}: {steps} of {profile.median.kernels} kernels, "
        f"{len(profile.layer_kinds)} layers ({kinds}), {profile.median.superkernels} SuperKernels per step"
    )


def profile_tables(profile: Profile) -> list[FigureTable]:
    """Return all tables of one profile."""
    advice = [_bounds(profile.bottleneck), _units(profile)] if profile.bottleneck else []
    return [_times(profile), *advice, _top(profile)]


def _times(profile: Profile) -> FigureTable:
    median = profile.median

    def row(name: str, value: float) -> tuple[str, str, str]:
        return name, f"{value:.3f}", f"{value / median.step_ms:.1%}" if median.step_ms else ""

    rows = [
        row("step", median.step_ms),
        row("compute", median.compute_ms),
        row("communication", median.communication_ms),
        row("  hidden by compute", median.hidden_ms),
        row("  exposed", median.exposed_ms),
        row("gap: device idle", median.gap_ms),
    ]
    waits = ", ".join(f"stream {stream} {wait:.3f} ms" for stream, wait in profile.wait_ms.items())
    notes = []
    if len(profile.steps) > 1:
        notes.append(f"Between steps the device waits {profile.between_steps_ms:.3f} ms for the host.")
    if waits:
        notes.append(f"The profiler's wait column, per step: {waits}.")
    return FigureTable("Time of a step, medians", ("", "ms", "of the step"), tuple(rows), " ".join(notes))


def _bounds(bottleneck: Bottleneck) -> FigureTable:
    meaning = {
        Bound.COMPUTE: "kernels that mostly compute",
        Bound.MEMORY: "kernels that mostly move data",
        Bound.SCHEDULING: "gaps: no kernel runs",
        Bound.SYNCHRONISATION: "exposed communication",
    }
    rows = tuple((str(bound), f"{bottleneck.shares[bound]:.1%}", meaning[bound]) for bound in Bound)
    note = f"Compute and memory are distinguished by {bottleneck.evidence}."
    if bottleneck.scalar_share:
        note += f" {bottleneck.scalar_share:.1%} of the step is in kernels whose busiest pipe is the scalar unit."
    return FigureTable(f"Bottleneck: {bottleneck.bound}", ("", "of the step", "what"), rows, note, spare=("what",))


def _units(profile: Profile) -> FigureTable:
    rows = tuple(
        (
            unit.parameter, str(unit.layers), f"{unit.kernels:.0f}", f"{unit.busy_ms:.3f}", f"{unit.gap_ms:.3f}",
            f"{unit.launch_ms:.3f}",
        )
        for unit in profile.units
    )  # fmt: skip
    note = (
        f"Each launch is counted as {profile.launch_us:.2f} us, the duration of the shortest kernels: an upper bound."
        if rows
        else "No units could be distinguished."
    )
    columns = ("unit", "layers", "kernels each", "busy ms", "gaps inside ms", "launches ms")
    title = "Units, in the order in which to try scopes on them"
    return FigureTable(title, columns, rows, note, spare=("layers", "kernels each", "busy ms", "launches ms"))


def _top(profile: Profile) -> FigureTable:
    rows = tuple((row.type, str(row.count), f"{row.total_ms:.3f}", f"{row.share:.1%}") for row in profile.top)
    return FigureTable("Slowest operator types, all steps", ("type", "count", "ms", "of all kernels"), rows)


def comparison_tables(comparison: MatchedProfiles) -> list[FigureTable]:
    """Return gains and losses of the SuperKernels, and what they replace."""
    gains = _gains(comparison)
    return [gains, _replaced(comparison)] if gains.rows else [gains]


def _gains(comparison: MatchedProfiles) -> FigureTable:
    title = "SuperKernels against the operators that they replace (P50)"
    columns = ("scope", "SKs", "ops", "before us", "SK us", "gain us", "noise us", "verdict")
    if not comparison.gains:
        return FigureTable(title, columns, (), "The candidate has no SuperKernels; are the files swapped?")
    known = [gain for gain in comparison.gains if gain.replaced]
    count = len(comparison.gains)
    if not known:
        note = (
            f"no gain is known. The operators that the candidate's {count} SuperKernels replace were not found in the "
            "baseline, neither by their names nor by the kernels before and after."
        )
        return FigureTable(title, columns, (), note)
    rows = tuple(
        (
            scope, str(len(gains)), f"{fmean(len(g.replaced) for g in gains):.0f}",
            f"{fmean(g.baseline_us or 0.0 for g in gains):.2f}", f"{fmean(g.candidate_us for g in gains):.2f}",
            f"{sum(g.gain_us for g in gains):+.2f}", f"{fmean(g.noise_us for g in gains):.2f}", _verdicts(gains),
        )
        for scope, gains in _by_scope(comparison)
    )  # fmt: skip
    before, after = comparison.baseline.median.step_ms, comparison.candidate.median.step_ms
    note = (
        f"{len(known)} SuperKernel{'s' if len(known) > 1 else ''}, {sum(gain.gain_us for gain in known):+.1f} us per "
        f"step in total; the gain of a row is the sum over its SuperKernels. Median step {before:.3f} ms before, "
        f"{after:.3f} ms after ({comparison.speedup:.3f}x); profiling slows down both, so measure the speedup with a "
        "search."
    )
    if missing := count - len(known):
        note += f" For {missing} more, the operators that they replace were not found in the baseline."
    return FigureTable(title, columns, rows, note, spare=("noise us", "ops", "SKs", "SK us", "before us"))


def _replaced(comparison: MatchedProfiles) -> FigureTable:
    rows = []
    for scope, gains in _by_scope(comparison):
        (types, alike), *others = Counter(
            tuple(operator.type for operator in gain.replaced) for gain in gains
        ).most_common()
        runs = ((kind, len([*run])) for kind, run in groupby(types))
        listed = ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in runs)
        rows.append((scope, listed + (f" (in {alike} of {len(gains)})" if others else "")))
    return FigureTable("The operators that they replace, by type", ("scope", "operators"), tuple(rows))


def _by_scope(comparison: MatchedProfiles) -> list[tuple[str, list[SuperKernelFigures]]]:
    """Return the SuperKernels whose operators are known, together if their scopes differ only in numbers."""
    groups: dict[str, list[SuperKernelFigures]] = {}
    for gain in comparison.gains:
        if gain.replaced:
            scope = re.sub(r"\d+", "#", gain.scope) + (" (fragments)" if gain.is_fragment else "")
            groups.setdefault(scope, []).append(gain)
    return sorted(groups.items(), key=lambda item: -abs(sum(gain.gain_us for gain in item[1])))[:LISTED_SCOPES]


def _verdicts(gains: list[SuperKernelFigures]) -> str:
    counts = Counter(gain.verdict for gain in gains)
    return str(gains[0].verdict) if len(counts) == 1 else ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
