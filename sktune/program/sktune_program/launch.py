"""Runs any program with a plan's scopes on its decode step, without editing its source; see ``sktune.launch``.

Every Python that a launch script starts imports this file: what takes long is imported where it is needed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from .bytecode import without_bytecode

RUN_VARIABLE = "SKTUNE_RUN"
"""Environment variable: the run's folder, which also identifies the processes of the run. It comes before a plan."""
PLAN_VARIABLE = "SKTUNE_PLAN"
"""Environment variable: the plan file."""
SITE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder that goes on ``PYTHONPATH``."""


class _AfterTorch:
    """A finder and loader: finds torch as usual, and takes over ``torch.compile`` once torch is imported."""

    def __init__(self) -> None:
        self._spec: ModuleSpec | None = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See ``importlib.abc.MetaPathFinder``: only torch is handled."""
        if name != "torch":
            return None
        self._spec = PathFinder.find_spec(name, path, target)
        if self._spec is None or self._spec.loader is None:
            return None
        spec = ModuleSpec(name, self, origin=self._spec.origin, is_package=True)  # type: ignore[arg-type]
        spec.submodule_search_locations = self._spec.submodule_search_locations
        spec.has_location = True
        spec.cached = self._spec.cached
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """See ``importlib.abc.Loader``."""

    def exec_module(self, module: ModuleType) -> None:
        """See ``importlib.abc.Loader``."""
        assert self._spec is not None and self._spec.loader is not None
        module.__loader__, module.__spec__ = self._spec.loader, self._spec
        self._spec.loader.exec_module(module)
        _take_over()


def install() -> None:
    """Make this process report as a rank and mark its decode step as soon as it compiles one."""
    if plan := os.environ.get(PLAN_VARIABLE):
        os.environ[PLAN_VARIABLE] = os.path.abspath(plan)  # it is read later, and by other processes, in other folders
    if "torch" in sys.modules:
        _take_over()
    elif not any(isinstance(finder, _AfterTorch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTorch())


def _take_over() -> None:
    with without_bytecode():
        from . import errors, rank
    try:
        rank.take_over(os.environ.get(RUN_VARIABLE) or None, os.environ.get(PLAN_VARIABLE))
    except errors.SktuneError as failure:
        _refuse(failure)


def _refuse(failure: BaseException) -> None:
    """End the program with one line, as it would run without its plan."""
    sys.stderr.write(f"error: {failure}\n")
    sys.stderr.flush()
    raise SystemExit(2)


def main(arguments: Sequence[str]) -> None:
    """Run ``-- script.py arguments...`` as Python would, ``-- -m module arguments...``, or an installed command."""
    import runpy

    if list(arguments) == ["--site"]:
        sys.stdout.write(f"{SITE}\n")
        return
    command = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    is_module = command[:1] == ["-m"]
    command = command[is_module:]
    if not command:
        sys.exit("error: no program to run; use: python -m sktune.launch -- script.py arguments")
    if not os.environ.get(PLAN_VARIABLE) and not os.environ.get(RUN_VARIABLE):
        sys.exit(f"error: {PLAN_VARIABLE} is not set; set it to the path of a best_plan.yaml")
    if not is_module:
        command[0] = _script(command[0])
    with without_bytecode():
        from . import errors, plan_file, task
    try:  # before the program loads its model
        if os.environ.get(RUN_VARIABLE):
            task.RankTask.read(os.environ[RUN_VARIABLE])
        else:
            plan_file.read_plan_file(os.environ[PLAN_VARIABLE])
    except errors.SktuneError as failure:
        _refuse(failure)
    install()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SITE, os.environ.get("PYTHONPATH")]))
    sys.argv = command
    if is_module:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(command[0]))
        runpy.run_path(command[0], run_name="__main__")


def _script(command: str) -> str:
    """Return the path of a Python script, which may be an installed command."""
    import shutil

    if os.path.isfile(command):
        return command
    found = shutil.which(command)
    if found is None:
        sys.exit(f"error: there is no file {command!r}, and no such command on PATH")
    with open(found, "rb") as file:
        is_python = b"python" in file.readline(256)
    if not is_python:
        sys.exit(
            f"error: {found} is no Python script; start it with PYTHONPATH=$(python -m sktune.launch --site) instead"
        )
    return found
