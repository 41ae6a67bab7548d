"""Imported by every Python of a program: it installs sktune where a plan or a run is set, and changes nothing else.

Every Python that a launch script starts pays for this file, so it imports nothing that Python has not imported already.
"""

import os
import sys


def _run_hidden_one() -> None:
    """Import the ``sitecustomize`` that this one hides, under its name, as Python would have done."""
    here = os.path.dirname(os.path.abspath(__file__))
    places = [(index, folder) for index, folder in enumerate(sys.path) if os.path.abspath(folder) == here]
    own = sys.modules.pop("sitecustomize", None)
    for index, _ in reversed(places):
        del sys.path[index]
    try:
        import sitecustomize  # noqa: F401
    except ImportError as failure:
        if failure.name != "sitecustomize":
            raise
    finally:
        for index, folder in places:
            sys.path.insert(index, folder)
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


try:
    _run_hidden_one()
finally:
    if os.environ.get("SKTUNE_PLAN") or os.environ.get("SKTUNE_RUN"):
        _before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # the folder is the same for many programs
        try:
            from sktune_program import launch
        finally:
            sys.dont_write_bytecode = _before
        launch.install()
