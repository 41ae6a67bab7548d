"""Time of whole searches and of their final comparison; with another checkout in turns, or beside a load.

    python -m benchmarks.final_share --model MODEL [--trials 40] [--other CHECKOUT] [--turns 1] [--out FILE.md]
    python -m benchmarks.final_share --model MODEL --trials 12 --load 2 [--after 3]

Each search is the command itself, in a new folder with empty caches; times are when its events arrive. ``--other`` runs
the same command from another checkout, before ours in each turn, with this environment's packages. ``--load`` begins so
many processes of normal priority that never wait, once ``--after`` trials have ended; a search without them comes
first. Run it on an otherwise idle machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.busy import SPINNER
from sktune.backends.this_machine import device_name, package_version

HERE = Path(__file__).resolve().parents[1]
COLUMNS = (
    "search", "baseline, ms", "trials", "whole, s", "opening, s", "trials, s", "final comparison, s", "its share",
    "winner", "95% interval", "bits", "times the first",
)  # fmt: skip


@dataclass(slots=True)
class Times:
    """One search: when its parts began, in seconds from its start, and its last event."""

    name: str
    whole_s: float = 0.0
    opened_s: float = 0.0
    final_s: float = 0.0
    trials: int = 0
    finished: dict[str, Any] = field(default_factory=dict)

    def row(self, first: "Times") -> tuple[str, ...]:
        """Return the cells of its line in the table."""
        final_s = self.whole_s - self.final_s if self.final_s else 0.0
        bits = self.finished.get("verification") or {}
        interval = self.finished.get("ci95")
        return (
            self.name, f"{self.finished.get('baseline_ms') or 0.0:.2f}", str(self.trials), f"{self.whole_s:.0f}",
            f"{self.opened_s:.0f}", f"{self.final_s - self.opened_s:.0f}", f"{final_s:.0f}",
            f"{final_s / self.whole_s:.0%}", f"{self.finished.get('speedup') or 1.0:.3f}",
            f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else "-",
            f"identical on {bits['steps']:,} steps" if bits.get("steps") else "-",
            f"{self.whole_s / first.whole_s:.2f}",
        )  # fmt: skip


def events_of(command: Sequence[str], checkout: Path, folder: Path) -> Iterator[tuple[float, dict[str, Any]]]:
    """Run a search; yield its events, with the seconds since its start at which each arrived.

    What it says to people is in the file ``stderr`` of the folder.
    """
    environment = {**os.environ, "PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(folder / "cache")}
    with (folder / "stderr").open("w") as errors:
        began_s = time.monotonic()
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout
        for line in process.stdout:
            yield time.monotonic() - began_s, json.loads(line)
        process.wait()
        yield time.monotonic() - began_s, {"event": "ended", "exit_code": process.returncode}


def timed(name: str, checkout: Path, arguments: Sequence[str], load: int = 0, after: int = 0) -> Times:
    """Run one search."""
    times = Times(name)
    command = [sys.executable, "-m", "sktune.cli", "search", *arguments, "--json"]
    with tempfile.TemporaryDirectory(prefix="final-share-") as folder, ExitStack() as loads:
        for now_s, event in events_of(command, checkout, Path(folder)):
            times.whole_s = now_s
            match event["event"]:
                case "target_ready":
                    times.opened_s = now_s
                case "trial_finished":
                    times.trials += 1
                    if times.trials == after:
                        for _ in range(load):
                            process = subprocess.Popen([sys.executable, "-c", SPINNER, "0", ""])
                            loads.callback(process.kill)
                case "final_started":
                    times.final_s = now_s
                case "study_finished":
                    times.finished = event
                case "error":
                    print(event["message"], file=sys.stderr)
        print((Path(folder) / "stderr").read_text(), file=sys.stderr)
    return times


def main() -> None:
    """Run the searches, and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--other", type=Path, help="a checkout whose search runs in turns with ours")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--after", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    model = str(Path(given.model).resolve()) if Path(given.model).exists() else given.model
    arguments = ["--model", model, "--trials", str(given.trials)]
    searches: list[Times] = []
    for _ in range(given.turns):
        if given.other:
            searches.append(timed("the other checkout", given.other.resolve(), arguments))
        searches.append(timed("this checkout", HERE, arguments))
    if given.load:
        load = f"{given.load} processes that never wait, after trial {given.after}"
        searches.append(timed(load, HERE, arguments, given.load, given.after))
    table = [COLUMNS, ("---",) * len(COLUMNS), *(search.row(searches[0]) for search in searches)]
    words = " ".join(sys.argv[1:])
    lines = [
        f"# python -m benchmarks.final_share {words}",
        "",
        f"{time.strftime('%Y-%m-%d')}; torch {package_version('torch')}; {device_name('cpu')}, {os.cpu_count()} cores.",
        "",
        *(f"| {' | '.join(row)} |" for row in table),
        "",
    ]
    print("\n".join(lines))
    if given.out:
        given.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
