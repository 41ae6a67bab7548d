"""What a profile says, in words and tables: the same for terminals and for the picture."""

import math
from collections import Counter
from dataclasses import dataclass

from sktune.profiling.analysis import Bound, Profile
from sktune.profiling.comparison import Comparison, Verdict

LISTED_GAINS = 20
UNITS_TO_TRY = 3


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; the first column is a name, the others are figures."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def headline(profile: Profile) -> str:
    """Return what matters for scopes, in two sentences."""
    first = (
        f"In {profile.median.gap_ms:.3f} ms of a step of {profile.median.step_ms:.3f} ms ({profile.gap_share:.1%}) the "
        "device has nothing to run: the most that scopes can save by closing gaps."
    )
    if not profile.units:
        return first
    tried = ", ".join(f"{unit.word} ({unit.gap_ms:.3f} ms of gaps inside)" for unit in profile.units[:UNITS_TO_TRY])
    return f"{first} Try scopes first on {tried}."


def overview(profile: Profile) -> str:
    """Return source, steps and layers in one line."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(profile.layer_kinds).items())
    device = f", device {profile.device}" + (f" of {profile.devices} (the slowest)" if profile.devices > 1 else "")
    return (
        f"{profile.source.replace('_', ' ')}{device}: {len(profile.steps)} steps of {profile.median.kernels} kernels, "
        f"{len(profile.layer_kinds)} layers ({kinds}), {profile.median.superkernels} SuperKernels a step"
    )


def profile_tables(profile: Profile) -> list[Table]:
    """Return all tables of one profile."""
    return [_times(profile), _bounds(profile), _units(profile), _top(profile)]


def _times(profile: Profile) -> Table:
    median = profile.median

    def row(name: str, value: float) -> tuple[str, str, str]:
        return name, f"{value:.3f}", f"{value / median.step_ms:.1%}" if median.step_ms else ""

    rows = [
        row("step", median.step_ms),
        row("compute", median.compute_ms),
        row("communication", median.communication_ms),
        row("  hidden behind compute", median.hidden_ms),
        row("  exposed", median.exposed_ms),
        row("gap: nothing runs", median.gap_ms),
    ]
    waits = ", ".join(f"stream {stream} {wait:.3f} ms" for stream, wait in profile.wait_ms.items())
    note = f"From one step to the next the device is idle for {profile.between_steps_ms:.3f} ms, which is the host's."
    if waits:
        note += f" The profiler's wait column, a step: {waits}."
    return Table("Time of a step, medians", ("", "ms", "of the step"), tuple(rows), note)


def _bounds(profile: Profile) -> Table:
    found = profile.bottleneck
    meaning = {
        Bound.COMPUTE: "kernels whose busiest pipe is cube or vector",
        Bound.MEMORY: "kernels whose busiest pipe moves data",
        Bound.SCHEDULING: f"gaps, and {found.scalar_share:.1%} in kernels whose busiest pipe is the scalar unit",
        Bound.SYNCHRONISATION: "communication that nothing hides",
    }
    rows = tuple((str(bound), f"{found.shares[bound]:.1%}", meaning[bound]) for bound in Bound)
    return Table(f"Bottleneck: {found.bound}", ("", "of the step", "what"), rows, f"Told from {found.evidence}.")


def _units(profile: Profile) -> Table:
    rows = tuple(
        (
            unit.word, str(unit.layers), f"{unit.kernels:.0f}", f"{unit.busy_ms:.3f}", f"{unit.gap_ms:.3f}",
            f"{unit.launch_ms:.3f}",
        )
        for unit in profile.units
    )  # fmt: skip
    note = (
        f"Launches are counted with {profile.launch_us:.2f} us, the duration of the shortest kernels: an upper bound."
        if rows
        else "No units could be told apart."
    )
    columns = ("unit", "layers", "kernels each", "busy ms", "gaps inside ms", "launches ms")
    return Table("Units, in the order in which to try scopes on them", columns, rows, note)


def _top(profile: Profile) -> Table:
    rows = tuple((row.type, str(row.count), f"{row.total_ms:.3f}", f"{row.share:.1%}") for row in profile.top)
    return Table("Slowest operator types, all steps", ("type", "count", "ms", "of all kernels"), rows)


def comparison_table(comparison: Comparison) -> Table:
    """Return the SuperKernels with the largest gains and losses, and what they add up to."""
    known = [gain for gain in comparison.gains if not math.isnan(gain.baseline_us)]
    shown = sorted(known, key=lambda gain: -abs(gain.gain_us))[:LISTED_GAINS]
    rows = tuple(
        (
            gain.scope + (" (fragment)" if gain.is_fragment else ""), str(gain.operators), f"{gain.baseline_us:.2f}",
            f"{gain.candidate_us:.2f}", f"{gain.gain_us:+.2f}", f"{gain.noise_us:.2f}", str(gain.verdict),
        )
        for gain in shown
    )  # fmt: skip
    counts = Counter(gain.verdict for gain in comparison.gains)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    note = (
        f"{len(comparison.gains)} SuperKernels: {told or 'none'}; together {sum(gain.gain_us for gain in known):+.1f} us "
        f"a step. Median step {comparison.baseline.median.step_ms:.3f} ms before, "
        f"{comparison.candidate.median.step_ms:.3f} ms after ({comparison.speedup:.3f}x); profiling slows both, so "
        "measure the speedup with a search."
    )
    if missing := len(comparison.gains) - len(known):
        note += f" For {missing} the replaced operators were not found in the baseline."
    columns = ("scope", "operators", "baseline P50 us", "SuperKernel P50 us", "gain us", "noise us", "")
    return Table("SuperKernels against the operators that they replace", columns, rows, note)
