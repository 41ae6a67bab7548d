"""Commands for agents: ``mcp`` and ``agent install``."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from sktune.cli import options as arg
from sktune.cli.app import agents, app
from sktune.cli.terminal import Terminal
from sktune.core.events.commands import AgentInstalled
from sktune.core.events.lines import print_event


@app.command()
def mcp(
    runs: arg.Runs = Path("runs"),
    allow_write: Annotated[bool, typer.Option("--allow-write", help="Let agents change a model's files.")] = False,
    allow_run: Annotated[
        list[Path],
        typer.Option(metavar="DIR", help="Let agents run Python files and recipes below this folder; may be repeated."),
    ] = [],  # noqa: B006 - typer copies it
    allow_cluster: Annotated[
        list[str],
        typer.Option(metavar="HOST:PORT", help="Let agents search on this Ray cluster; may be repeated."),
    ] = [],  # noqa: B006
) -> None:
    """Serve agents over the Model Context Protocol, on standard input and output."""
    from sktune.agents.mcp_server import make_server
    from sktune.agents.permissions import Permissions

    allowed = Permissions.of_folders(allow_run, writes=allow_write, addresses=allow_cluster)
    make_server(runs, allowed).run()


@agents.command()
def install(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that agents work in.")],
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite files that are not sktune's or were edited.")
    ] = False,
    language: Annotated[str, typer.Option(help="en or zh; by default that of the folder's AGENTS.md.")] = "",
    json: arg.Json = False,
) -> None:
    """Write a skill and a subagent that teach an agent to use sktune, for .agents, .claude and .codex."""
    from sktune.agents import skill

    installed = skill.install(folder, language=language, force=force)
    console = Terminal(stderr=json)
    for name in installed.written:
        console.print(escape(f"written: {folder / name}"), highlight=False, soft_wrap=True)
    console.print(f"{len(installed.unchanged)} files unchanged", highlight=False)
    if json:
        print_event(AgentInstalled(**asdict(installed)))
