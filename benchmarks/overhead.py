"""How a search spends its time: compile, verify, measure, observe, and everything else.

    python benchmarks/overhead.py [--model deepseek-v3] [--trials 40]

Runs a search in a fresh folder, reads the times from its study, and compiles some of its plans again, in a new worker
and then in the same one. Prints tables, the search's result, and the machine's description.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import sktune
from sktune.backends.this_machine import device_name
from sktune.reports.study import final_table, verdict_line
from sktune.study.result import SearchResult
from sktune.tuning.request import Request
from sktune.worker.jobs import Judge, RunnerSetup
from sktune.worker.runner import WorkerRunner

STAGES = ("compile", "verify", "measure", "observe")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deepseek-v3")
    parser.add_argument("--trials", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        marks: dict[str, float] = {}
        start: dict[str, float] = {}

        def listen(event: dict[str, Any]) -> None:
            marks.setdefault(str(event["event"]), time.perf_counter())
            if event["event"] == "target_ready":
                start.update(event["seconds"])

        began = time.perf_counter()
        result = sktune.search(arguments.model, trials=arguments.trials, runs=Path(folder), listener=listen)
        ended = time.perf_counter()
        print(f"{result.facts.description}; {device_name('cpu')}\n")
        opened = marks["target_ready"] - began - start["baseline"]
        print_table(result, start["baseline"], opened, ended - marks["final_started"], ended - began)
        print_answer(result)
        print_recompile(result, Request(arguments.model, trials=arguments.trials), Path(folder))


def print_table(result: SearchResult, baseline: float, opened: float, final: float, whole: float) -> None:
    """Print how the time was spent; ``opened`` is the time until the model was ready, with storage and process."""
    outcomes = [record.outcome for record in result.trials if record.outcome]
    spent = {stage: sum(outcome.seconds.get(stage, 0.0) for outcome in outcomes) for stage in STAGES}
    floor = sum(look.seconds for look in result.facts.floor_looks)
    outside = whole - baseline - final - floor - sum(spent.values())
    rows = [
        ("baseline: import the compiler, capture, compile, verify", baseline),
        *((f"trials: {stage}", spent[stage]) for stage in STAGES),
        ("noise floor: the baseline compiled again, measure", floor),
        ("final comparison: compile, verify, measure, report", final),
        ("outside of these", outside),
        ("- of which the start: storage, process, imports, model, prefill, trace", opened),
        ("- of which proposals, storage, messages, files", outside - opened),
        ("search", whole),
    ]
    print("| | s | share |\n| --- | ---: | ---: |")
    for name, seconds in rows:
        print(f"| {name} | {seconds:.2f} | {seconds / whole:.2%} |")


def print_answer(result: SearchResult) -> None:
    """Print the final comparison."""
    print(f"\n{verdict_line(result)}\n\n| | ms per step | speedup | 95% interval | bits |")
    print("| --- | ---: | ---: | --- | --- |")
    for row in final_table(result).rows:
        print(f"| {' | '.join(map(str, row))} |")


def print_recompile(result: SearchResult, request: Request, folder: Path) -> None:
    """Compile complete plans again, in a new process with the same cache, and print the ratios."""
    spec, preset = request.target()
    assert preset is not None
    chosen = [record for record in result.trials if record.outcome and record.outcome.is_complete][:6]
    print(
        "\n| plan | first compile s | in a new process s | again in the same process s |\n| --- | ---: | ---: | ---: |"
    )
    cache = (folder / "cache").resolve()
    with WorkerRunner(RunnerSetup(spec, preset.space, folder / "again", cache)) as runner:
        for record in chosen:
            assert record.outcome is not None
            first = record.outcome.seconds["compile"]
            again = [
                runner.run(Judge(record.plan, "again.log"), lambda stage: None).seconds["compile"] for _ in range(2)
            ]
            reused = "" if record.outcome.reused < record.outcome.regions else " (all regions known)"
            print(f"| trial {record.number}{reused} | {first:.2f} | {again[0]:.2f} | {again[1]:.2f} |")


if __name__ == "__main__":
    main()
