"""The final comparison: measurements of several fresh processes, combined in one table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from sktune.core.codec import LEFT_OUT_IF_EMPTY
from sktune.core.outcome import BASELINE_REPEAT, FinalRow, Speedup
from sktune.measure.noise_floor import NoiseFloorSample, noise_floor
from sktune.measure.verdict import pooled, repeatability


@dataclass(frozen=True, slots=True)
class FinalComparison:
    """The final comparison.

    Attributes:
        rows: over all processes, the baseline first.
        speedups: of each timed row, by its name: one for each process.
        noise_floor: the largest relative difference between the baseline and itself in the whole study.
        noise: what disturbed the measurement, by process; empty if nothing did.
        dies: that the processes ran on; empty if the search had only one.
    """

    rows: tuple[FinalRow, ...]
    speedups: Mapping[str, tuple[Speedup, ...]]
    noise_floor: float
    noise: tuple[str, ...]
    dies: Annotated[tuple[str, ...], LEFT_OUT_IF_EMPTY] = ()

    @classmethod
    def of(
        cls,
        processes: Sequence[tuple[Sequence[FinalRow], str]],
        samples: Sequence[NoiseFloorSample],
        dies: Sequence[str] = (),
    ) -> "FinalComparison":
        """Combine the rows and noise of the processes with the noise floor samples of the search.

        Args:
            processes: rows, the baseline first, and noise of each.
            samples: of the noise floor.
            dies: of the processes; empty if the search had only one.
        """
        by_name: dict[str, list[FinalRow]] = {}
        for rows, _ in processes:
            for row in rows:
                by_name.setdefault(row.name, []).append(row)
        measured = {name: [row.speedup for row in rows if row.speedup] for name, rows in by_name.items()}
        # A plan that fails in one process is not a finalist; the baseline and its copies cannot win.
        finalists = [name for name, rows in by_name.items() if name.isdigit() and all(row.speedup for row in rows)]
        combined = [
            _combined(rows, [measured[other] for other in finalists if other != name and name in finalists], dies)
            for name, rows in by_name.items()
        ]
        speedups = {
            row.name: tuple(each.speedup for each in by_name[row.name] if each.speedup)
            for row in combined
            if row.speedup
        }
        copies = [*(sample.speedup for sample in samples), *speedups.get(BASELINE_REPEAT, ())]
        floor = noise_floor(copies) if copies else 0.0  # a simulation has no noise
        return cls(tuple(combined), speedups, floor, tuple(noise for _, noise in processes), tuple(dies))

    def rejecting(self, name: str, verdict: str) -> "FinalComparison":
        """Return it with the row of a plan whose bits differ, as ``verdict`` says."""
        rows = (replace(row, verdict=verdict, bit_identical=False) if row.name == name else row for row in self.rows)
        return replace(self, rows=tuple(rows))

    def dies_of(self, name: str) -> tuple[str, ...]:
        """Return the dies of ``speedups[name]``; a row that is not in all processes is in the first ones."""
        return self.dies[: len(self.speedups[name])]

    def repeatability_of(self, name: str, baselines_ms: Sequence[Sequence[float]]) -> float:
        """Return the relative difference that another search's figure of a finalist would stay within; see there."""
        others = [speedups for other, speedups in self.speedups.items() if other.isdigit() and other != name]
        return repeatability(self.speedups[name], others, self.dies_of(name), baselines_ms)


def _combined(rows: Sequence[FinalRow], others: Sequence[Sequence[Speedup]], dies: Sequence[str]) -> FinalRow:
    """Return one row for all processes; a failure or difference in any of them counts."""
    for row in rows:
        if row.speedup is None:
            return row
    worst = next((row for row in rows if row.bit_identical is False), rows[0])
    if len({row.code_digest for row in rows}) > 1:
        worst = replace(worst, verdict="it compiles to other code from one process to the next", bit_identical=False)
    speedups = [row.speedup for row in rows if row.speedup]
    return replace(worst, speedup=pooled(speedups, others, dies=dies[: len(speedups)]))
