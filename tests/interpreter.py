"""What ``python3`` does with its arguments, in a process that has been forked: for programs that sktune starts."""

import importlib.machinery
import importlib.util
import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run ``-m module``, ``-c code`` or a script, after the site of the environment's ``PYTHONPATH``."""
    kind, arguments = sys.argv[2], sys.argv[2:]
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if (spec := importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)) and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    if kind == "-c":
        sys.path.insert(0, "")
        sys.argv[:] = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    elif kind == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv[:] = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(kind).resolve().parent))
        sys.argv[:] = arguments
        runpy.run_path(kind, run_name="__main__")
