"""Two ranks that write reports as sktune does in a real program's ranks, but run no model, so that a run is short.

``CAMPAIGN_FAULT`` is what goes wrong in rank 1 of a run with a plan: ``outputs``, ``state``, ``segfault``, ``hang``,
``child stays``.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUN, RANK = Path(os.environ["SKTUNE_RUN"]), int(os.environ.get("RANK", "0"))
STEPS = 16


def main() -> None:
    """Start the other rank from rank 0, as a launch script does, and report."""
    other = None
    if RANK == 0:
        other = subprocess.Popen([sys.executable, "-S", __file__], env={**os.environ, "RANK": "1"})
    task = json.loads((RUN / "task.json").read_text())
    scopes = len(task["scopes"])
    fault = os.environ.get("CAMPAIGN_FAULT", "") if scopes and RANK == 1 else ""
    with (RUN / f"rank-{RANK}.jsonl").open("w") as report:

        def write(event: str, **values: object) -> None:
            report.write(json.dumps({"event": event, **values}) + "\n")
            report.flush()

        write("start", format=1, pid=os.getpid(), host=0)
        if task["inspects"]:
            inspect(write)
        else:
            run(task, scopes, fault, write)
        if other and other.wait():
            sys.exit(f"rank 1 ended with {other.returncode}")
        write("end")


def inspect(write: Callable[..., None]) -> None:
    """Report a step of two layers of two modules each."""
    layer = [2, [["mix", 4], ["out", 5]], [["weight", 0]]]
    modules = [[0, [["layers", 1]], []], [1, [["0", 2], ["1", 3]], []], layer,
               [2, [["mix", 6], ["out", 7]], [["weight", 1]]], *([3, [], []] for _ in range(4))]  # fmt: skip
    classes = [["Model", "Model", ""], ["ModuleList", "ModuleList", "list"], ["Layer", "Layer", ""],
               ["Linear", "Linear", ""]]  # fmt: skip
    parameters = [[[8], "torch.float32"]] * 2
    write("tree", function="Model.forward", classes=classes, parameters=parameters, modules=modules)
    ran = [["", 0, 13, None, "", False]]
    for index in range(2):
        begin, path = 1 + 6 * index, f"layers.{index}"
        ran.append([path, begin, begin + 5, 0, "", False])
        caller = len(ran) - 1
        ran += [[f"{path}.mix", begin + 1, begin + 2, caller, "", False],
                [f"{path}.out", begin + 3, begin + 4, caller, "", False]]  # fmt: skip
    call = {"function": "Model.forward", "signature": ""}
    write("found", call=call, calls=9, parameters=16, ran=ran, times=[[1.0, {}]])


def run(task: dict[str, Any], scopes: int, fault: str, write: Callable[..., None]) -> None:
    """Report the steps of a run; more scopes are faster, up to a point."""
    write("compiled", seconds=0.1)
    for step in range(min(STEPS, task["steps"])):
        time.sleep(0.01)
        if step == 5:
            strike(fault)
        write("outputs", digests={"output": f"{int(fault == 'outputs' and step >= 5)}/5"}, kind="Tensor")
        if step + 1 in (8, task["steps"]):
            write("state", after=step + 1, digests={"model.cache": f"{int(fault == 'state')}/3"})
        if step + 1 == 8 and task["watches_state"]:
            write("written", is_written=True)
    write("steps", seconds=[1.0] * (STEPS - 1), baselines=[False] * (STEPS - 1))
    cost_ms = 10.0 - (1.5 * scopes - 0.3 * scopes * scopes)
    for step in range(STEPS):
        print(f"[Main] Inference time (decode): {cost_ms + 0.01 * (step % 3):.3f} ms", flush=True)


def strike(fault: str) -> None:
    """Do to this rank what ``fault`` says."""
    if fault == "segfault":
        ctypes.string_at(0)
    if fault == "hang":
        time.sleep(600)
    if fault == "child stays":
        sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
        subprocess.Popen(sleep, start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            signal.pause()


main()
