"""What programs read: every line that --json prints follows a published schema, and no key is missing from it."""

import shutil
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.core import TyperGroup
from typer.main import get_command

from docs import generate
from sktune.cli import app
from sktune.core import events
from sktune.core.events import EVENTS, Event
from tests import profiles
from tests.builders import TESTS, check, checked, published, sktune_command, sktune_process
from tests.projects import N_LAYERS, RANKS, TEMPLATE

DATA = TESTS / "data"


def test_the_schema_is_one() -> None:
    """By the rules of its draft, with each event named after itself."""
    schema = published()
    Draft202012Validator.check_schema(schema)
    assert [branch["$ref"] for branch in schema["oneOf"]] == [f"#/$defs/{name}" for name in EVENTS]
    for name in EVENTS:
        assert schema["$defs"][name]["properties"]["event"] == {"const": name}


def test_pages_that_follow_from_code_are_up_to_date() -> None:
    """The schema, the tables of events, the pages of commands and of exit codes."""
    assert not generate.out_of_date(), f"run: {generate.COMMAND}"


def test_every_class_of_events_is_registered() -> None:
    """With a name, and what it says in the first line of its docstring."""
    modules = (events.analysis, events.commands, events.search, events.studies)
    classes = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    kinds = {kind for kind in classes if issubclass(kind, Event) and hasattr(kind, "event")}
    assert kinds == set(EVENTS.values())
    assert all(generate.described(kind)[0] for kind in kinds)


@pytest.mark.parametrize("name", EVENTS)
def test_every_key_has_a_meaning(name: str) -> None:
    """In the docstring of the event, which is what the published pages are made of."""
    _, said = generate.described(EVENTS[name])
    assert {own.name for own in fields(EVENTS[name])} <= said.keys()


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("is_full", [True, False])
def test_every_event_follows_its_schema(name: str, is_full: bool) -> None:
    """With all keys, and without those that may be left out; one key too many or too few is refused."""
    event = example(EVENTS[name], is_full=is_full).to_dict()
    check([event])
    needed = published()["$defs"][name]["required"][-1]
    for wrong in (event | {"surprise": 1}, {key: value for key, value in event.items() if key != needed}):
        with pytest.raises(AssertionError):
            check([wrong])


def example(kind: type[Event], *, is_full: bool) -> Event:
    """Return an event with made-up values: of its keys that may be left out, all or none."""
    schema = published()
    own = schema["$defs"][kind.event]
    given = {
        field.name: value_of(own["properties"][field.name], schema["$defs"])
        for field in fields(kind)
        if is_full or field.default is MISSING
    }
    return kind(**given)


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
            yield " ".join((*path, name)), {option for own in command.params for option in own.opts}


def test_every_command_can_speak_json() -> None:
    """But for the server, whose standard output is a protocol."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    assert [name for name, options in options_of(group) if "--json" not in options] == ["mcp"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("search", "--model", "nothing"), "unknown model 'nothing'"),
        (("search", "--model", "llama", "--trails", "3"), "No such option: --trails"),
        (("show", "nothing"), "there is no study"),
        (("apply", "nothing.yaml", "--to", "."), "nothing.yaml cannot be read"),
    ],
)
def test_a_failure_is_a_line_too(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    """On standard output for programs, and as ever on standard error."""
    done = sktune_command(*words, "--json", folder=tmp_path)
    (event,) = checked(done.stdout)
    assert (event["event"], event["exit_code"]) == ("error", done.returncode) == ("error", 2)
    assert message in event["message"]
    assert done.stderr == f"error: {event['message']}\n"
    assert sktune_command(*words, folder=tmp_path).stdout == ""


SIM = ("--model", "llama", "--backend", "sim")


@pytest.fixture(scope="module")
def studies(runs: Path) -> Path:
    """Return a folder with two simulated studies; all that their searches printed follows the schema."""
    ways = {
        "schema-a": ("--trials", "6", "--proxy-layers", "2"),
        "schema-b": ("--until-settled", "--time-budget", "60s", "--strategy", "bottom-up"),
    }
    for study, words in ways.items():
        done = sktune_process("search", *SIM, "--study", study, "--runs", str(runs), "--json", *words)
        assert done.returncode == 0, done.stderr
        assert checked(done.stdout)[-1]["event"] == "study_finished"
    return runs


@pytest.mark.slow
def test_what_the_commands_on_studies_print(studies: Path) -> None:
    """Show, with what it has learned; report and compare."""
    where = ("--runs", str(studies), "--json")
    for words, last in (
        (("show", "schema-a"), "study_shown"),
        (("show", "schema-a", "--why"), "study_shown"),
        (("report", "schema-a"), "report_written"),
        (("compare", "schema-a", "schema-b"), "compare_finished"),
    ):
        done = sktune_command(*words, *where)
        assert done.returncode == 0, done.stderr
        event = checked(done.stdout)[-1]
        assert event["event"] == last
        assert ("why" in event) is ("--why" in words)


def test_what_apply_prints(tmp_path: Path) -> None:
    """A diff, a change, and the way back."""
    shutil.copytree(TEMPLATE.root, tmp_path / "project")
    folder = tmp_path / "project" / TEMPLATE.model
    units = (f"model.layers.{layer}.self_attn" for layer in range(N_LAYERS))
    scopes = "".join(f"  - {{first: {unit}, last: {unit}}}\n" for unit in units)
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"version: 1\nbackend: npu\nlayers: {N_LAYERS}\nplan:\n  scopes:\n{scopes}")
    for words, last in (
        ((str(plan), "--to", str(folder)), "plan_applied"),
        ((str(plan), "--to", str(folder), "--write"), "plan_applied"),
        (("--undo", "--to", str(folder)), "plan_undone"),
    ):
        done = sktune_command("apply", *words, "--json")
        assert done.returncode == 0, done.stderr
        assert [event["event"] for event in checked(done.stdout)] == [last]


@pytest.mark.slow
def test_what_the_other_commands_print(tmp_path: Path) -> None:
    """A model, a profile, dumps, a machine, constants, and an agent's files."""
    profile = profiles.write(tmp_path / "kernel_details.csv", profiles.kernel_details(profiles.deepseek()))
    for words, last in (
        (("inspect", *SIM), "inspected"),
        (("profile", str(profile)), "profile_finished"),
        (("fusion", str(DATA / "torchair_dump.txt")), "fusion_finished"),
        (("doctor",), "doctor_finished"),
        (("calibrate", str(profile), "--out", "mine.yaml"), "calibrate_finished"),
        (("agent", "install", "."), "agent_installed"),
        (("recipe", "init", str(RANKS.root)), "recipe_written"),
    ):
        done = sktune_command(*words, "--json", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert [event["event"] for event in checked(done.stdout)] == [last]


def test_an_event_that_is_not_known_is_told() -> None:
    """The check itself."""
    for event in ({"event": "surprise"}, {"event": "space_exhausted", "plans": -1}, {"event": "final_stage", "a": 1}):
        with pytest.raises(AssertionError):
            check([event])
