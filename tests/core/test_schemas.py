"""The event stream: every line printed by --json follows the published schema, which lists every key."""

import shlex
import shutil
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.core import TyperGroup

from docs import generate
from sktune.cli.app import load
from sktune.core import events
from sktune.core.events.base import Event
from sktune.core.events.catalogue import EVENTS
from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import write_plan
from tests import profiles
from tests.builders import TESTS, check, checked, published, sktune_command, sktune_process, succeeded
from tests.projects import N_LAYERS, RANKS, TEMPLATE
from tests.releases import as_recorded

DATA = TESTS / "data"


def test_the_schema_is_valid() -> None:
    """By the rules of its draft, with each event under its own name."""
    schema = published()
    Draft202012Validator.check_schema(schema)
    assert [branch["$ref"] for branch in schema["oneOf"]] == [f"#/$defs/{name}" for name in EVENTS]
    for name in EVENTS:
        assert schema["$defs"][name]["properties"]["event"] == {"const": name}


def test_generated_pages_are_up_to_date() -> None:
    """The schema, the tables of events, the pages of commands and exit codes."""
    assert not generate.out_of_date(), f"run: {generate.COMMAND}"


def test_every_class_of_events_is_registered() -> None:
    """With a name, and a description in the first line of its docstring."""
    modules = (events.analysis, events.commands, events.scopes, events.search, events.studies, events.workers)
    classes = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    kinds = {kind for kind in classes if issubclass(kind, Event) and hasattr(kind, "event")}
    assert kinds == set(EVENTS.values())
    assert all(generate.described(kind)[0] for kind in kinds)


@pytest.mark.parametrize("name", EVENTS)
def test_every_key_has_a_meaning(name: str) -> None:
    """In the docstring of the event, from which the published pages are generated."""
    _, texts = generate.described(EVENTS[name])
    assert {key.name for key in fields(EVENTS[name])} <= texts.keys()


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("is_full", [True, False])
def test_every_event_follows_its_schema(name: str, is_full: bool) -> None:
    """With all keys, and without the optional ones; an extra or a missing key is an error."""
    event = example(EVENTS[name], is_full=is_full).to_dict()
    check([event])
    needed = published()["$defs"][name]["required"][-1]
    for wrong in (event | {"surprise": 1}, {key: value for key, value in event.items() if key != needed}):
        with pytest.raises(AssertionError):
            check([wrong])


def example(kind: type[Event], *, is_full: bool) -> Event:
    """Return an event with made-up values, with all or none of its optional keys."""
    schema = published()
    properties = schema["$defs"][kind.event]["properties"]
    values = {
        field.name: value_of(properties[field.name], schema["$defs"])
        for field in fields(kind)
        if is_full or field.default is MISSING
    }
    return kind(**values)


