"""The command line: each command reads options, calls one function, and shows the result."""

from sktune.cli.app import app
from sktune.cli.main import main

__all__ = ["app", "main"]
