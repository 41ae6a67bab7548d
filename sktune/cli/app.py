"""The ``sktune`` command: its commands are imported when they run, so that help and mistakes are shown at once."""

import ast
import importlib
from collections.abc import Iterator
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

MODULE_OF = {
    "search": "search", "analyze": "search", "show": "studies", "studies": "studies", "report": "studies",
    "compare": "studies", "serve": "serve", "apply": "plans", "check": "plans", "recheck": "plans",
    "inspect": "models", "profile": "models", "fusion": "models", "doctor": "models", "calibrate": "models",
    "mcp": "agents", "agent": "agents", "recipe": "plans", "engine": "engine",
}  # fmt: skip
"""The module of this package that has each command or group of commands, in the order of ``sktune --help``."""


class Commands(TyperGroup):
    """Commands that are imported when one of them is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the command and its arguments."""
        if args[0] in MODULE_OF:
            self.commands = load(MODULE_OF[args[0]]).commands
        return super().resolve_command(ctx, args)


def _docstrings() -> Iterator[tuple[str, str | None]]:
    """Yield the commands with their docstrings, which are read without an import."""
    for module in dict.fromkeys(MODULE_OF.values()):
        for node in ast.parse(Path(__file__).with_name(f"{module}.py").read_bytes()).body:
            if isinstance(node, ast.FunctionDef) and MODULE_OF.get(node.name) == module:
                yield node.name, ast.get_docstring(node)


app = typer.Typer(
    name="sktune",
    cls=Commands,
    help="Find the scopes that make a model's decode step fastest, with every output bit unchanged.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _name, _docstring in _docstrings():
    app.command(_name, help=_docstring)(lambda: None)  # its module registers the command itself
agents = typer.Typer(help="Teach agents to use sktune.", no_args_is_help=True)
app.add_typer(agents, name="agent")
recipes = typer.Typer(help="Describe programs that have their own start script.", no_args_is_help=True)
app.add_typer(recipes, name="recipe")
engines = typer.Typer(help="Look at the machines of a cluster.", no_args_is_help=True)
app.add_typer(engines, name="engine")


def load(*modules: str) -> TyperGroup:
    """Import modules of this package, by default all, and return the ``sktune`` command with theirs."""
    for module in modules or dict.fromkeys(MODULE_OF.values()):
        importlib.import_module(f"sktune.cli.{module}")
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return group


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        print(installed_version("sktune"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True)] = False,
) -> None:
    """Find the scopes that make a model's decode step fastest, with every output bit unchanged."""
