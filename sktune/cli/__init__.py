"""The command line: each command reads options, calls one function, and shows the result.

The order of the imports is the order of the commands in ``sktune --help``.
"""

from sktune.cli import search  # noqa: F401, I001
from sktune.cli import engine  # noqa: F401
from sktune.cli import studies  # noqa: F401
from sktune.cli import serve  # noqa: F401
from sktune.cli import plans  # noqa: F401
from sktune.cli import models  # noqa: F401
from sktune.cli import agents  # noqa: F401
from sktune.cli.app import app
from sktune.cli.main import main

__all__ = ["app", "main"]
