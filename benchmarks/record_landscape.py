"""Records a landscape: every plan of a small space, compiled, verified and measured, interleaved with the baseline.

    python benchmarks/record_landscape.py --model deepseek-v3 --dtype bfloat16 [--limit-seconds 3600]

The space is benchmarks/landscapes/MODEL-DTYPE.yaml. Plans are judged in random order, and each judgement is immediately
appended to runs/landscapes/MODEL-DTYPE as a JSON line; run the same command again to continue. When every plan is
judged, the fastest are judged again, so that the best one is not just the luckiest one, and so are those that timed
out, crashed, or have a wide interval, as a machine under load can do that to any plan. Then MODEL-DTYPE.json.gz is
written, even if the limit ends these repeats; the number of plans that only have a wide interval is printed. Nothing
else should run on the machine.
"""

import argparse
import gzip
import json
import random
import statistics
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script can only import modules beside it

from benchmarks.landscapes.recorded import ENDING, FOLDER, FORMAT_VERSION, bound, plan_of, request_of, to_entry  # noqa: E402
from sktune.backends.fingerprint import fingerprint  # noqa: E402
from sktune.core.codec import encoded  # noqa: E402
from sktune.core.errors import BadInputError, SktuneError  # noqa: E402
from sktune.core.plan import Plan  # noqa: E402
from sktune.core.space import SearchSpace  # noqa: E402
from sktune.study.claims import locked  # noqa: E402
from sktune.targets.presets import load_space  # noqa: E402
from sktune.worker.jobs import Judge, Opened, RunnerSetup  # noqa: E402
from sktune.worker.runner import WorkerRunner  # noqa: E402

COMPILE_TIMEOUT_S = 1800.0
"""Long enough that a busy machine does not fail a plan."""
REPEATED_SHARE = 0.1
"""Share of the complete plans, the fastest ones, that is judged again."""
REPEATS = 3
UNSETTLED = ("timeout", "crashed")
"""Reasons that may be the machine's fault; they only stand if every further judgement agrees."""
WIDEST = 0.03
"""Largest halfwidth of a 95% interval, relative to the ratio, that settles a plan."""

Entry = dict[str, Any]


def main() -> None:
    """Record a landscape, or continue recording it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, choices=("deepseek-v3", "qwen3-moe", "llama"))
    parser.add_argument("--dtype", required=True, choices=("bfloat16", "float32"))
    parser.add_argument("--shape", metavar="BATCHxCONTEXT", help="other than the preset's")
    parser.add_argument("--limit-seconds", type=float, metavar="S", help="stop after S seconds; run again to continue")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    try:
        shape = f"-{arguments.shape}" if arguments.shape else ""
        record(f"{arguments.model}-{arguments.dtype}{shape}", arguments.limit_seconds, console)
    except SktuneError as failure:
        console.print(f"error: {failure}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(failure.exit_code)


def record(name: str, limit_s: float | None, console: Console) -> None:
    """Judge the missing plans, and write the landscape once all are judged.

    Raises:
        BadInputError: there is no such space, or earlier judgements are from another machine or version.
    """
    began = time.monotonic()
    request = request_of(name)
    if request.space is None or not request.space.exists():
        raise BadInputError(f"there is no space {request.space}; write it first")
    folder = ROOT / "runs" / "landscapes" / name
    spec, _ = request.target()
    wanted = load_space(request.space)
    setup = RunnerSetup(spec, wanted, folder, ROOT / "runs" / "cache", COMPILE_TIMEOUT_S)
    with locked(folder), WorkerRunner(setup) as runner:
        made_with = fingerprint(spec, wanted)
        working = WorkingFile(folder / "plans.jsonl", made_with)
        opened = runner.open()
        recorder = _Recorder(runner, bound(name, opened.layout), working, console)
        if not recorder.run(None if limit_s is None else began + limit_s):
            console.print(f"{len(working.entries)} judgements are in {working.path}; run again to continue")
            return
    target = FOLDER / f"{name}{ENDING}"
    write(target, opened, made_with, working.entries)
    wide = sum(not any(map(_is_settled, each)) for each in _by_plan(working.entries).values())
    console.print(f"{target.name}: {target.stat().st_size / 1e6:.2f} MB; unsettled: {wide} plans")


class WorkingFile:
    """The judgements so far: a line with the fingerprint, then a line for each judgement.

    Raises:
        BadInputError: the file was made with another fingerprint.
    """

    def __init__(self, path: Path, made_with: Mapping[str, str]) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]  # the last one may have been cut short by a kill
        if not whole:
            whole = [json.dumps(dict(made_with)) + "\n"]
        stored = json.loads(whole[0])
        for key in sorted({*stored, *made_with}):
            if stored.get(key) != made_with.get(key):
                raise BadInputError(
                    f"{path} was made with {key} {stored.get(key)!r}, now it is {made_with.get(key)!r}; "
                    "continue as it was made, or move the file away"
                )
        if whole != lines:
            path.write_text("".join(whole), encoding="utf-8")
        self.entries: list[Entry] = [json.loads(line) for line in whole[1:]]

    def append(self, entry: Entry) -> None:
        """Append a judgement."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        self.entries.append(entry)


