"""How often the bits of 62 plans differ from the baseline's: 20,000 decode steps of each, stored as data.

    OMP_NUM_THREADS=1 python -m benchmarks.reference_bits --out benchmarks/data/reference_bits.json

``benchmarks.judge_reference`` checks sktune's verification against it. The plans are those of
``benchmarks.reference_plans``, the comparison is that of ``benchmarks.reference_steps``. Context ``k`` has the seed
1,000,000 + k, which no search uses, and begins at a random slot of the cache drawn with it.

The file is written every minute. Run the same command to continue, also with more ``--steps``; ``--cache`` has to be
the same, as Inductor selects kernels by timing, and a plan that compiled to other code cannot be continued. The file is
JSON:

``version``: 1. ``made_with``: torch, CPU, its capability, threads. ``models``: by name, with

* ``layout``: digest of the units; ``contexts``: number of finished contexts; ``steps_per_context``;
* ``baseline``: digest of the baseline's results in all contexts (``Trace.digest``, one after the other);
* ``failed``: drawn plans that do not compile, with the reason;
* ``plans``: by name, each with ``kind`` (``inexact``: has values that may change bits; ``exact``: has none; ``known``:
  a plan of issue 26; ``baseline``: the baseline compiled again), ``plan``, ``code``: digest of its generated code,
  ``counts`` (``Counts``), and ``first``, the first difference (``Difference``), or null.
"""

import argparse
import fcntl
import json
import multiprocessing
import os
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.reference_plans import (
    BASELINE,
    EXACT_KIND,
    INEXACT,
    KNOWN,
    MODELS,
    Model,
    Opened,
    drawn,
    known_plans,
    opened,
)
from benchmarks.reference_steps import Counts, compared, traced
from sktune.backends.base import CompileError, Step
from sktune.backends.this_machine import device_name, package_version
from sktune.core.codec import decoded, encoded
from sktune.core.errors import BadInputError, SktuneError
from sktune.core.plan import Plan

ROOT = Path(__file__).resolve().parent.parent
VERSION = 1
FIRST_SEED = 1_000_000
STEPS_PER_CONTEXT = 16
THREADS = 1
"""Kernels may split their work, and so their sums, by the number of threads."""
SAVE_EVERY_S = 60.0

Entry = dict[str, Any]


def main() -> None:
    """Make the reference, or continue making it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plans", type=int, default=60, help="over all models; one in three is exact")
    parser.add_argument("--steps", type=int, default=20_000, help="of each plan, at least")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--cache", type=Path, default=ROOT / "runs" / "reference-cache", help="Inductor's")
    arguments = parser.parse_args()
    prepare_environment(arguments.cache)
    per_model = arguments.plans // len(MODELS)
    numbers = {INEXACT: per_model - per_model // 3, EXACT_KIND: per_model // 3}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")  # in one process, two models' steps would share a Dynamo function
    with ProcessPoolExecutor(arguments.jobs, mp_context=spawn, max_tasks_per_child=1) as pool:
        jobs = [pool.submit(run, name, arguments.out, numbers, arguments.steps) for name in arguments.models]
        try:
            for job in jobs:
                job.result()
        except SktuneError as failure:
            sys.exit(f"error: {failure}")


def prepare_environment(cache: Path) -> None:
    """Make Inductor cache its code in ``cache``, and compile in this process alone."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache.resolve())
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def use_threads() -> None:
    """Use the reference's number of threads."""
    torch.set_num_threads(THREADS)


