"""The ``sktune`` command, to which the other modules of this package add their commands."""

from typing import Annotated

import typer

from sktune.backends.installed import package_version

app = typer.Typer(
    name="sktune",
    help="Find the scopes that make a model's decode step fastest, with every output bit unchanged.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
agents = typer.Typer(help="Teach agents to use sktune.", no_args_is_help=True)
app.add_typer(agents, name="agent")
recipes = typer.Typer(help="Describe programs that have their own start script.", no_args_is_help=True)
app.add_typer(recipes, name="recipe")
engines = typer.Typer(help="Look at the machines of a cluster.", no_args_is_help=True)
app.add_typer(engines, name="engine")


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        print(package_version("sktune"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True)] = False,
) -> None:
    """Find the scopes that make a model's decode step fastest, with every output bit unchanged."""
