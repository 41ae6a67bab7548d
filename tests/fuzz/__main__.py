"""``python -m tests.fuzz``: damaged inputs for every command, and a table of how they ended."""

import argparse
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from tests.builders import ROOT
from tests.fuzz.harness import LIMIT_S, Tally, prepared, run
from tests.fuzz.inputs import USES

HEAD = """\
# Damaged inputs

Each input is a real file of a command with one to three damages, to its bytes, its values, or what is at its path,
drawn by seed (`tests/fuzz/`). Each command runs in one process with a limit of {limit:g} s per input. It must end with
a result, or with one line of error and exit code 1 or 2: no traceback, no hang, and no terminal's command in what is
printed.

`{command}`, commit {commit}, {machine}, Python {python}, {date}.

| command | inputs | accepted | refused (exit code 2) | failed (1) | wrong | slowest, s | inputs per s |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def main() -> None:
    """Run the inputs, print what ends wrongly, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=main.__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="for each command")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--command", choices=tuple(USES), action="append", help="one command; all by default")
    parser.add_argument("--out", type=Path, help="where to write the table")
    arguments = parser.parse_args()
    rows, is_wrong = [], False
    with prepared() as folder:
        for command in arguments.command or USES:
            tally, began = Tally(), monotonic()
            for number in range(arguments.first, arguments.first + arguments.inputs):
                known = len(tally.wrong)
                run(folder, command, number, tally)
                for wrong, how in tally.wrong[known:]:
                    print(f"{command} {wrong}: {how}", flush=True)
            rows.append(_row(command, tally, arguments.inputs, monotonic() - began))
            print(rows[-1], flush=True)
            is_wrong |= bool(tally.wrong)
    if arguments.out:
        arguments.out.write_text(_head() + "\n".join(rows) + "\n", encoding="utf-8")
    sys.exit(is_wrong)


def _row(command: str, tally: Tally, inputs: int, seconds: float) -> str:
    figures = (inputs, *(tally.ends[code] for code in (0, 2, 1)), len(tally.wrong))
    texts = [*map(str, figures), f"{tally.slowest_s:.1f}", f"{inputs / seconds:.1f}"]
    return f"| `{command}` | {' | '.join(texts)} |"


def _head() -> str:
    commit = subprocess.run(
        ["/usr/bin/env", "git", "-C", str(ROOT), "describe", "--always", "--dirty"],
        capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin:/usr/local/bin"},
    ).stdout.strip()  # fmt: skip
    processor = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return HEAD.format(
        limit=LIMIT_S, command=f"python -m tests.fuzz {' '.join(sys.argv[1:])}", commit=commit, machine=processor,
        python=platform.python_version(), date=datetime.now(UTC).date(),
    )  # fmt: skip


if __name__ == "__main__":
    main()
