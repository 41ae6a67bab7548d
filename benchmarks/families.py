"""Every causal language model of transformers: does sktune open it, search it on CPU, and simulate it?

    python -m benchmarks.families [--stage open] [--only llama,mistral] [--out docs/reference/families.md]

A tiny model of each family is made from its configuration class (``benchmarks.tiny_configs``). Stages, in this order:

* ``open``: the model's decode step with a static KV cache, eagerly in transformers alone; then as a search opens it:
  loaded, traced, captured as one graph, and the baseline replayed bit for bit;
* ``search``: ``sktune search --trials 4`` on CPU, every trial's bits compared;
* ``sim``: the same on the simulated device.

Searches start warm and measure briefly, as those of the tests do (``tests.command``): their figures are not shown.
Each family runs in its own process, with limits. A row is written as soon as it is known, and the same command
continues where it stopped; rows of other versions of torch or transformers are made anew. The table is then written.
"""

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: forked processes must not share its threads

from benchmarks.eager_decode import open_family, summary, write_config
from benchmarks.tiny_configs import families
from sktune.backends.this_machine import package_version
from tests import warm

STAGES = ("open", "search", "sim")
ROWS = Path("benchmarks/data/families.jsonl")
TABLE = Path("docs/reference/families.md")
TIMEOUT_S = {"open": 180, "search": 600, "sim": 180}
MEMORY_BYTES = 8 << 30
"""Address space of the process that opens a family."""
SEARCH = ("--trials", "4", "--verify-steps", "16")
GOAL = 0.95


@dataclass(frozen=True, slots=True)
class Row:
    """What one stage found for one family.

    Attributes:
        family: the model type.
        stage: one of ``STAGES``.
        works: whether it does; None if transformers' own step does not run.
        why: the reason if it does not, in one line; what was done if it does.
        exit_code: of the command, or of the error.
        seconds: taken.
        versions: of torch and transformers.
    """

    family: str
    stage: str
    works: bool | None
    why: str
    exit_code: int
    seconds: float
    versions: str


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=STAGES, help="only this stage")
    parser.add_argument("--only", default="", help="families, separated by commas; their rows are made anew")
    parser.add_argument("--jobs", type=int, default=1, help="families at the same time")
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--out", type=Path, default=TABLE)
    arguments = parser.parse_args()
    only = [name for name in arguments.only.split(",") if name]
    rows = {key: row for key, row in read_rows(arguments.rows).items() if row.versions == versions()}
    with warm.sitting(), tempfile.TemporaryDirectory() as runs, ThreadPoolExecutor(arguments.jobs) as pool:
        for stage in [arguments.stage] if arguments.stage else STAGES:
            missing = [family for family in only or families() if only or (family, stage) not in rows]
            todo = [family for family in missing if stage == "open" or _is_open(rows, family)]
            for done in as_completed([pool.submit(run, family, stage, Path(runs)) for family in todo]):
                row = done.result()
                rows[row.family, stage] = row
                write_rows(arguments.rows, rows.values())
                print(f"{row.family} {stage}: {_verdict(row)} {row.why} ({row.seconds:.0f} s)", flush=True)
    arguments.out.write_text("\n".join([*table(rows), ""]), encoding="utf-8")


def versions() -> str:
    """Return the versions that rows are valid for."""
    return f"torch {package_version('torch')}, transformers {package_version('transformers')}"


