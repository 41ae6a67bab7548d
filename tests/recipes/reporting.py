"""A program that writes the reports of a rank without running a model, so that it ends quickly."""

import sys
from pathlib import Path

import yaml

from sktune.core.space import SpaceSpec
from sktune.recipes.runner import ProgramRunner
from sktune.targets import RecipeSpec
from sktune.worker.jobs import RunnerSetup

REPORTING = """
import json, os, pathlib, subprocess, sys, time
run = pathlib.Path(os.environ["SKTUNE_RUN"])
task = json.loads((run / "task.json").read_text())
folder = pathlib.Path(__file__).parent
runs = len(list(folder.glob("ran-*")))
(folder / f"ran-{runs}").touch()
has_scopes = bool(task["scopes"])
fault, _, at = os.environ.get("FAULT", "").partition(":")
def differs(name, step):
    at_fault = name == fault and has_scopes or "unsteady " + name == fault and runs // 2 % 2
    return int(bool(at_fault) and step >= int(at))
events = [{"event": "start", "format": 1, "pid": os.getpid(), "host": 0}]
if task["inspects"]:
    call = {"function": "Model.forward", "signature": ""}
    modules = [[0, [["a", 1]], []], [1, [], []]]
    classes = [["Model", "Model", ""], ["Linear", "Linear", ""]]
    tree = {"classes": classes, "parameters": [], "modules": modules}
    events.append({"event": "tree", "function": "Model.forward", **tree})
    ran, times = [["", 0, 3, None, "", False], ["a", 1, 2, 0, "", False]], [[1.0, {"": 1.0, "a": 0.5}]]
    events.append({"event": "found", "call": call, "calls": 9, "parameters": 1, "ran": ran, "times": times})
else:
    steps = int(sys.argv[1]) - (int(at) if fault == "end" and has_scopes else 0)
    events.append({"event": "compiled", "seconds": 1.0})
    for step in range(min(steps, task["steps"])):
        digests = {} if fault == "returns nothing" else {"output": f"{differs('output', step)}/5"}
        events.append({"event": "outputs", "digests": digests, "kind": "Foo"})
        if step + 1 in (8, task["steps"]):
            digests = {} if fault == "keeps nothing" else {"model.cache": f"{differs('state', step)}/3"}
            events.append({"event": "state", "after": step + 1, "digests": digests})
        if step + 1 == 8 and task["watches_state"]:
            events.append({"event": "written", "is_written": fault != "writes nothing"})
    events.append({"event": "steps", "seconds": [1.0] * (steps - 1), "baselines": [False] * (steps - 1)})
    if not (fault == "silent" and has_scopes):
        print("tiny decode average inference time cost is 12.34 ms")
is_stuck = fault in ("die", "hang") and has_scopes
if is_stuck:
    events = [event for event in events if event["event"] in ("start", "compiled", "outputs")][:7]
if fault == "die" and has_scopes:
    ended = subprocess.Popen(["true"])
    ended.wait()
    events[0]["pid"] = ended.pid
if has_scopes and (fault == "refuse" or fault == "refuse once" and runs == int(at)):
    events.append({"event": "error", "stage": "run", "message": "this rank has no memory left"})
if has_scopes and fault == "full disk":
    events.append({"event": "error", "stage": "machine", "message": "OSError: [Errno 28] No space left on device"})
if has_scopes and fault == "full disk in the log":
    sys.exit("ld: final link failed: No space left on device")
with (run / "rank-0.jsonl").open("w") as report:
    report.writelines(json.dumps(event) + "\\n" for event in [*events, *([] if is_stuck else [{"event": "end"}])])
if is_stuck:
    time.sleep(600)
"""
"""Its first argument is the number of decode steps. FAULT names what is wrong with a plan, and from which step on; an
unsteady fault is in two of four runs, and one that refuses once in the run of that number. A program that dies or hangs
does so after decode step 5."""


def reporting(folder: Path, **keys: object) -> ProgramRunner:
    """Write the program and its recipe to ``folder`` and return its runner; ``keys`` are keys of the recipe."""
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(REPORTING)
    recipe = {
        "version": 1,
        "name": "reporting",
        "command": [sys.executable, "program.py", "8"],
        "other_inference": "(?!)",
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe | keys))
    return program_runner(path, folder)


def program_runner(recipe: Path, folder: Path) -> ProgramRunner:
    """Return the runner of a recipe, with study and caches in ``folder``."""
    spec = RecipeSpec.of_file(recipe, 0, lambda backend: "cpu")
    return ProgramRunner(RunnerSetup(spec, SpaceSpec(), folder / "study", folder / "cache"))
