"""Documents made to hang, to crash or to deceive: refused in one line, whatever reads them."""

import json
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sktune.core.errors import BadInputError, PlanError
from sktune.core.events.lines import parse_event
from sktune.core.files import read_text
from sktune.core.plain_data import MAX_DEPTH, load_json, load_yaml
from sktune.core.plan_file import read_plan_file
from tests.guard import no_hang

BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 20))])
DOCUMENTS = {
    "aliases that expand to 9^19 values": (BOMB, "more than 100,000 values"),
    "an alias for what contains it": ("a: &a [*a]", "an alias for a value that contains it"),
    "deep brackets": ("a: " + "[" * 500, "more than 64 levels"),
    "deep mappings": ("\n".join(" " * n + "a:" for n in range(500)), "more than 64 levels"),
    "a date that does not exist": ("a: 2001-13-45", "a value cannot be read (month must be in 1..12"),
    "a number of 5,000 digits": ("a: " + "1" * 5000, "a number of 5000 characters"),
    "a number in base 60": ("a: 1" + ":59" * 5000, "a number of 15001 characters"),
    "a tag that its value does not have": ("a: !!int x", "a value cannot be read"),
    "an object of Python": ("a: !!python/object/apply:os.system [true]", "this is not YAML"),
    "a terminal's command": (r'a: "\e[2J"', "control character"),
    "half a character": (r'a: "\ud800"', "control character"),
    "a null character": (r'a: "\0"', "control character"),
    "a list as a key": ("? [a]\n: 1", "unhashable key"),
    "two documents": ("a: 1\n---\nb: 2", "this is not YAML"),
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_yaml_beyond_the_limits_is_refused_in_one_line(case: str) -> None:
    """Before values are made of it."""
    text, reason = DOCUMENTS[case]
    with no_hang(), pytest.raises(BadInputError) as failure:
        load_yaml(text, "x.yaml", BadInputError)
    assert reason in str(failure.value)
    assert len(str(failure.value).splitlines()) == 1 and len(str(failure.value)) < 500


def test_aliases_and_merge_keys_within_the_limits_are_read() -> None:
    """Users write them."""
    text = "base: &b {x: 1, y: [1, 2]}\nother: {<<: *b, x: 2}\nsame: *b\n"
    assert load_yaml(text, "x", BadInputError) == yaml.safe_load(text)


def test_a_plan_with_aliases_that_expand_is_refused(tmp_path: Path) -> None:
    """1.2 kB that stood for more values than fit into memory."""
    path = tmp_path / "plan.yaml"
    path.write_text(f"version: 1\nplan: {{scopes: []}}\nevidence:\n  {BOMB.replace(chr(10), chr(10) + '  ')}\n")
    with no_hang(), pytest.raises(PlanError, match=r"plan.yaml:\d+: this is not YAML \(more than 100,000 values"):
        read_plan_file(path)


def test_a_wrong_value_is_quoted_in_part(tmp_path: Path) -> None:
    """However long it is."""
    path = tmp_path / "plan.yaml"
    path.write_text(f"version: 1\nplan: {{scopes: {'x' * 100_000}}}\n")
    with pytest.raises(PlanError) as failure:
        read_plan_file(path)
    assert len(str(failure.value)) < 1000


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2)])
def test_deep_json_is_refused_in_one_line(text: str) -> None:
    """And is no event."""
    with no_hang(), pytest.raises(BadInputError, match=r"x is not JSON .*; fix it") as failure:
        load_json(text, "x", BadInputError, "fix it")
    assert len(str(failure.value).splitlines()) == 1
    assert parse_event(text) is None


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "loop", "too large", "UTF-16", "unreadable"])
def test_what_is_no_text_file_is_refused(tmp_path: Path, kind: str) -> None:
    """Instead of being waited for, or read for ever."""
    path = tmp_path / "file"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "too large":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == "UTF-16":
        path.write_text("version: 1", encoding="utf-16")
    elif os.geteuid() == 0:
        path = path / "\0"
    else:
        path.touch(0o000)
    with no_hang(), pytest.raises(BadInputError, match=r"cannot be read \(.*\); give another$"):
        read_text(path, BadInputError, "give another")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=60)
@given(PLAIN)
def test_json_is_read_as_the_standard_library_reads_it(value: object) -> None:
    """Within the limits, nothing is changed and nothing but half characters refused."""
    text = json.dumps(value)
    try:
        read = load_json(text, "x", BadInputError, "fix it")
    except BadInputError as failure:
        assert "half characters" in str(failure)
    else:
        assert json.dumps(read) == text


@settings(max_examples=100)
@given(st.text(alphabet=st.sampled_from("{}[]&*!<>:-?,|'\"#%@`~ \n\ta0.1eE+_xX\\\0\ufeff\x85")))
def test_any_text_is_a_document_or_refused_in_one_line(text: str) -> None:
    """PyYAML has other exceptions than its own."""
    with no_hang():
        try:
            load_yaml(text, "x.yaml", BadInputError)
        except BadInputError as failure:
            assert len(str(failure).splitlines()) == 1
