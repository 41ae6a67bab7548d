"""Running the server: on this machine's own address, until Ctrl-C or until nobody has asked for a while."""

import asyncio
import math
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import uvicorn

from sktune.core.errors import BadInputError, SktuneError
from sktune.server.app import Pages
from sktune.server.shelf import Shelf

ADDRESS = "127.0.0.1"
IDLE_MINUTES = 30.0
"""Time without a reader after which a server in the background ends."""


def serve(
    shelf: Shelf,
    port: int = 0,
    study: str | None = None,
    idle_s: float = math.inf,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until Ctrl-C, or until nobody has asked for ``idle_s`` seconds.

    Args:
        shelf: the studies.
        port: 0 for any that is free.
        study: whose page ``ready`` gets; None for the index.
        idle_s: seconds without a reader after which the server ends.
        ready: called with the URL once it can be opened.

    Raises:
        BadInputError: the port is taken.
    """
    pages = Pages(shelf)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((ADDRESS, port))
        except OSError as failure:
            raise BadInputError(f"--port {port}: {failure.strerror}; choose another, or 0 for any") from failure
        listening.listen(512)
        server = uvicorn.Server(
            uvicorn.Config(pages.app(), log_level="warning", server_header=False, timeout_graceful_shutdown=1)
        )
        ready(f"http://{ADDRESS}:{listening.getsockname()[1]}{pages.address(study)}")
        asyncio.run(_run(server, listening, pages, idle_s))


async def _run(server: uvicorn.Server, listening: socket.socket, pages: Pages, idle_s: float) -> None:
    async def watch() -> None:
        while not server.should_exit:
            await asyncio.sleep(1.0)
            server.should_exit |= not pages.followers and time.monotonic() - pages.last_asked_s > idle_s

    watching = asyncio.create_task(watch())
    await server.serve(sockets=[listening])
    watching.cancel()


def serve_in_background(study: str, runs: Path, storage: str | None) -> str:
    """Start a server that outlives this process, and return the URL of the study's page, which may begin later.

    Raises:
        SktuneError: it does not start.
    """
    where = ["--storage", storage] if storage else []
    command = [
        sys.executable, "-m", "sktune.cli", "serve", "--runs", str(runs), *where,
        "--idle-minutes", f"{IDLE_MINUTES:g}",
    ]  # fmt: skip
    server = subprocess.Popen(  # noqa: S603 - our own command
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        text=True,
    )  # fmt: skip
    assert server.stdout is not None
    line = server.stdout.readline().strip()
    if not line.startswith("http://"):
        raise SktuneError("the page cannot be served; run `sktune serve` to see why")
    return f"{line}study/{quote(study, safe='')}"