def read_rows(path: Path) -> dict[tuple[str, str], Row]:
    """Return the stored rows, by family and stage."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [Row(**json.loads(line)) for line in lines]
    return {(row.family, row.stage): row for row in rows}


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write the rows, sorted, in one step, so that a killed run leaves a whole file."""
    text = "".join(f"{json.dumps(asdict(row))}\n" for row in sorted(rows, key=lambda row: (row.family, row.stage)))
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def run(family: str, stage: str, runs: Path) -> Row:
    """Run one stage of one family in its own process; ``runs`` has the compiled code of all searches."""
    folder = Path(tempfile.mkdtemp(prefix="families-"))
    began = time.perf_counter()
    try:
        if stage == "open":
            works, why, exit_code = opened(family, folder / family)
        else:
            works, why, exit_code = searched(family, stage, folder / family, runs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Row(family, stage, works, why, exit_code, round(time.perf_counter() - began, 1), versions())


def opened(family: str, folder: Path) -> tuple[bool | None, str, int]:
    """Open a family in a forked process."""
    found = in_process(lambda: dict(summary(open_family(family, folder))), TIMEOUT_S["open"])
    if isinstance(found, str):
        return False, found, 1
    if found["transformers"]:
        return None, found["transformers"], 0
    if found["refused"]:
        return False, found["refused"], found["exit_code"]
    return True, f"{found['units']} units, {found['parameters']:,} parameters", 0


def searched(family: str, stage: str, folder: Path, runs: Path) -> tuple[bool | None, str, int]:
    """Search a family with the command, on CPU or simulated."""
    in_process(lambda: {"made": bool(write_config(family, folder))}, TIMEOUT_S["open"])
    command = [sys.executable, "-m", "tests.command", "search", "--model", str(folder), *SEARCH, "--json"]
    command += ["--runs", str(runs), *(("--backend", "sim") if stage == "sim" else ())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S[stage])
    except subprocess.TimeoutExpired:
        process.terminate()
        process.communicate()
        return False, f"not finished after {TIMEOUT_S[stage]} s", 1
    if process.returncode:
        return False, (errors.strip().splitlines() or ["no message"])[-1], process.returncode
    result = json.loads(output.splitlines()[-1])
    pruned = ", ".join(f"{count} {reason}" for reason, count in result["pruned"].items())
    is_measured = result["complete"] + result["pruned"]["slower"] > 0  # slower ones were measured until that was known
    text = f"{result['complete']} of {result['trials']} trials complete" + (f", {pruned}" if pruned else "")
    return is_measured, text, process.returncode


def in_process(function: Callable[[], dict[str, Any]], timeout_s: float) -> dict[str, Any] | str:
    """Return what ``function`` returns in a forked process, or why there is nothing."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(function, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(timeout_s):
            return f"not finished after {timeout_s} s"
        found: dict[str, Any] = receiver.recv()
    except EOFError:
        process.join()
        return f"its process ends with exit code {process.exitcode}"
    finally:
        process.kill()
        process.join()
    return found


def _answer(function: Callable[[], dict[str, Any]], sender: Connection) -> None:
    _limit_memory()
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        sender.send(function())


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _is_open(rows: Mapping[tuple[str, str], Row], family: str) -> bool:
    return (row := rows.get((family, "open"))) is not None and row.works is True


def _verdict(row: Row) -> str:
    return {True: "works", False: f"no (exit code {row.exit_code})", None: "not in transformers"}[row.works]


def table(rows: Mapping[tuple[str, str], Row]) -> Iterator[str]:
    """Return the lines of the page."""
    found = {stage: {family: row for (family, of), row in rows.items() if of == stage} for stage in STAGES}
    counted = {family for family, row in found["open"].items() if row.works is not None}
    opened = {family for family, row in found["open"].items() if row.works}
    missing = sorted(set(families()) - found["open"].keys())
    yield "# Model families"
    yield ""
    yield "What becomes of a tiny model of each family that transformers lists as a causal language model: a few layers"
    yield "of random weights, made from the family's configuration class, bfloat16, batch 1. Written by:"
    yield ""
    yield "```bash"
    yield "python -m benchmarks.families"
    yield "```"
    yield ""
    yield f"{versions()}; Python {sys.version.split()[0]}."
    yield ""
    yield "| stage | what was run | families | work |"
    yield "| --- | --- | ---: | ---: |"
    for stage, what in WHAT.items():
        of = found[stage].keys() & counted
        works = sum(found[stage][family].works is True for family in of)
        is_complete = not missing and (stage == "open" or of >= opened)
        yield f"| `{stage}` | {what} | {len(of)} | {_share(works, len(of), len(counted) if is_complete else 0)} |"
    yield ""
    yield f"Counted are the {len(counted)} of {len(found['open'])} families whose eager decode step with a static KV"
    yield "cache runs in transformers itself, and shares are of them; the others are listed at the end."
    yield ""
    if missing:
        yield f"Not run yet: {', '.join(missing)}."
        yield ""
    yield from _section("Refused", "what sktune says", found["open"], works=False)
    yield from _works(found)
    yield from _section("Not counted", "what transformers says", found["open"], works=None)


WHAT: Mapping[str, str] = {
    "open": "loaded, traced and captured as one graph; the baseline equals itself on 16 steps",
    "search": f"`sktune search {' '.join(SEARCH)}` on CPU, measured briefly",
    "sim": f"`sktune search {' '.join(SEARCH)} --backend sim`",
}


def _share(works: int, count: int, counted: int) -> str:
    """Return how many work, and their share of those ``counted``, 0 if not all families were run."""
    if not count:
        return "not run"
    return f"{works} ({works / counted:.1%})" if counted else f"{works} so far"


def _works(found: Mapping[str, Mapping[str, Row]]) -> Iterator[str]:
    yield "## Opened"
    yield ""
    yield "| family | search on CPU | simulated |"
    yield "| --- | --- | --- |"
    for family in sorted(family for family, row in found["open"].items() if row.works):
        cells = [found[stage].get(family) for stage in ("search", "sim")]
        texts = ["not run" if row is None else _cell(row.why if row.works else f"**no**: {row.why}") for row in cells]
        yield f"| {family} | {' | '.join(texts)} |"
    yield ""


def _section(title: str, heading: str, rows: Mapping[str, Row], *, works: bool | None) -> Iterator[str]:
    chosen: Sequence[Row] = [row for _, row in sorted(rows.items()) if row.works is works]
    if chosen:
        code = " | exit code" if works is False else ""
        yield f"## {title}"
        yield ""
        yield f"| family | {heading}{code} |"
        yield f"| --- | ---{' | ---:' if code else ''} |"
        for row in chosen:
            yield f"| {row.family} | {_cell(row.why)}{f' | {row.exit_code}' if code else ''} |"
        yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
