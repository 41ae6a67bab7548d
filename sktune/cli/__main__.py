"""``python -m sktune.cli``."""

from sktune.cli import main

main()
