"""Runs any program with a plan's scopes on its decode step, without editing its source.

    SKTUNE_PLAN=best_plan.yaml python -m sktune.launch -- infer.py --yaml_file_path=decode.yaml
    SKTUNE_PLAN=best_plan.yaml python -m sktune.launch -- vllm serve MODEL

The Python processes that the program starts have the scopes, too.

If a script starts the program, set ``PYTHONPATH=$(python -m sktune.launch --site)`` in the script's environment
instead: it does the same to every Python process that the script starts.
"""

import importlib.abc
import importlib.machinery
import os
import runpy
import shutil
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

SITE = Path(__file__).parent / "runners" / "program" / "site"
"""Folder of the ``sitecustomize`` that calls ``install``."""


class _AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torch as usual, and takes over ``torch.compile`` once torch is imported."""

    def __init__(self) -> None:
        self._spec: ModuleSpec | None = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See ``MetaPathFinder``: only torch is handled."""
        if name != "torch":
            return None
        self._spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if self._spec is None or self._spec.loader is None:
            return None
        spec = ModuleSpec(name, self, origin=self._spec.origin, is_package=True)
        spec.submodule_search_locations = self._spec.submodule_search_locations
        spec.has_location = True
        spec.cached = self._spec.cached
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:  # noqa: ARG002
        """See ``Loader``."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """See ``Loader``."""
        assert self._spec is not None and self._spec.loader is not None
        module.__loader__, module.__spec__ = self._spec.loader, self._spec
        self._spec.loader.exec_module(module)
        _take_over()


def install() -> None:
    """Make this process report as a rank and mark its decode step as soon as it compiles one."""
    if "torch" in sys.modules:
        _take_over()
    elif not any(isinstance(finder, _AfterTorch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTorch())


def _take_over() -> None:
    from sktune.runners.program.rank import take_over

    take_over()


def main(arguments: Sequence[str]) -> Any:
    """Run ``-- script.py arguments...`` as Python would, ``-- -m module arguments...``, or an installed command."""
    # Every Python that a launch script starts imports this file: what takes long is imported where it is needed.
    from sktune.runners.program.rank_reports import PLAN_VARIABLE, RUN_VARIABLE

    if list(arguments) == ["--site"]:
        sys.stdout.write(f"{SITE}\n")
        return
    command = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    is_module = command[:1] == ["-m"]
    command = command[is_module:]
    if not command:
        sys.exit("error: no program to run; use: python -m sktune.launch -- script.py arguments")
    if PLAN_VARIABLE not in os.environ and RUN_VARIABLE not in os.environ:
        sys.exit(f"error: {PLAN_VARIABLE} is not set; set it to the path of a best_plan.yaml")
    if not is_module:
        command[0] = _script(command[0])
    install()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    sys.argv = command
    if is_module:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(command[0]).resolve().parent)
        runpy.run_path(command[0], run_name="__main__")


def _script(command: str) -> str:
    """Return the path of a Python script, which may be an installed command."""
    if Path(command).is_file():
        return command
    found = shutil.which(command)
    if found is None:
        sys.exit(f"error: there is no file {command!r}, and no such command on PATH")
    with Path(found).open("rb") as file:
        is_python = b"python" in file.readline(256)
    if not is_python:
        sys.exit(
            f"error: {found} is no Python script; start it with PYTHONPATH=$(python -m sktune.launch --site) instead"
        )
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
