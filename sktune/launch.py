"""Starts a program of someone else's with a plan's scopes on its decode step: no edit of its source.

    SKTUNE_PLAN=best_plan.yaml python -m sktune.launch -- infer.py --yaml_file_path=decode.yaml

Where the program is started by a script, ``PYTHONPATH=$(python -m sktune.launch --site)`` in its environment does the
same to every Python that the script starts.
"""

import importlib.abc
import importlib.machinery
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from sktune.runners.program.rank_reports import PLAN_VARIABLE, RUN_VARIABLE

SITE = Path(__file__).parent / "runners" / "program" / "site"
"""Folder of the ``sitecustomize`` that calls ``install``."""


class _AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torch as usual, and takes ``torch.compile`` over once torch is imported."""

    def __init__(self) -> None:
        self._found: ModuleSpec | None = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See ``MetaPathFinder``: nothing but torch is looked at."""
        if name != "torch":
            return None
        self._found = importlib.machinery.PathFinder.find_spec(name, path, target)
        if self._found is None or self._found.loader is None:
            return None
        spec = ModuleSpec(name, self, origin=self._found.origin, is_package=True)
        spec.submodule_search_locations = self._found.submodule_search_locations
        spec.has_location = True
        spec.cached = self._found.cached
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:  # noqa: ARG002
        """See ``Loader``."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """See ``Loader``."""
        assert self._found is not None and self._found.loader is not None
        module.__loader__, module.__spec__ = self._found.loader, self._found
        self._found.loader.exec_module(module)
        _take_over()


def install() -> None:
    """Have this process report as a rank, and mark its decode step, as soon as it compiles one."""
    if "torch" in sys.modules:
        _take_over()
    elif not any(isinstance(finder, _AfterTorch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTorch())


def _take_over() -> None:
    from sktune.runners.program.rank import take_over

    take_over()


def main(arguments: Sequence[str]) -> Any:
    """Run ``-- script.py arguments...`` (or ``-- -m module arguments...``) as Python would."""
    if list(arguments) == ["--site"]:
        sys.stdout.write(f"{SITE}\n")
        return
    words = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    is_module = words[:1] == ["-m"]
    words = words[is_module:]
    if not words:
        sys.exit("error: say what to start: python -m sktune.launch -- script.py arguments")
    if PLAN_VARIABLE not in os.environ and RUN_VARIABLE not in os.environ:
        sys.exit(f"error: {PLAN_VARIABLE} names no plan; set it to a best_plan.yaml")
    if not is_module and not Path(words[0]).is_file():
        sys.exit(f"error: there is no file {words[0]!r}")
    install()
    sys.argv = words
    if is_module:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
