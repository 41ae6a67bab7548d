"""The ``sktune`` command: its commands are imported when they run, so that help and mistakes are shown at once."""

import importlib
from importlib.metadata import version as installed_version
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
SUMMARY_OF = {
    "search": "Search for the best plan; run the same command again to continue.",
    "analyze": "Recommend a plan for a model: walk the scope guide's decision tree, search, "
    "and write the skill's report.",
    "show": "Show what a study has found so far.",
    "studies": "List the studies with their verdicts, newest first.",
    "report": "Write a study's page, report, plan and trials again.",
    "compare": "Compare studies side by side: the best speedup after 5, 10, 20, ... trials.",
    "serve": "Serve the pages of studies, live while their searches run: on this machine alone, and read-only.",
    "apply": "Turn a plan into a change to a model's source and configuration.",
    "check": "Show what the compiler will make of a plan's scopes, without a compile. "
    "Exit code 5: certain to be refused.",
    "recheck": "Check whether a plan is still valid here: code, bits, speed. "
    "Exit code 0: keep, 3: slower now, 4: bits differ.",
    "inspect": "Print a model's layer kinds and their units, the space's parameters and size, and the starting points.",
    "profile": "Show where the time of a decode step goes, and how much scopes can save.",
    "fusion": "Show what became of a plan's scopes: SuperKernels, splits, and operators that were left out.",
    "doctor": "Show what sktune needs, what this machine has, how to get the rest, "
    "and what is not modelled of the compiler.",
    "calibrate": "Fit the constants of the simulated device to profiles or to a study, for `search --constants`.",
    "mcp": "Serve agents over the Model Context Protocol, on standard input and output.",
}
"""The first paragraph of each command's docstring; groups have theirs below."""


class Commands(TyperGroup):
    """Commands that are imported when one of them is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the command and its arguments."""
        if args[0] in MODULE_OF:
            self.commands = load(MODULE_OF[args[0]]).commands
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="sktune",
    cls=Commands,
    help="Find the scopes that make a model's decode step fastest, with every output bit unchanged.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _name, _summary in SUMMARY_OF.items():
    app.command(_name, help=_summary)(lambda: None)  # its module registers the command itself
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
