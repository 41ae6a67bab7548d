"""The final comparison: what several fresh processes have measured, as one table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sktune.core.outcome import FinalRow, Speedup
from sktune.measure.noise_floor import NoiseFloorSample, noise_floor
from sktune.measure.winner import BASELINE_REPEAT, pooled


@dataclass(frozen=True, slots=True)
class FinalComparison:
    """The final comparison.

    Attributes:
        rows: over all processes, the baseline first.
        speedups: of each row that was timed, in each process where it was, by the row's name.
        noise_floor: the largest relative difference between the baseline and itself, ever seen in the study.
        noise: what else the machine did, by process; empty where it was quiet.
    """

    rows: tuple[FinalRow, ...]
    speedups: Mapping[str, tuple[Speedup, ...]]
    noise_floor: float
    noise: tuple[str, ...]

    @classmethod
    def of(
        cls, processes: Sequence[tuple[Sequence[FinalRow], str]], samples: Sequence[NoiseFloorSample]
    ) -> "FinalComparison":
        """Combine the processes' rows and noise with the samples of the noise floor that the search has taken."""
        by_name: dict[str, list[FinalRow]] = {}
        for rows, _ in processes:
            for row in rows:
                by_name.setdefault(row.name, []).append(row)
        measured = {name: [row.speedup for row in rows if row.speedup] for name, rows in by_name.items()}
        # What fails in one process is no finalist, and the baseline and its copies are not picked.
        finalists = [name for name, rows in by_name.items() if name.isdigit() and all(row.speedup for row in rows)]
        combined = [
            _combined(rows, [measured[other] for other in finalists if other != name and name in finalists])
            for name, rows in by_name.items()
        ]
        speedups = {
            row.name: tuple(own.speedup for own in by_name[row.name] if own.speedup) for row in combined if row.speedup
        }
        copies = [*(sample.speedup for sample in samples), *speedups.get(BASELINE_REPEAT, ())]
        floor = noise_floor(copies) if copies else 0.0  # a simulation has no noise
        return cls(tuple(combined), speedups, floor, tuple(noise for _, noise in processes))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "FinalComparison":
        """Inverse of ``to_dict``; also reads what sktune stored when one process compared all."""
        rows = tuple(FinalRow.from_dict(row) for row in data["rows"])
        stored = data.get("speedups", {row.name: [asdict(row.speedup)] for row in rows if row.speedup})
        speedups = {name: tuple(Speedup.from_dict(one) for one in values) for name, values in stored.items()}
        return cls(rows, speedups, data.get("noise_floor", 0.0), tuple(data.get("noise", ())))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)


def _combined(rows: Sequence[FinalRow], others: Sequence[Sequence[Speedup]]) -> FinalRow:
    """Return one row for all processes: what fails, or differs, in one of them is told."""
    for row in rows:
        if row.speedup is None:
            return row
    worst = next((row for row in rows if row.bit_identical is False), rows[0])
    return replace(worst, speedup=pooled([row.speedup for row in rows if row.speedup], others))
