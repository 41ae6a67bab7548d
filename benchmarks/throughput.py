"""Trials per hour, compared with the manual procedure: two fresh processes per candidate, then a comparison.

    python benchmarks/throughput.py [--model deepseek-v3] [--trials 40] [--by-hand 6]

The manual procedure is the scope guide's (run the baseline, run the candidate, compare): each process loads the model,
prefills, compiles its plan with unmodified Inductor, records 8 decode steps for two seeds and times 100. It gets plans
spread evenly over the search's trials, and a separate cache that is shared by its processes. sktune's additions to
Inductor (faster builds of C++ wrappers, regions compiled on all cores) are not used.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from unittest.mock import patch

import sktune
from sktune.backends.this_machine import device_name
from sktune.core.codec import decoded, encoded
from sktune.core.plan import Plan
from sktune.tuning.request import Request

TIMED_STEPS = 100


def main() -> None:
    """Run both, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deepseek-v3")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--by-hand", type=int, default=6)
    parser.add_argument("--child", nargs=2, metavar=("PLAN", "OUT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_once(arguments.model, decoded(Plan, json.loads(arguments.child[0])), Path(arguments.child[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        result = sktune.search(arguments.model, trials=arguments.trials, runs=Path(folder) / "runs")
        search_s = time.perf_counter() - began
        chosen = result.trials[:: max(1, len(result.trials) // arguments.by_hand)][: arguments.by_hand]
        by_hand = [hand_trial(arguments.model, record.plan, Path(folder)) for record in chosen]
    ours, theirs = search_s / len(result.trials), sum(by_hand) / len(by_hand)
    print(f"{result.facts.description}; {device_name('cpu')}\n")
    print("| | trials | s per trial | trials per hour |\n| --- | ---: | ---: | ---: |")
    print(f"| sktune search, from start to report | {len(result.trials)} | {ours:.2f} | {3600 / ours:.0f} |")
    print(f"| by hand, two fresh processes each | {len(by_hand)} | {theirs:.2f} | {3600 / theirs:.0f} |")
    print(f"\nratio {theirs / ours:.2f}; by hand: {', '.join(f'{seconds:.1f}' for seconds in by_hand)} s")


def hand_trial(model: str, plan: Plan, folder: Path) -> float:
    """Run baseline and candidate in fresh processes, compare their output, and return the seconds."""
    began = time.perf_counter()
    outputs = []
    for name, each in (("baseline", Plan()), ("candidate", plan)):
        out = folder / f"{name}.pt"
        command = [
            sys.executable,
            __file__,
            "--model",
            model,
            "--child",
            json.dumps(encoded(each)),
            str(out),
        ]
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "hand-cache"),
            "HF_HUB_OFFLINE": "1",
        }
        subprocess.run(command, check=True, env=environment, capture_output=True)
        outputs.append(out.read_bytes())
    identical = outputs[0].partition(b"\n")[0] == outputs[1].partition(b"\n")[0]
    print(
        f"by hand: {'identical' if identical else 'differs'}, {time.perf_counter() - began:.1f} s",
        file=sys.stderr,
    )
    return time.perf_counter() - began


def run_once(model: str, plan: Plan, out: Path) -> None:
    """Load, compile, record and time one plan, like one run of ``infer.sh``."""
    import hashlib

    import torch

    from sktune.backends.inductor import backend as inductor
    from sktune.program.sktune_program.inductor import cpp_wrapper
    from sktune.targets.base import decode_inputs
    from sktune.targets.loading import load
    from sktune.targets.tracing import trace_layout
    from sktune.worker.replays import prepare, record

    torch.set_grad_enabled(False)
    spec, preset = Request(model).target()
    assert preset is not None
    target = load(spec)
    layout = trace_layout(target, preset.space)
    backend = inductor.InductorBackend(target, layout, decode_inputs(target, 0, 1)[0])
    with (
        patch.object(cpp_wrapper, "SETTINGS", {}),
        patch.object(cpp_wrapper, "quick_wrapper", lambda device: nullcontext()),
        patch.object(inductor, "compile_ahead", lambda tasks, at: None),
    ):
        step = backend.compile(plan).step
    replays = prepare(target)
    recordings = record(step, replays)
    digest = hashlib.sha256()
    for recording in recordings:
        for tensors in (*recording.outputs, recording.state):
            for tensor in tensors.values():
                digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    times = []
    for _ in range(TIMED_STEPS):
        replays[0].start.restore()
        step.prepare()
        start = time.perf_counter()
        step.run(*replays[0].inputs[0])
        times.append(time.perf_counter() - start)
    out.write_text(
        digest.hexdigest() + "\n" + json.dumps({"ms": sorted(times)[TIMED_STEPS // 2] * 1e3, **asdict(plan)})
    )


if __name__ == "__main__":
    main()
