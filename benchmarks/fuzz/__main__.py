"""``python -m benchmarks.fuzz``: damaged inputs for every command, and a table of how they ended."""

import argparse
import multiprocessing
import platform
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from time import monotonic

from benchmarks.fuzz.harness import LIMIT_S, Tally, prepare, run_chunk
from benchmarks.fuzz.inputs import USES
from tests.builders import ROOT

HEAD = f"""\
# Damaged inputs

Each input is a real file of a command with one to three damages, to its bytes, its values, or what is at its path,
drawn by seed (`benchmarks/fuzz/`), with a limit of {LIMIT_S:g} s. The command must end with a result, or with one line
of error and exit code 1 or 2: no traceback, no hang, and no terminal's command in what is printed.

`python -m benchmarks.fuzz --inputs 10000 --command COMMAND --out benchmarks/results/fuzz.md` for each row. Other
work ran beside most of them, so the slowest input tells little about time.

| command | inputs | accepted | refused (exit code 2) | failed (1) | wrong | slowest, s | commit | machine |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |
"""
CHUNK = 250
"""Inputs that a process runs before the next task is given out."""


def main() -> None:
    """Run the inputs, print what ends wrongly, and put the rows of the commands that were run into the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=main.__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="for each command")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--command", choices=tuple(USES), action="append", help="one command; all by default")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="the table; its rows of other commands stay")
    arguments = parser.parse_args()
    is_wrong = False
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn"), prepare) as pool:
        for command in arguments.command or USES:
            tally, began = Tally(), monotonic()
            last = arguments.first + arguments.inputs
            chunks = [range(at, min(at + CHUNK, last)) for at in range(arguments.first, last, CHUNK)]
            for found in pool.map(run_chunk, repeat(command), chunks):
                tally.add(found)
                for number, how in found.wrong:
                    print(f"{command} {number}: {how}", flush=True)
            row = _row(command, tally, arguments.inputs)
            print(f"{row} {arguments.inputs / (monotonic() - began):.1f} inputs per s", flush=True)
            if arguments.out:
                _put(arguments.out, command, row)
            is_wrong |= bool(tally.wrong)
    sys.exit(is_wrong)


def _put(table: Path, command: str, row: str) -> None:
    """Write the row of ``command`` in its place."""
    lines = table.read_text(encoding="utf-8").splitlines() if table.exists() else []
    rows = {line.split("`")[1]: line for line in lines if line.startswith("| `")} | {command: row}
    table.write_text(HEAD + "".join(f"{rows[name]}\n" for name in USES if name in rows), encoding="utf-8")


def _row(command: str, tally: Tally, inputs: int) -> str:
    figures = (inputs, *(tally.ends[code] for code in (0, 2, 1)), len(tally.wrong))
    texts = [*map(str, figures), f"{tally.slowest_s:.1f}", *_provenance()]
    return f"| `{command}` | {' | '.join(texts)} |"


def _provenance() -> tuple[str, str]:
    """Return the commit; the machine, Python and the date."""
    commit = subprocess.run(
        ["/usr/bin/env", "git", "-C", str(ROOT), "describe", "--always", "--dirty"],
        capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin:/usr/local/bin"},
    ).stdout.strip()  # fmt: skip
    machine = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return commit, f"{machine}, {platform.python_version()}, {datetime.now(UTC).date()}"


if __name__ == "__main__":
    main()