def made_with() -> dict[str, str | int]:
    """Return everything that the bits may depend on."""
    return {
        "torch": package_version("torch"),
        "transformers": package_version("transformers"),
        "cpu": device_name("cpu"),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def run(name: str, out: Path, numbers: dict[str, int], steps: int) -> None:
    """Compare the plans of one model until each has ``steps`` steps.

    Raises:
        BadInputError: the file was made in another environment.
    """
    use_threads()
    model = MODELS[name]
    entry = read(out)["models"].get(name)
    model_opened = opened(model)
    compiled = _compiled_again(model, model_opened, entry) if entry else {}
    if entry is None:
        entry, compiled = _begun(model, model_opened, numbers)
        save(out, name, entry)
    baseline = model_opened.backend.compile(Plan()).step
    saved_s = began_s = time.monotonic()
    while entry["contexts"] * STEPS_PER_CONTEXT < steps:
        add_context(model, model_opened, baseline, compiled, entry)
        if time.monotonic() - saved_s > SAVE_EVERY_S:
            saved_s = time.monotonic()
            save(out, name, entry)
            print(f"{name}: {entry['contexts']} contexts, {saved_s - began_s:.0f} s", flush=True)
    save(out, name, entry)
    print(f"{name}: {entry['contexts']} contexts done", flush=True)


def add_context(model: Model, model_opened: Opened, baseline: Step, compiled: dict[str, Step], entry: Entry) -> None:
    """Run all plans in the next context, and add the results to ``entry``."""
    seed = FIRST_SEED + entry["contexts"]
    slots = random.Random(seed).randint(model.context or 0, model.capacity - STEPS_PER_CONTEXT)
    target = model_opened.target
    trace = traced(target, baseline, seed, slots, model.context, STEPS_PER_CONTEXT)
    for name, step in compiled.items():
        row = entry["plans"][name]
        counts, first = compared(target, step, trace)
        row["counts"] = asdict(Counts(**row["counts"]) + counts)
        row["first"] = row["first"] or (first and asdict(first))
    entry["contexts"] += 1
    entry["baseline"] = trace.digest(entry["baseline"])


def _begun(model: Model, model_opened: Opened, numbers: dict[str, int]) -> tuple[Entry, dict[str, Step]]:
    """Draw and compile the plans; one that does not compile is replaced by the next."""
    entry: Entry = {
        "layout": model_opened.layout.digest, "contexts": 0, "steps_per_context": STEPS_PER_CONTEXT, "baseline": "",
        "failed": [], "plans": {},
    }  # fmt: skip
    compiled: dict[str, Step] = {}

    def added(name: str, kind: str, plan: Plan) -> bool:
        began_s = time.monotonic()
        try:
            result = model_opened.backend.compile(plan)
        except CompileError as failure:
            entry["failed"].append({"kind": kind, "plan": encoded(plan), "reason": str(failure)})
            return False
        print(f"{model.name}: {name} compiled in {time.monotonic() - began_s:.0f} s", flush=True)
        compiled[name] = result.step
        entry["plans"][name] = {
            "kind": kind, "plan": encoded(plan), "code": result.code_digest, "counts": asdict(Counts()), "first": None,
        }  # fmt: skip
        return True

    added(BASELINE, BASELINE, Plan())
    known = known_plans(model, model_opened.layout)
    for name, plan in known.items():
        added(name, KNOWN, plan)
    for kind, number in numbers.items():
        plans = (plan for plan in drawn(model_opened.space, kind, model.name) if plan not in known.values())
        for index in range(number):
            while not added(f"{kind} {index + 1}", kind, next(plans)):
                pass
    return entry, compiled


def _compiled_again(model: Model, model_opened: Opened, entry: Entry) -> dict[str, Step]:
    """Compile the plans of ``entry``.

    Raises:
        BadInputError: the model has other units, or a plan compiled to other code.
    """
    if entry["layout"] != model_opened.layout.digest:
        raise BadInputError(f"{model.name} has other units than in the file; write to another one")
    compiled: dict[str, Step] = {}
    for name, row in entry["plans"].items():
        result = model_opened.backend.compile(decoded(Plan, row["plan"]))
        if result.code_digest != row["code"]:
            raise BadInputError(
                f"{name} of {model.name} compiled to other code; use the same --cache, or another --out"
            )
        compiled[name] = result.step
    return compiled


def read(out: Path) -> dict[str, Any]:
    """Return the content of the file; only a header if it does not exist.

    Raises:
        BadInputError: it was made on another machine, or with another torch.
    """
    if not out.exists():
        return {"version": VERSION, "made_with": made_with(), "models": {}}
    data: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    if data["version"] != VERSION or data["made_with"] != made_with():
        raise BadInputError(f"{out} was made with {data['made_with']}, here it is {made_with()}; write to another file")
    return data


def save(out: Path, name: str, entry: Entry) -> None:
    """Store the model's entry in the file, which other processes also write."""
    folder = os.open(out.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        data = read(out)
        data["models"][name] = entry
        new = out.with_suffix(".new")
        new.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        new.replace(out)
    finally:
        os.close(folder)


if __name__ == "__main__":
    main()
