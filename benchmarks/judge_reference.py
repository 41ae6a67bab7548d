"""Checks sktune's verification on plans whose bits are known from 20,000 steps.

    OMP_NUM_THREADS=1 python -m benchmarks.judge_reference --out benchmarks/results/verification-cpu.md

It reads the data made by ``benchmarks.reference_bits`` and verifies each plan like a finalist of a search
(``PlanEvaluator.verify``). ``--cache`` has to be the one that the data were made with, or autotuned plans may compile
to other code than that of the data; the table says which ones did. All finalists of a model are verified together, so
that a region which is found to differ in one of them is not checked again in the others, as in a search. Exits with 1
if the verification is wrong, see ``violations``, or if a plan compiled to other code.
"""

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.reference_bits import ROOT, made_with, prepare_environment, use_threads
from benchmarks.reference_plans import EXACT_KIND, INEXACT, MODELS, Model, opened
from benchmarks.reference_steps import Counts
from sktune.backends.base import CompileError
from sktune.core.codec import decoded
from sktune.core.errors import BadInputError, SktuneError
from sktune.core.plan import Plan
from sktune.core.verification import DEFAULT_VERIFY_STEPS, Verification
from sktune.worker.evaluator import PlanEvaluator
from sktune.worker.jobs import Verify, silent
from sktune.worker.replays import compare, prepare, record

RARE = 700
"""A plan must be rejected if more than 1 step in ``RARE`` differs (issue 26)."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A plan of the reference, and its verification.

    Attributes:
        model, name, kind: as in the reference.
        counts: of the reference.
        is_quick: whether the few steps that every trial compares show a difference.
        verification: the verdict.
        is_known_code: whether it compiled to the code that the reference ran.
    """

    model: str
    name: str
    kind: str
    counts: Counts
    is_quick: bool
    verification: Verification
    is_known_code: bool = True

    @property
    def differing_share(self) -> float:
        """Share of the reference's steps that differ, including those after a differing state."""
        return self.counts.differing_steps / self.counts.steps

    @property
    def found_by(self) -> str:
        """The first check to show a difference: the quick check of a trial, a region, or steps; empty if none does."""
        if self.is_quick:
            return "quick check"
        if regions := self.verification.differing_regions:
            return "region" if regions[0].elements else "region, known from another plan"
        if not self.verification.difference:
            return ""
        return "steps" if self.verification.code_digest else "not run"


