"""The command that serves studies' pages: ``serve``."""

import math
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from sktune.cli import options as arg
from sktune.cli.app import app
from sktune.cli.terminal import Terminal
from sktune.core.errors import BadInputError, nearest
from sktune.core.events.lines import print_event
from sktune.core.events.studies import PageServed


@app.command()
def serve(
    study: Annotated[str | None, typer.Argument(help="Name of a study; by default an index of all.")] = None,
    runs: arg.Runs = Path("runs"),
    storage: arg.Storage = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; by default any.")] = 0,
    language: arg.Language = "en",
    idle_minutes: Annotated[
        float | None, typer.Option(min=0.0, help="End after this many minutes without a reader; by default never.")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    json: arg.Json = False,
) -> None:
    """Serve the pages of studies, live while their searches run: on this machine alone, and read-only."""
    from sktune.server.serve import serve as run  # imports starlette and uvicorn
    from sktune.server.shelf import Shelf

    people = Terminal(stderr=True)
    shelf = Shelf(runs, storage, arg.chosen_language(language))
    if study and study not in (names := shelf.names()):
        raise BadInputError(f"there is no study {study!r}{nearest(study, names)}")
    if idle_minutes is not None and not math.isfinite(idle_minutes):
        raise BadInputError(f"--idle-minutes must be a number of minutes; got {idle_minutes}")

    def ready(url: str) -> None:
        if json:
            print_event(PageServed(url=url, study=study))
        else:
            Terminal().print(escape(url), highlight=False, soft_wrap=True)
        people.print("Ctrl-C ends it. The address is secret: whoever has it can read the studies.", highlight=False)
        if open_page:
            webbrowser.open(url)

    run(shelf, port, study, math.inf if idle_minutes is None else 60 * idle_minutes, ready)
