"""A program that runs on several hosts, and the hosts, which are all this one."""

import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import yaml

from sktune.core.errors import PeerLostError
from sktune.core.space import SpaceSpec
from sktune.recipes.peers import HostCommand, HostState, LocalPeer, Peer
from sktune.recipes.runner import ProgramRunner
from sktune.targets import RecipeSpec
from sktune.worker.jobs import RunnerSetup

PROGRAM = """
import json, os, pathlib, sys, time
run, host = pathlib.Path(os.environ["SKTUNE_RUN"]), int(os.environ["SKTUNE_HOST_RANK"])
first_rank, fault = int(sys.argv[1]), os.environ.get("FAULT", "")
task = json.loads((run / "task.json").read_text())
scopes = [scope["first"] for scope in task["scopes"]]
(pathlib.Path(__file__).parent / f"pid-{os.getpid()}").touch()
if fault == "fails" and host and scopes:
    sys.exit(3)
(run / f"met-{host}").touch()
while len(list(run.glob("met-*"))) < len(os.environ["SKTUNE_HOSTS"].split(",")):
    time.sleep(0.02)  # as a collective would
if scopes and (fault == "hangs" or fault == "hangs at first" and not pathlib.Path("go-on").exists()):
    time.sleep(600)
for rank in (first_rank, first_rank + 1):
    events = [{"event": "start", "format": 1, "pid": os.getpid(), "host": host}]
    if task["inspects"]:
        modules = [[0, [["a", 1], ["b", 2], ["c", 3]], []], *([1, [], []] for _ in "abc")]
        classes = [["Model", "Model", ""], ["Linear", "Linear", ""]]
        call = {"function": "Model.forward", "signature": ""}
        events.append(
            {"event": "tree", "function": "Model.forward", "classes": classes, "parameters": [], "modules": modules}
        )
        ran = [["", 0, 7, None, "", False]]
        ran += [[name, 2 * at + 1, 2 * at + 2, 0, "", False] for at, name in enumerate("abc")]
        times = [[1.0, {"a": 0.3, "b": 0.3, "c": 0.3}]]
        events.append({"event": "found", "call": call, "calls": 9, "parameters": 1, "ran": ran, "times": times})
    else:
        events.append({"event": "compiled", "seconds": 0.1})
        for step in range(min(24, task["steps"])):
            is_wrong = fault in ("bits", "hangs at first") and "b" in scopes and rank == 3 and step == 5
            events.append({"event": "outputs", "digests": {"output": f"{int(is_wrong)}/5"}, "kind": "Foo"})
            if step + 1 in (8, task["steps"]):
                events.append({"event": "state", "after": step + 1, "digests": {"model.cache": "0/3"}})
            if step + 1 == 8 and task["watches_state"]:
                events.append({"event": "written", "is_written": True})
        events.append({"event": "steps", "seconds": [0.01] * 23, "baselines": [False] * 23})
    name = f"rank-{rank}.jsonl" if not host else f"rank-{rank}-host-{host}.jsonl"
    with (run / name).open("w") as report:
        report.writelines(json.dumps(event) + "\\n" for event in [*events, {"event": "end"}])
if "LOGS" in os.environ:
    logs = pathlib.Path("res", pathlib.Path(sys.argv[2]).stem)
    logs.mkdir(parents=True, exist_ok=True)
    sys.stdout = (logs / "log_0.log").open("w")
for step in range(24):
    ms = 10 - 2 * len(scopes) + host * 0.5 + step % 3 * 0.01
    print(f"[Main] Inference time (decode): {ms:.2f} ms")
"""
"""Two ranks on each host; its arguments are the first one's number and the YAML. With LOGS its log is a file
named after the YAML. Each scope saves 2 ms, and the second host is slower.

FAULT: with a plan it ``fails`` on the second host, ``hangs``, or ``hangs at first`` until there is a file.
With ``bits`` and ``hangs at first``, rank 3 has other bits where unit ``b`` is in a scope."""


class OtherHost(LocalPeer):
    """Stands in for another host, which may be lost or see other files."""

    is_lost = False
    is_apart = False

    def poll(self, pids: Collection[int], /) -> HostState:
        """See ``Peer.poll``."""
        if self.is_lost:
            raise PeerLostError(f"host {self.name} does not answer")
        return super().poll(pids)

    def reads(self, path: Path, text: str, /) -> bool:
        """See ``Peer.reads``."""
        return not self.is_apart and super().reads(path, text)

    def start(self, command: HostCommand, /) -> None:
        """See ``Peer.start``."""
        self.command = command
        super().start(command)


def write_program(folder: Path, **keys: object) -> Path:
    """Write the program, its YAML and its recipe to ``folder``, and return the recipe's path."""
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(PROGRAM)
    (folder / "decode.yaml").write_text("exe_mode: ge_graph\n")
    recipe = {
        "version": 1, "name": "two-hosts", "hosts": 2, "ranks": 2, "yaml": {"file": "decode.yaml"},
        "command": [sys.executable, "program.py", "{rank_offset}", "{yaml_name}"], "other_inference": "(?!)",
    }  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe | keys))
    return path


def runner_on(hosts: Sequence[Peer], folder: Path, **keys: object) -> ProgramRunner:
    """Return a runner of the program on hosts."""
    spec = RecipeSpec.of_file(write_program(folder, **keys), 0, lambda backend: "npu")
    return ProgramRunner(RunnerSetup(spec, SpaceSpec(), folder / "study", folder / "cache", host="a-b", hosts=hosts))
