"""Options that several commands share: those of a search, derived from their rows, and two more."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from sktune.core import language as languages
from sktune.core.errors import BadInputError
from sktune.core.search_options import OPTIONS, Group, Opt, Taking, taking


def _declared(option: Opt, panel: str | None = None) -> Any:
    """Return the declaration of an option for typer."""
    flags = [option.flag, *([option.alias] if option.alias else [])]
    return typer.Option(*flags, help=option.help, rich_help_panel=panel)


Runs = Annotated[Path, _declared(OPTIONS["runs"])]
Storage = Annotated[str | None, _declared(OPTIONS["storage"])]
Constants = Annotated[Path | None, _declared(OPTIONS["constants"])]
Trust = Annotated[bool, _declared(OPTIONS["trust"])]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON lines on standard output, and text for people on standard error.")
]
Language = Annotated[str, typer.Option(help="Language of the page: en or zh.")]


class GroupedCommand(TyperCommand):
    """A command whose options are shown in groups; those without a group, such as ``--help``, are in the last."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, each with its group."""
        params: list[Any] = super().get_params(ctx)
        for param in params:
            if param.rich_help_panel is None:
                param.rich_help_panel = Group.OUTPUT
        return params


def of_search(*names: str, grouped: bool = False) -> Callable[[Taking], Taking]:
    """Return a decorator that gives a command options of a search, by default all, in the place of its ``**given``.

    Args:
        names: the options in the order of ``--help``, among them options of the command itself.
        grouped: whether they are in the groups of ``GroupedCommand``.
    """

    def parameter(name: str) -> inspect.Parameter:
        if name not in OPTIONS:
            return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)  # one of the command itself
        option = OPTIONS[name]
        kind: Any = option.kind
        annotation: Any = Annotated[kind, _declared(option, option.group if grouped else None)]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=annotation)

    return taking([parameter(name) for name in names or OPTIONS])


def chosen_language(name: str) -> languages.Language:
    """Return the language of a page.

    Raises:
        BadInputError: there are no texts in it.
    """
    if name not in languages.LANGUAGES:
        raise BadInputError(f"--language: there is no {name!r}; choose {' or '.join(languages.LANGUAGES)}")
    return languages.LANGUAGES[languages.LANGUAGES.index(name)]
