"""The command line of benchmarks that simulate the cells of a table."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sktune.backends.this_machine import device_name, package_version


def write_table(name: str, description: str | None, table: Callable[[int, int], Iterator[str]], runs: int) -> None:
    """Simulate all cells, write the table with its command and the machine to ``--out``, and print it.

    Args:
        name: of the benchmark's module.
        description: for ``--help``.
        table: returns the lines of the table for a number of runs of each cell and a seed.
        runs: default of ``--runs``.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=runs, help="of each cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    made_with = f"Python {sys.version.split()[0]}, numpy {package_version('numpy')}; {device_name('cpu')}"
    command = f"# python -m benchmarks.{name} {' '.join(sys.argv[1:])}"
    lines = [command, "", f"{time.strftime('%Y-%m-%d')}; {made_with}", "", *table(arguments.runs, arguments.seed), ""]
    text = "\n".join(lines)
    arguments.out.write_text(text, encoding="utf-8")
    print(text)