def main() -> None:
    """Verify the reference's plans, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "benchmarks" / "data" / "reference_bits.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=DEFAULT_VERIFY_STEPS, help="to verify")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), help="all in the data by default")
    parser.add_argument("--cache", type=Path, default=ROOT / "runs" / "reference-cache", help="Inductor's")
    arguments = parser.parse_args()
    prepare_environment(arguments.cache)
    data = json.loads(arguments.data.read_text(encoding="utf-8"))
    rows: list[Judged] = []
    spawn = multiprocessing.get_context("spawn")  # in one process, two models' steps would share a Dynamo function
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        try:
            for name in arguments.models or data["models"]:
                rows += pool.submit(judged, MODELS[name], data, arguments.steps).result()
        except SktuneError as failure:
            sys.exit(f"error: {failure}")
    wrong = list(violations(rows))
    command = f"python -m benchmarks.judge_reference --steps {arguments.steps}"
    arguments.out.write_text(page(rows, wrong, data["made_with"], command), encoding="utf-8")
    print("\n".join(summary(rows, wrong)))
    sys.exit(0 if not wrong and all(row.is_known_code for row in rows) else 1)


def judged(model: Model, data: Mapping[str, Any], steps: int) -> list[Judged]:
    """Verify the plans of one model.

    Raises:
        BadInputError: bits may differ here from where the data were made.
    """
    use_threads()
    if data["made_with"] != made_with():
        raise BadInputError(f"the data were made with {data['made_with']}, here it is {made_with()}")
    entry = data["models"][model.name]
    model_opened = opened(model)
    if entry["layout"] != model_opened.layout.digest:
        raise BadInputError(f"{model.name} has other units than in the data")
    plans = {name: decoded(Plan, row["plan"]) for name, row in entry["plans"].items() if row["plan"]["scopes"]}
    judge = PlanEvaluator(model_opened.target, model_opened.backend)
    replays = prepare(model_opened.target)
    recordings = record(judge.baseline, replays)
    quick: dict[str, bool] = {}
    for name, plan in plans.items():
        try:
            quick[name] = compare(model_opened.backend.compile(plan).step, recordings) is not None
        except CompileError:
            quick[name] = False
    rows = []
    for name, plan in plans.items():
        verification = judge.verify(Verify(name, plan, steps), silent)
        assert verification  # more steps than in a trial
        row = entry["plans"][name]
        is_known = verification.code_digest in ("", row["code"])
        counts = Counts(**row["counts"])
        rows.append(Judged(model.name, name, row["kind"], counts, quick[name], verification, is_known))
        print(f"{model.name}: {name}: {verification}", flush=True)
    return rows


def violations(rows: Sequence[Judged]) -> Iterator[str]:
    """Yield errors of the verification, and differences in the reference that must not exist."""
    for row in rows:
        if not row.is_known_code:
            continue  # the reference does not cover this code; the summary names the plan
        found, counts = row.verification, row.counts
        where = f"{row.model}, {row.name}"
        differs = f"{counts.differing_steps} of {counts.steps} steps differ ({counts.own_differing_steps} of their own)"
        if found.is_identical and counts.differing_steps * RARE > counts.steps:
            yield f"{where}: called identical, and {differs}"
        elif found.is_identical and row.differing_share > found.differing_share:
            yield f"{where}: the bound is 1 in {found.one_in}, and {differs}"
        if not found.is_identical and not counts.differing_steps and not found.differing_regions:
            yield f"{where}: rejected ({found}) with no region that differs, and the reference finds it equal"
        if row.kind == EXACT_KIND and counts.differing_steps:
            yield f"{where}: has exact values only, and {differs}"
        if row.kind == EXACT_KIND and not found.is_identical:
            yield f"{where}: has exact values only, and is rejected ({found})"


def summary(rows: Sequence[Judged], wrong: Sequence[str]) -> list[str]:
    """Return the figures in sentences, one per line."""
    inexact = [row for row in rows if row.kind != EXACT_KIND]
    exact = [row for row in rows if row.kind == EXACT_KIND]
    must_go = [row for row in inexact if row.counts.differing_steps * RARE > row.counts.steps]
    rare = [row for row in inexact if 0 < row.counts.differing_steps * RARE <= row.counts.steps]
    equal = [row for row in inexact if not row.counts.differing_steps]
    other_code = [f"{row.model}, {row.name}" for row in rows if not row.is_known_code]
    missed = sum(not row.is_quick for row in must_go)
    by_region = sum(bool(row.verification.differing_regions) for row in equal)
    differing = sum(bool(row.counts.differing_steps) for row in exact)
    lines = [
        f"{len(must_go)} of {len(inexact)} plans outside the exact values differ in more than 1 of {RARE} steps",
        f"{_rejected(must_go)} of these are rejected; the quick check of a trial misses {missed} of them",
        f"{len(rare)} differ more rarely, {_rejected(rare)} of these are rejected",
        f"{len(equal)} never differ, {_rejected(equal)} of these are rejected, {by_region} for a region that differs",
        f"{len(exact)} plans of exact values: {differing} differ, {_rejected(exact)} are rejected",
        f"code other than the reference's: {'; '.join(other_code) or 'none'}",
        *(f"**violation** in {line}" for line in wrong),
        *([] if wrong else ["no violation" + (f" in the others; {len(other_code)} not judged" if other_code else "")]),
    ]
    return [f"- {line}" for line in lines]


def _rejected(rows: Sequence[Judged]) -> int:
    return sum(not row.verification.is_identical for row in rows)


def page(rows: Sequence[Judged], wrong: Sequence[str], made: Mapping[str, Any], command: str) -> str:
    """Return the whole page as Markdown."""
    columns = "model|plan|values|steps|differing|own|one in|verdict|found by|verified|bound: one in|elements of regions"
    alignment = "---|---|---|---:|---:|---:|---:|---|---|---:|---:|---:"
    lines = [
        f"# {command}, {datetime.now(UTC).date().isoformat()}",
        "",
        f"{made['cpu']}, {made['capability']}, {made['threads']} thread, torch {made['torch']}.",
        "Steps, differing, own, one in: of the reference; own are those that differ though they begin with the",
        "baseline's state. Verified: steps that the verification compared.",
        "",
        *summary(rows, wrong),
        "",
        f"| {columns.replace('|', ' | ')} |",
        f"|{alignment}|",
        *map(_line, rows),
        "",
    ]
    return "\n".join(lines)


def _line(row: Judged) -> str:
    counts, found = row.counts, row.verification
    one_in = f"{counts.steps / counts.differing_steps:,.0f}" if counts.differing_steps else "-"
    verdict = "identical" if found.is_identical else "rejected"
    cells = [
        row.model, row.name, INEXACT if row.kind != EXACT_KIND else EXACT_KIND, f"{counts.steps:,}",
        f"{counts.differing_steps:,}", f"{counts.own_differing_steps:,}", one_in, verdict, row.found_by or "-",
        f"{found.steps:,}", f"{found.one_in:,}" if found.is_identical else "-",
        f"{sum(region.elements for region in found.regions):,}" if found.regions else "-",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