class _Recorder:
    def __init__(self, runner: WorkerRunner, space: SearchSpace, working: WorkingFile, console: Console) -> None:
        self._runner, self._space, self._working, self._console = runner, space, working, console
        self._units = [unit.name for unit in space.layout.units]
        self._position = {name: index for index, name in enumerate(self._units)}
        self._spent_s: list[float] = []

    def run(self, deadline: float | None) -> bool:
        """Judge missing plans until the ``deadline``; return whether every plan is judged."""
        plans = plans_of(self._space)
        judged = {plan_of(entry, self._units) for entry in self._working.entries}
        if not self._judge([plan for plan in plans if plan not in judged], deadline, "judged once"):
            return False
        missing = [plan_of(scopes, self._units) for scopes in to_repeat(self._working.entries)]
        self._judge(missing, deadline, "judged again")
        return True

    def _judge(self, plans: list[Plan], deadline: float | None, what: str) -> bool:
        for number, plan in enumerate(plans):
            if deadline is not None and time.monotonic() > deadline:
                return False
            began = time.perf_counter()
            outcome = self._runner.run(Judge(plan, "trial.log"), lambda stage: None)
            self._spent_s.append(time.perf_counter() - began)
            seconds = {stage: round(value, 3) for stage, value in outcome.seconds.items()}
            self._working.append({**to_entry(plan, outcome, self._position), "seconds": seconds})
            if number % 20 == 0 or number == len(plans) - 1:
                left_s = (len(plans) - 1 - number) * statistics.fmean(self._spent_s[-200:])
                self._console.print(
                    f"{what}: {number + 1} of {len(plans)}, {left_s / 60:.0f} min left", highlight=False
                )
        return True


def plans_of(space: SearchSpace) -> list[Plan]:
    """Return every plan of a small space but the empty one, in a random order that is the same each time."""
    values = (dict(zip(space.choices, point, strict=True)) for point in product(*space.choices.values()))
    plans = list(dict.fromkeys(plan for plan in map(space.plan, values) if not plan.is_baseline))
    random.Random(0).shuffle(plans)
    return plans


def to_repeat(entries: list[Entry]) -> list[Entry]:
    """Return the plans still to be judged again, each as often as needed, in rounds: the fastest, then the others."""
    by_plan = _by_plan(entries)
    complete = [each for each in by_plan.values() if each[0]["reason"] is None]
    complete.sort(key=lambda each: each[0]["ratio"], reverse=True)
    fastest = complete[: max(1, round(REPEATED_SHARE * len(complete)))]
    others = [each for each in by_plan.values() if each not in fastest and not any(map(_is_settled, each))]
    rounds = range(1, REPEATS + 1)
    return [each[0] for chosen in (fastest, others) for repeat in rounds for each in chosen if len(each) <= repeat]


def write(target: Path, opened: Opened, made_with: Mapping[str, str], entries: list[Entry]) -> None:
    """Write the landscape; for a plan that was judged again, the median of those judgements counts."""
    plans = [_settled(each) for each in _by_plan(entries).values()]
    record = {
        "version": FORMAT_VERSION,
        "recorded": f"{datetime.now(UTC):%Y-%m-%d}",
        "description": opened.description,
        "made_with": dict(made_with),
        "layout": encoded(opened.layout),
        "baseline_ms": baseline_ms(entries),
        "plans": plans,
    }
    # Without a time stamp, the same record gives the same bytes.
    data = json.dumps(record, separators=(",", ":")).encode()
    target.write_bytes(gzip.compress(data, mtime=0))


def baseline_ms(entries: list[Entry]) -> float:
    """Return the baseline's latency, the median over all judgements."""
    measured: list[float] = [entry["baseline_ms"] for entry in entries if entry["baseline_ms"]]
    return round(statistics.median(measured), 4)


def _is_settled(entry: Entry) -> bool:
    if entry["ratio"] is None:
        return entry["reason"] not in UNSETTLED
    low, high = entry["ci95"]
    return bool((high - low) / 2 <= WIDEST * entry["ratio"])


def _settled(judgements: list[Entry]) -> Entry:
    """Return the judgement that counts for one plan."""
    certain = list(filter(_is_settled, judgements)) or judgements[-1:]
    wrong = [entry for entry in certain if entry["ratio"] is None]  # once is enough
    # The first judgement selected the plan to be judged again, so it is biased.
    chosen = wrong or sorted(certain[1:] or certain, key=lambda entry: entry["ratio"])
    middle = chosen[len(chosen) // 2]
    return {key: value for key, value in middle.items() if key not in ("seconds", "baseline_ms")}


def _by_plan(entries: list[Entry]) -> dict[str, list[Entry]]:
    by_plan: dict[str, list[Entry]] = {}
    for entry in entries:
        by_plan.setdefault(json.dumps([entry["scopes"], entry["options"]], sort_keys=True), []).append(entry)
    return by_plan


if __name__ == "__main__":
    main()
