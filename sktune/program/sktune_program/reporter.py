"""The report of a rank: lines of JSON in the run's folder, in the format whose version ``task`` has.

Rank 3 appends to ``rank-3.jsonl``, or on the second host of a program to ``rank-3-host-1.jsonl``: ``start`` with the
format and the program's versions; when inspecting ``inspects``, ``tree``, ``found``, ``called``; else ``compiled``,
``outputs`` of each compared step, ``state`` after ``VERIFIED_STEPS`` steps and after the last compared one,
``written``, ``steps`` (seconds, and which were the baseline's), ``error``; finally ``end``. They are read by
``sktune.recipes.rank_reports``.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
from typing import Any

import torch

from .errors import described
from .task import FORMAT, HOST_RANK_VARIABLE

RANK_VARIABLES = ("RANK", "RANK_ID", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK")


def installed_versions() -> dict[str, str]:
    """Return the versions on which the program's figures and bits depend, by name."""
    from importlib import metadata  # only in a search

    found = {"python": sys.version.split()[0], "torch": str(torch.__version__)}
    for package in ("torch_npu", "transformers"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


class Reporter:
    """Appends events to this rank's report; does nothing if ``folder`` is None."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._folder = folder
        self._file: Any = None

    @property
    def is_active(self) -> bool:
        """Whether a report is wanted: in a search, not in production."""
        return self._folder is not None

    def begin(self) -> None:
        """Open the report; ``end`` is written when the process exits, after exit handlers that are registered later."""
        if self._folder is None or self._file is not None:
            return
        host = int(os.environ.get(HOST_RANK_VARIABLE, "0"))
        # From torch.distributed or the launch script's environment; 0 for a single process.
        rank = next((int(os.environ[name]) for name in RANK_VARIABLES if os.environ.get(name, "").isdigit()), 0)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank = torch.distributed.get_rank()
        path = os.path.join(self._folder, f"rank-{rank}{f'-host-{host}' if host else ''}.jsonl")  # one for each host
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - until the process ends
        self.write("start", format=FORMAT, pid=os.getpid(), host=host, versions=installed_versions())
        atexit.register(self.write, "end")
        sys.excepthook = functools.partial(self._end_by_exception, sys.excepthook)

    def _end_by_exception(self, hook: Any, kind: type[BaseException], failure: BaseException, trace: Any) -> None:
        """Report what ends the process: launch scripts do not pass its exit code on, and ``end`` is written, too."""
        self.write("error", stage="run", message=f"it ended with {described(failure)}")
        hook(kind, failure, trace)

    def write(self, event: str, **values: Any) -> None:
        """Write one event."""
        if self._file is not None:
            self._file.write(json.dumps({"event": event, **values}) + "\n")
            self._file.flush()
