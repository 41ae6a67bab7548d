"""Imported by every Python that a recipe's command starts: it installs sktune in ranks, and changes nothing else."""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path


def _run_hidden_one() -> None:
    """Run the sitecustomize that this one hides, as Python would have done."""
    here = str(Path(__file__).parent)
    others = [path for path in sys.path if path != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_hidden_one()
if "SKTUNE_PLAN" in os.environ or "SKTUNE_RUN" in os.environ:
    from sktune import launch

    launch.install()
