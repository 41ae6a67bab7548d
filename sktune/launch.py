"""Runs any program with a plan's scopes on its decode step, without editing its source.

    SKTUNE_PLAN=best_plan.yaml python -m sktune.launch -- infer.py --yaml_file_path=decode.yaml
    SKTUNE_PLAN=best_plan.yaml python -m sktune.launch -- vllm serve MODEL

The Python processes that the program starts have the scopes, too.

If a script starts the program, or sktune is not installed in the program's Python, set
``PYTHONPATH=$(python -m sktune.launch --site)`` in the program's environment instead: it does the same to every Python
process of the program, and needs nothing but the folder.
"""

import importlib
import sys
from pathlib import Path

SITE = Path(__file__).parent / "program"
"""The folder with all that runs inside a program, which goes on its ``PYTHONPATH``."""


def main(arguments: list[str]) -> None:
    """See ``sktune.program.sktune_program.launch.main``."""
    if str(SITE) not in sys.path:
        sys.path.insert(1, str(SITE))  # under the name that the program's other processes import it by
    importlib.import_module("sktune_program.launch").main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
