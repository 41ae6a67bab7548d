"""The main road: which modules a trial passes, and which ones a search imports."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import optuna
import pytest

import sktune

ROOT = Path(__file__).parents[1]
MAX_MODULES, MAX_WORKER_MODULES = 110, 75
"""Modules of sktune that a search with one worker imports before it writes reports, and its worker; without ``sim``."""
MAX_THERE, MAX_BACK = 9, 6
"""Modules of sktune from the search to the compiler, and on the stack of the call that stores an outcome."""
TRACED = """
import json, sys
from pathlib import Path
from types import FrameType
from own_model import target as own_target
from sktune.program.sktune_program.inductor import compiled_regions

{passed}
def compile_fx(*arguments, **options):
    Path({path!r}).write_text(json.dumps(passed(sys._getframe())))
    return compiled(*arguments, **options)

compiled, compiled_regions.compile_fx = compiled_regions.compile_fx, compile_fx

def target():
    return own_target()
"""


def passed(frame: FrameType | None) -> list[str]:
    """Return the modules of sktune on a stack, the outermost first."""
    names: list[str] = []
    while frame is not None:
        name = str(frame.f_globals["__name__"])
        if name == "__main__" and (spec := frame.f_globals["__spec__"]):
            name = spec.name
        names.append(name)
        frame = frame.f_back
    return [name for name in dict.fromkeys(reversed(names)) if name.partition(".")[0] == "sktune"]


@pytest.mark.slow
def test_a_trial_passes_the_modules_of_the_picture(
    tmp_path: Path, compile_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, to the compiler behind one pipe, and back to the study; docs/extending.md draws it."""
    stacks: dict[str, list[str]] = {}
    write, tell = os.write, optuna.Study.tell

    def traced_write(descriptor: int, data: bytes) -> int:
        if b'"Judge"' in data:
            stacks["pipe"] = passed(sys._getframe())
        return write(descriptor, data)

    def traced_tell(self: optuna.Study, *arguments: Any, **options: Any) -> Any:
        stacks["tell"] = passed(sys._getframe())
        return tell(self, *arguments, **options)

    monkeypatch.setattr(os, "write", traced_write)
    monkeypatch.setattr(optuna.Study, "tell", traced_tell)
    model, compiled = tmp_path / "traced.py", tmp_path / "compiled.json"
    shutil.copy(ROOT / "examples/own_model.py", tmp_path)
    model.write_text(TRACED.format(passed=inspect.getsource(passed), path=str(compiled)))
    sktune.search(f"{model}:target", trials=2, study="s", runs=tmp_path / "runs")

    stacks["compile"] = json.loads(compiled.read_text())
    there, back = list(dict.fromkeys(stacks["pipe"] + stacks["compile"])), stacks["tell"]
    assert len(there) <= MAX_THERE, there
    assert len(back) <= MAX_BACK, back
    picture = re.search(
        r"## The way of a trial.*?```text\n(.*?)```", (ROOT / "docs/extending.md").read_text(), re.DOTALL
    )
    assert picture
    drawn = set(re.findall(r"\b(?:tuning|worker|backends|program|study)(?:\.\w+)+", picture[1]))
    assert drawn == {name.removeprefix("sktune.") for name in (*there, *back)}


COUNTED = """
import json, sys
from pathlib import Path
import sktune
from sktune.worker import runner

found = []

class Reports:
    def find_spec(self, name, path=None, target=None):
        if name in ("sktune.reports.dashboard", "sktune.reports.outputs") and not found:
            found.extend(set(sys.modules) - {name})

sys.meta_path.insert(0, Reports())
runner.SERVER = "counted_server"
folder = Path(sys.argv[1])
sktune.search("llama", trials=2, backend="sim", study="s", runs=folder / "runs")
print(json.dumps([found, json.loads((folder / "worker.json").read_text())]))
"""
COUNTED_SERVER = """
import json, sys
from pathlib import Path
from sktune.worker import server

answer = server.Session.answer

def counted(self, **message):
    Path({path!r}).write_text(json.dumps(list(sys.modules)))
    answer(self, **message)

server.Session.answer = counted
server.main()
"""


@pytest.mark.slow
def test_a_search_imports_what_it_uses(tmp_path: Path) -> None:
    """In its own process until it writes reports, and in its worker's."""
    (tmp_path / "counted_server.py").write_text(COUNTED_SERVER.format(path=str(tmp_path / "worker.json")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for imported, most in zip(json.loads(done.stdout), (MAX_MODULES, MAX_WORKER_MODULES), strict=True):
        road = {name for name in imported if re.match(r"sktune(?!\.sim\b)(\.|$)", name)}
        assert len(road) <= most, sorted(road)
