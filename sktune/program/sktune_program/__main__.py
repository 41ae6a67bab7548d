"""``python -m sktune_program -- script.py arguments``: as ``python -m sktune.launch``, in a Python without sktune."""

import sys

from .launch import main

main(sys.argv[1:])
