"""`sktune apply` of npugraph_ex on every YAML of a cann-recipes-infer checkout that uses it.

    python -m benchmarks.field.captured --repository CHECKOUT [--table benchmarks/results/field-npugraph-ex.md]

The checkout is copied. For each YAML and plan, the changed source runs symbolically, as in ``benchmarks.field``; then a
plan is applied to the copy, the program's own classes and checks read the result, and it is undone.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.field.__main__ import FACTS, LAYERS, Folder, check, value_at
from benchmarks.field.recipes import COPIED, PROGRAM_SIDE
from sktune.core.plan import Plan
from sktune.core.plan_file import PlanFile, write_plan
from sktune.core.scope_flavour import ScopeFlavour
from sktune.source import edits
from sktune.source.apply import source_change
from sktune.source.values import Reading
from sktune.source.yaml_flag import CAPTURED_MODE

APPLIED = "both"
"""The plan that is written into the copy."""
HEAD = """`python -m benchmarks.field.captured --repository CHECKOUT` on the {} YAMLs (at fbc225d) that use \
npugraph_ex. Nothing ran on an NPU. *Entered*: plans that the changed source, run symbolically on four layers, enters \
around their units in decode, and nowhere in prefill and drafts, with the same data flow. *Accepted*: parts of the \
program that read the source and the YAML with the plan `{}`. Then it was undone, and all files of the folder were \
the same bytes."""


@dataclass(frozen=True)
class Row:
    """A YAML: how many plans were entered, of how many; what the program's classes accepted; what is wrong."""

    yaml: str
    entered: str
    accepted: str
    wrong: tuple[str, ...]


def main() -> int:
    """Print a line for each YAML; return 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--table", type=Path, help="Write the table to this file.")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "checkout"
        for name in COPIED:
            if (options.repository / name).is_dir():
                shutil.copytree(options.repository / name, root / name, symlinks=True)
        for name, facts in FACTS["folders"].items():
            folder = Folder(root / "models" / name, facts)
            for path in folder.yamls:
                if f'"{CAPTURED_MODE}"' in json.dumps(yaml.safe_load(path.read_text(encoding="utf-8"))):
                    rows.append(row(root, folder, path))
                    print(rows[-1].yaml, rows[-1].entered, rows[-1].accepted, *rows[-1].wrong, sep="; ", flush=True)
    if options.table:
        options.table.write_text(table(rows), encoding="utf-8")
    return int(any(each.wrong for each in rows))


def row(root: Path, folder: Folder, path: Path) -> Row:
    """Check one YAML."""
    plans, wrong, entered = dict(folder.plans()), [], 0
    readings: tuple[Reading | None, ...] = ()
    for name, plan in plans.items():
        result, rewritten = check(folder, plan, path, ScopeFlavour.CAPTURED)
        entered += result == "entered"
        wrong += [] if result == "entered" or result.startswith("refused") else [f"{name}: {result}"]
        readings = rewritten.readings if rewritten and name == APPLIED else readings
    accepted, more = applied(root, folder, path, plans[APPLIED], readings)
    name = path.relative_to(root / "models").as_posix()
    return Row(name, f"{entered} of {len(plans)}", ", ".join(accepted), (*wrong, *more))


def applied(
    root: Path, folder: Folder, path: Path, plan: Plan, readings: Sequence[Reading | None]
) -> tuple[list[str], list[str]]:
    """Apply a plan, let the program read the result, undo it; return what accepted it, and what is wrong."""
    before = digests(folder.path)
    request = {"root": str(root), "model": folder.path.name, "yaml": str(path), "stated": {"applied": True}}
    said_before = asked(root, request)
    plan_file = PlanFile.model_validate(yaml.safe_load(write_plan(plan, {}, ScopeFlavour.CAPTURED, LAYERS)))
    change = source_change(plan_file, folder.path, path)
    change.write()
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    said = asked(root, request)
    wrong = [line for line in said["wrong"] if line not in said_before["wrong"]]  # some refuse the YAML as it is
    if (folder.path / "infer.py").is_file():  # the document is what such a program reads
        read = (*readings, Reading("runner_settings", ("model_config", "enable_static_kernel")))
        wrong += [f"{'.'.join(each.keys)} is not on" for each in read if each and value_at(settings, each) is not True]
    edits.undo(folder.path)
    wrong += ["undo does not restore the folder"] if digests(folder.path) != before else []
    return said["checked"], wrong


def asked(root: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the program's own classes say, in a process of their own: the source differs from YAML to YAML."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM_SIDE)], input=json.dumps([request]), capture_output=True, text=True, timeout=600,
        check=False, cwd=root,
    )  # fmt: skip
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1].partition(":")[0]
        return {"checked": [f"(its program cannot run here: {last})"], "wrong": []}
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])[0]
    return said


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def table(rows: list[Row]) -> str:
    """Return the table in Markdown."""
    lines = [
        "# Scopes of npugraph_ex in cann-recipes-infer",
        "",
        HEAD.format(len(rows), APPLIED),
        "",
        f"Wrong: {sum(len(each.wrong) for each in rows)}.",
        *(f"* {each.yaml}: {'; '.join(each.wrong)}" for each in rows if each.wrong),
        "",
        "| YAML | entered | accepted by |",
        "| --- | --- | --- |",
        *(f"| {each.yaml} | {each.entered} | {each.accepted} |" for each in rows),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
