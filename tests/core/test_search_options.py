"""The options of a search: one row each, from which every way to start a search takes them."""

import inspect
from dataclasses import make_dataclass
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest

import sktune
from sktune.agents.mcp_server import make_server
from sktune.agents.permissions import Permissions
from sktune.cli.app import load
from sktune.cluster.model_list import Entry
from sktune.core.errors import BadInputError
from sktune.core.search_options import OPTIONS, Group, Opt, SearchOptions, fields_of, options_of
from sktune.samplers import STRATEGIES
from sktune.tuning.request import Request


def test_every_surface_has_the_options_that_their_rows_give_it(tmp_path: Path) -> None:
    """The command line, lists of models, agents and Python; none has a list of its own."""
    command: Any = load("search").commands["search"]
    params = {param.name: param for param in command.params}
    for name, option in OPTIONS.items():
        assert option.flag in params[name].opts
        assert (params[name].help, params[name].rich_help_panel) == (option.help, option.group)
        assert params[name].default == option.default
    assert params.keys() - OPTIONS.keys() == {"models", "rehearse", "open_page", "json"}
    assert Entry.model_fields.keys() == {name for name, option in OPTIONS.items() if option.in_lists}
    tools = anyio.run(make_server(tmp_path, Permissions()).list_tools)
    [schema] = [tool.input_schema for tool in tools if tool.name == "start_search"]
    assert schema["properties"].keys() == {name for name, option in OPTIONS.items() if option.for_agents}
    alone, shaped = (inspect.signature(each).parameters.keys() for each in (sktune.search, sktune.search_shapes))
    assert shaped - {"listener"} == {option.field for option in OPTIONS.values()}
    assert shaped - alone == {"shapes", "objective", "regret"}


def test_a_new_field_is_an_option() -> None:
    """With the name, type and default of the field, and the bounds of its row."""
    row = Opt("How long to rest.", Group.SEARCH, more_than_s=0)
    longer = make_dataclass("longer", [("rest_s", Annotated[float, row], 1.5)], bases=(SearchOptions,), frozen=True)
    option = options_of(longer)["rest"]
    assert (option.flag, option.field, option.value_type, option.default) == ("--rest", "rest_s", float, 1.5)
    with pytest.raises(BadInputError, match="--rest must be a number of seconds, more than 0; got -1"):
        longer("llama", rest_s=-1.0)


def test_what_users_give_becomes_fields() -> None:
    """A text with a unit becomes seconds, a path may be a string, and what is left out is not set."""
    given = fields_of({"time_budget": "1m30s", "compile_timeout": 7.0, "space": "s.yaml", "batch": None})
    assert given == {"time_budget_s": 90.0, "compile_timeout_s": 7.0, "space": "s.yaml"}
    assert Request("llama", **given).space == Path("s.yaml")


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.is_of_program])
def test_a_program_decides_its_own_options(name: str) -> None:
    """So they cannot be given with a recipe."""
    option = OPTIONS[name]
    given: dict[str, Any] = {option.field: 1 if option.value_type is int else "x"}
    with pytest.raises(BadInputError, match=f"{option.flag} cannot be used with --recipe"):
        Request(recipe=Path("recipe.yaml"), **given)


def test_the_help_names_every_strategy() -> None:
    """Though the row, which is read before anything is imported, has them as text."""
    assert OPTIONS["strategy"].help.split(", ")[:-1] == [*STRATEGIES]