def value_of(schema: dict[str, Any], shared: dict[str, Any]) -> Any:
    """Return a value that follows a schema."""
    if "$ref" in schema:
        return value_of(shared[schema["$ref"].rpartition("/")[2]], shared)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if "anyOf" in schema:
        return value_of(schema["anyOf"][0], shared)
    kind = schema["type"] if isinstance(schema["type"], str) else schema["type"][0]
    if kind == "object":
        return {name: value_of(inner, shared) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [value_of(schema["items"], shared)] * schema.get("minItems", 1)
    return {"string": "text", "boolean": True, "integer": 1, "number": 0.5}[kind]


def options_of(group: TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """Return every command with its options."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from options_of(command, (*path, name))
        else:
            yield " ".join((*path, name)), {option for parameter in command.params for option in parameter.opts}


def test_every_command_can_print_json() -> None:
    """Except the server, whose standard output is a protocol."""
    assert [name for name, options in options_of(load()) if "--json" not in options] == ["mcp"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("search", "--model", "nothing"), "unknown model 'nothing'"),
        (("search", "--model", "llama", "--trails", "3"), "No such option: --trails"),
        (("show", "nothing"), "there is no study"),
        (("apply", "nothing.yaml", "--to", "."), "nothing.yaml cannot be read"),
    ],
)
def test_a_failure_is_a_line_too(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """On standard output for programs, and as always on standard error."""
    done = sktune_command(*arguments, "--json", folder=tmp_path)
    (event,) = checked(done.stdout)
    assert (event["event"], event["exit_code"]) == ("error", done.returncode) == ("error", 2)
    assert message in event["message"]
    assert done.stderr == f"error: {event['message']}\n"
    assert sktune_command(*arguments, folder=tmp_path).stdout == ""


SIM = ("--model", "deepseek-v3", "--backend", "sim")


FEW_PLANS = """
version: 1
space: {layers_per_scope: [1], units: [self_attn, mlp], step_units: [], options: {npu: {npu: {stream-fusion: [0]}}}}
"""


@pytest.fixture(scope="module")
def studies(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two simulated studies; everything that their searches printed follows the schema."""
    space = tmp_path_factory.mktemp("space") / "space.yaml"
    space.write_text(FEW_PLANS)
    searches = {
        "schema-a": ("--trials", "2", "--proxy-layers", "1"),
        "schema-b": ("--until-converged", "--time-budget", "60s", "--strategy", "bottom-up", "--space", str(space)),
    }
    for study, options in searches.items():
        done = sktune_process("search", *SIM, "--study", study, "--runs", str(runs), "--json", *options)
        assert done.returncode == 0, done.stderr
        assert checked(done.stdout)[-1]["event"] == "study_finished"
    return runs


@as_recorded
@pytest.mark.slow
def test_events_of_the_commands_on_studies(studies: Path) -> None:
    """Show, with and without ``--why``; report and compare."""
    where = ("--runs", str(studies), "--json")
    for arguments, last in (
        (("show", "schema-a"), "study_shown"),
        (("show", "schema-a", "--why"), "study_shown"),
        (("report", "schema-a"), "report_written"),
        (("compare", "schema-a", "schema-b"), "compare_finished"),
    ):
        done = succeeded(*arguments, *where)
        event = checked(done.stdout)[-1]
        assert event["event"] == last
        assert ("why" in event) is ("--why" in arguments)


def test_events_of_apply(tmp_path: Path) -> None:
    """A diff, a change, and its undo, by the command that the change has named."""
    shutil.copytree(TEMPLATE.root, tmp_path / "the project")
    folder = tmp_path / "the project" / TEMPLATE.model
    units = (f"model.layers.{layer}.self_attn" for layer in range(N_LAYERS))
    scopes = "".join(f"  - {{first: {unit}, last: {unit}}}\n" for unit in units)
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"version: 1\nbackend: npu\nlayers: {N_LAYERS}\nplan:\n  scopes:\n{scopes}")

    def applied(*words: str) -> tuple[list[str], str]:
        done = succeeded(*words, "--json")
        return [event["event"] for event in checked(done.stdout)], done.stderr

    apply = ("apply", str(plan), "--to", str(folder))
    assert applied(*apply)[0] == ["plan_applied"]
    events, said = applied(*apply, "--write")
    assert events == ["plan_applied"]
    undo = shlex.split(said.partition("undo with `sktune ")[2].partition("`")[0])
    assert applied(*undo)[0] == ["plan_undone"]


@pytest.mark.slow
def test_events_of_the_other_commands(tmp_path: Path) -> None:
    """A model, a profile, dumps, a machine, constants, and an agent's files."""
    profile = profiles.write(tmp_path / "kernel_details.csv", profiles.kernel_details(profiles.deepseek()))
    plan = tmp_path / "plan.yaml"
    plan.write_text(write_plan(Plan((Scope("model.layers.0.self_attn", "model.layers.0.mlp"),)), {}, "npu"))
    for arguments, last in (
        (("inspect", *SIM), "inspected"),
        (("profile", str(profile)), "profile_finished"),
        (("fusion", str(DATA / "torchair_dump.txt")), "fusion_finished"),
        (("doctor",), "doctor_finished"),
        (("check", str(plan), *SIM), "plan_checked"),
        (("calibrate", str(profile), "--out", "mine.yaml"), "calibrate_finished"),
        (("agent", "install", "."), "agent_installed"),
        (("recipe", "init", str(RANKS.root)), "recipe_written"),
    ):
        done = succeeded(*arguments, "--json", folder=tmp_path)
        assert [event["event"] for event in checked(done.stdout)] == [last]
