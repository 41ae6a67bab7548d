"""What programs read: every line that --json prints follows a published schema, and no key is missing from it."""

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.core import TyperGroup
from typer.main import get_command

import sktune
from sktune.cli import app
from tests import profiles
from tests.projects import N_LAYERS, RANKS, TEMPLATE
from tests.schemas import check, checked, published
from tests.test_cli import sktune_command

DOCS = Path(__file__).parent.parent / "docs"
DATA = Path(__file__).parent / "data"


def kinds() -> list[str]:
    """Return the events that have a schema."""
    return [branch["$ref"].rpartition("/")[2] for branch in published()["oneOf"]]


def events_in_source() -> Iterator[tuple[str, set[str], bool]]:
    """Return each event that the package makes: its kind, the keys that stand there, and whether these are all."""
    for path in Path(sktune.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Dict):
                continue
            named = {_text(key): value for key, value in zip(node.keys, node.values, strict=True)}
            values = named.get("event")
            for value in (values.body, values.orelse) if isinstance(values, ast.IfExp) else (values,):
                if kind := _text(value):
                    yield kind, {key for key in named if key}, None not in named


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def test_the_schema_is_one() -> None:
    """By the rules of its draft, with each event named after itself."""
    schema = published()
    Draft202012Validator.check_schema(schema)
    for kind in kinds():
        assert schema["$defs"][kind]["properties"]["event"] == {"const": kind}


def test_every_event_has_a_schema_and_stands_in_the_documentation() -> None:
    """No more and no fewer than the package makes."""
    made = {kind for kind, _, _ in events_in_source()}
    assert made == set(kinds())
    text = (DOCS / "reference" / "events.md").read_text()
    assert all(f"`{kind}`" in text for kind in made)


def test_no_key_is_missing_from_a_schema() -> None:
    """Also of events that are too rare for a test to wait for."""
    schema = published()["$defs"]
    for kind, keys, are_all in events_in_source():
        own = schema[kind]
        known = own["properties"].keys() | schema.get(own.get("$ref", "").rpartition("/")[2], {}).get("properties", {})
        assert keys <= set(known), kind
        if are_all:
            assert set(own.get("required", ())) <= keys, kind


def commands(group: TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """Return every command with its options."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), {option for own in command.params for option in own.opts}


def test_every_command_can_speak_json() -> None:
    """But for the server, whose standard output is a protocol."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    assert [name for name, options in commands(group) if "--json" not in options] == ["mcp"]


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
        done = sktune_command("search", *SIM, "--study", study, "--runs", str(runs), "--json", *words)
        assert done.returncode == 0, done.stderr
        assert checked(done.stdout)[-1]["event"] == "study_finished"
    return runs


@pytest.mark.slow
def test_what_the_commands_on_studies_print(studies: Path) -> None:
    """Show, with what it has learned; report and compare."""
    where = ("--runs", str(studies), "--json")
    for words, last in (
        (("show", "schema-a"), "study"),
        (("show", "schema-a", "--why"), "study"),
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
