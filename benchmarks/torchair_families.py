"""Every causal language model of transformers over TorchAir's front end: does its decode step convert, with scopes?

    .venv-npu/bin/python -m benchmarks.torchair_families [--only llama,mistral]

A tiny model of each family (``benchmarks.tiny_configs``) is converted to a GE graph, without a device. Each starting
point of its space must mark exactly the GE operators that the plan's scopes contain, with the plan's options, and the
converted graph, run on the CPU, must give the baseline's bits. ``benchmarks/npu_env.py`` makes the environment.

Each family runs in its own process, with a time limit. A row is written as soon as it is known, and the same command
continues where it stopped; rows of other versions of torch, torch_npu or transformers are made anew.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.tiny_configs import families, tiny_config
from sktune.backends.this_machine import package_version

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "benchmarks" / "data" / "torchair_families.jsonl"
TABLE = ROOT / "docs" / "reference" / "families-torchair.md"
TIMEOUT_S = 300.0
CONVERTS, REFUSED, STOPS, DIFFERS, UNFINISHED = "converts", "refused", "stops", "differs", "unfinished"
STATES: Mapping[str, str] = {
    CONVERTS: "it converts, and all starting points are equal",
    STOPS: "TorchAir does not convert it",
    REFUSED: "sktune or transformers does not run it eagerly",
    DIFFERS: "it converts, but marks or bits differ",
    UNFINISHED: "not finished in time, or its process died: nothing is known",
}
_OPERATOR = re.compile(r"\b(?:aten|prims|torchvision|transformers)[.:]+\w+(?:\.\w+)?")


@dataclass(frozen=True, slots=True)
class Row:
    """What was found for one family.

    Attributes:
        family: the model type.
        state: one of ``STATES``.
        why: the first line of the reason; empty if it converts.
        operator: the operator that stops the conversion, if the reason names one.
        points: starting points that were compared.
        operators: GE operators of the step.
        seconds: taken, the start of the process included.
        versions: of torch, torch_npu and transformers.
    """

    family: str
    state: str
    why: str
    operator: str
    points: int
    operators: int
    seconds: float
    versions: str


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="families, separated by commas; their rows are made anew")
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--out", type=Path, default=TABLE)
    parser.add_argument("--family", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.family:
        print(json.dumps(compared(arguments.family)))
        return
    only = [name for name in arguments.only.split(",") if name]
    rows = {name: row for name, row in read_rows(arguments.rows).items() if row.versions == versions()}
    for family in only or families():
        if family in rows and not only:
            continue
        rows[family] = row = run(family)
        write_rows(arguments.rows, rows)
        print(f"{family}: {row.state} {row.why} ({row.points} points, {row.seconds:.0f} s)", flush=True)
    arguments.out.write_text("\n".join([*table(rows), ""]), encoding="utf-8")


def versions() -> str:
    """Return the versions that rows are valid for."""
    return ", ".join(f"{name} {package_version(name)}" for name in ("torch", "torch_npu", "transformers"))


def read_rows(path: Path) -> dict[str, Row]:
    """Return the stored rows, by family."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {row.family: row for row in (Row(**json.loads(line)) for line in lines)}


def write_rows(path: Path, rows: Mapping[str, Row]) -> None:
    """Write the rows, sorted, in one step, so that a killed run leaves a whole file."""
    part = path.with_suffix(".part")
    part.write_text("".join(f"{json.dumps(asdict(rows[name]))}\n" for name in sorted(rows)), encoding="utf-8")
    part.replace(path)


def run(family: str) -> Row:
    """Compare one family in its own process, in a folder of its own."""
    began = time.perf_counter()
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "benchmarks.torchair_families", "--family", family]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            found: dict[str, str | int] = {"state": UNFINISHED, "why": f"not finished after {TIMEOUT_S:g} s"}
        else:
            found = _answer(done)
    why = str(found["why"])
    operator = next(iter(_OPERATOR.findall(why)), "") if found["state"] == STOPS else ""
    seconds = round(time.perf_counter() - began, 1)
    return Row(
        family, str(found["state"]), why, operator, points=int(found.get("points", 0)),
        operators=int(found.get("operators", 0)), seconds=seconds, versions=versions(),
    )  # fmt: skip


def _answer(done: "subprocess.CompletedProcess[str]") -> dict[str, str | int]:
    try:
        found: dict[str, str | int] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = next(reversed(done.stderr.strip().splitlines()), "no message")
        why = f"its process ends with exit code {done.returncode}: {last}"
        return {"state": UNFINISHED, "why": why}
    return found


def compared(family: str) -> dict[str, str | int]:
    """Convert a family in this process, and compare each starting point of its space."""
    from sktune.backends.base import CompileError
    from sktune.core.space import SpaceSpec
    from sktune.targets import describe
    from tests.torchair.test_scopes import convert

    folder = Path(family)
    folder.mkdir()
    points = operators = 0
    state, why = CONVERTS, ""
    try:
        tiny_config(family).save_pretrained(folder)
        spec, _ = describe(str(folder), backend="npu", device="cpu")
        conversion = convert(spec, SpaceSpec())
        operators = len(conversion.operators)
        for point in conversion.space.starting_points:
            conversion.check(conversion.space.plan(point.values))
            points += 1
    except CompileError as failure:
        state, why = STOPS, str(failure)
    except AssertionError as failure:
        state, why = DIFFERS, str(failure) or "the marks differ"
    except Exception as failure:  # noqa: BLE001 - a family's own code may raise anything
        state, why = REFUSED, f"{type(failure).__name__}: {failure}"
    first = next(iter(why.strip().splitlines()), "").replace(f"{folder.parent.absolute()}{os.sep}", "")
    return {"state": state, "why": first[:300], "points": points, "operators": operators}


def table(rows: Mapping[str, Row]) -> Iterator[str]:
    """Return the lines of the page."""
    yield "# Model families over TorchAir"
    yield ""
    yield "What becomes of a tiny model of each family that transformers lists as a causal language model, over"
    yield "TorchAir's own front end, without a device. Each starting point of its search space must mark exactly the GE"
    yield "operators in its scopes; the converted graph, run on the CPU, must give the bits of the baseline. GE itself,"
    yield "fusion and timing need a device, and are not covered. Written by:"
    yield ""
    yield "```bash"
    yield "python benchmarks/npu_env.py --torch-npu 2.13.0 .venv-npu"
    yield ".venv-npu/bin/python -m benchmarks.torchair_families"
    yield "```"
    yield ""
    yield f"{versions()}; Python {sys.version.split()[0]}; {len(rows)} of {len(families())} families were run."
    yield ""
    yield "| state | families |"
    yield "| --- | ---: |"
    for state, text in STATES.items():
        yield f"| {text} | {sum(row.state == state for row in rows.values())} |"
    for state, text in STATES.items():
        chosen = [row for _, row in sorted(rows.items()) if row.state == state]
        if not chosen:
            continue
        is_equal = state == CONVERTS
        yield ""
        yield f"## {text[0].upper()}{text[1:]}"
        yield ""
        yield "| family | starting points | GE operators |" if is_equal else "| family | operator | reason |"
        yield "| --- | ---: | ---: |" if is_equal else "| --- | --- | --- |"
        for row in chosen:
            cells = (row.points, row.operators) if is_equal else (_cell(row.operator), _cell(row.why))
            yield f"| {row.family} | {cells[0]} | {cells[1]} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
