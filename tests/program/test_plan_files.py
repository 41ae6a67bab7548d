"""Plan files in programs, where PyYAML may be missing: read as PyYAML reads them, or refused in one line."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sktune.core.documents import parse_document
from sktune.core.errors import PlanError
from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import PlanFile, ShapeEntry, plan_values, read_plan, write_plan
from sktune.core.scope_flavour import ScopeFlavour
from sktune.program.sktune_program.frontends import FRONTENDS
from sktune.program.sktune_program.plain_yaml import read_yaml
from sktune.program.sktune_program.plan_file import KEYS, SHAPE_KEYS, read_plan_file
from tests.builders import TESTS
from tests.program.pythons import STANDINS, ran

PLAN = Plan((Scope("layers.0.a", "layers.0.b", (("early-start", 0),), "name"), Scope("layers.1.a", "layers.1.a")),
            (("frozen_parameter", True),))  # fmt: skip
PARTS = st.sampled_from([
    "a", "b: ", "- ", "c:", "\n", "\n  ", "\n    ", " ", '"x"', "'y'", "#", " # z", "{", "}", "[", "]", ", ", ": ", "1",
    "0", "-", ".", "e+5", "yes", "~", "null", "_", "=", "<<", "?", "*", "&", "!", "|", ">", "%", "@", "\\n", '"', "'",
    "\t", "---", "...", "2001-01-01", "0x1F", "1:30", ".5", "\ufeff", "\x85", "\xe9", "- a: 1\n  b: 2\n", "k: v\n",
    "\\u0041", "{a: 1, b: x}", "[1, 2]", "+", "1.5", "08", "1_0",
])  # fmt: skip
DOCUMENTS = st.one_of(
    st.lists(PARTS, max_size=14).map("".join), st.text("ab01-:. \n#'\"[]{},_~e+x", max_size=25), st.text(max_size=20)
)
TEXTS = st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.text("ab \n:#-'\"{}[],?&*!|>%@`1.0e+_~"))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(TEXTS, st.integers(), st.booleans()), inner, max_size=3)
    ),
    max_leaves=12,
)


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, also in type, order and sign, and NaN to itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other)
    if isinstance(one, dict):
        both = zip(one.items(), other.items(), strict=False)
        return len(one) == len(other) and all(is_same(a, c) and is_same(b, d) for (a, b), (c, d) in both)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


@settings(max_examples=1500, deadline=None)
@given(DOCUMENTS)
def test_any_document_is_read_as_pyyaml_reads_it_or_refused(text: str) -> None:
    """The message is one line with the line's number and what to do."""
    try:
        values = read_yaml(text, "plan.yaml")
    except PlanError as failure:
        assert str(failure).startswith("plan.yaml:") and ".json" in str(failure)
        assert len(str(failure).splitlines()) == 1
    else:
        assert is_same(values, yaml.safe_load(text))


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(TEXTS, VALUES, max_size=4), TEXTS.filter(bool), TEXTS)
@example({}, "-.0", "")
def test_what_sktune_writes_can_be_read_without_pyyaml(evidence: dict[str, Any], unit: str, label: str) -> None:
    """Whatever the evidence, the names of modules and the labels are."""
    scopes = (Scope(unit, unit, (("early-start", 0),), label[:255]),)
    text = write_plan(Plan(scopes), evidence, "npu", 3, {"function": unit, "signature": "int64[1,1]"})
    assert is_same(read_yaml(text, "plan.yaml"), yaml.safe_load(text))


def test_aliases_and_long_keys_are_written_in_full() -> None:
    """The same list twice, and a label of 255 characters as a key."""
    shared = [1]
    text = write_plan(Plan(), {"one": shared, "other": shared, "k" * 255: "a\nb"})
    assert "&" not in text and "? " not in text
    assert read_yaml(text, "plan.yaml")["evidence"] == {"one": [1], "other": [1], "k" * 255: "a\nb"}


@pytest.mark.parametrize("file", sorted((TESTS / "golden" / "files").rglob("best_plan.yaml")), ids=str)
def test_golden_plan_files_can_be_read(file: Path) -> None:
    """As users have them."""
    assert is_same(read_yaml(file.read_text(), "plan.yaml"), yaml.safe_load(file.read_text()))


def test_both_sides_read_the_plans_of_several_shapes(tmp_path: Path) -> None:
    """A program takes each with the signature of its call."""
    path = tmp_path / "best_plan.yaml"
    calls = ({"function": "f", "signature": "int64[1,1]"}, {"function": "f", "signature": "int64[8,1]"})
    shapes = [{"batch": 1, **plan_values(PLAN, {}, calls[0])}, {"batch": 8, **plan_values(Plan(), {}, calls[1])}]
    path.write_text(write_plan(PLAN, {}, "npu", 2, shapes=shapes))
    tasks = read_plan_file(str(path))
    assert [task.decode.signature for task in tasks if task.decode] == ["int64[1,1]", "int64[8,1]"]
    assert [task.scopes for task in tasks] == [PLAN.marked, ()]
    assert is_same(read_yaml(path.read_text(), "plan.yaml"), yaml.safe_load(path.read_text()))


def test_shapes_with_equal_calls_have_one_plan(tmp_path: Path) -> None:
    """Their own if they agree, else the single one; calls of no shape still have none, and other shapes keep theirs."""
    path = tmp_path / "best_plan.yaml"
    calls = [{"function": "f", "signature": name} for name in ("int64[1,1]", "int64[1,1]", "int64[8,1]")]
    plans = (PLAN, Plan(), Plan())
    shapes = [
        {"batch": 1 if call != calls[2] else 8, "context": context, **plan_values(plan, {}, call)}
        for context, (plan, call) in enumerate(zip(plans, calls, strict=True), 1)
    ]
    path.write_text(write_plan(PLAN, {}, "npu", 2, {"function": "f"}, shapes=shapes))
    file = parse_document(path.read_text(), "file", PlanFile, PlanError)
    assert file.entry_of("batch=8", "file").context == 3  # no other shape has this batch
    with pytest.raises(PlanError, match="several plans for the shape 'batch=1': name one of batch=1 context=1"):
        file.entry_of("batch=1", "file")
    differing = read_plan_file(str(path))
    assert [task.scopes for task in differing] == [PLAN.marked, ()]
    assert [task.decode and task.decode.signature for task in differing] == ["int64[1,1]", "int64[8,1]"]
    path.write_text(write_plan(PLAN, {}, "npu", 2, {"function": "f"}, shapes=[shapes[1], shapes[1]]))
    (alike,) = read_plan_file(str(path))
    assert alike.scopes == () and alike.decode and alike.decode.signature == "int64[1,1]"


@pytest.mark.parametrize(
    ("shapes", "message"),
    [("[1]", "shapes must be a list"), ("[{batches: 1, plan: {scopes: []}}]", "did you mean 'batch'")],
)
def test_wrong_shapes_are_refused(tmp_path: Path, shapes: str, message: str) -> None:
    """In one line."""
    path = tmp_path / "plan.yaml"
    path.write_text(f"version: 1\nplan: {{scopes: []}}\nshapes: {shapes}\n")
    with pytest.raises(PlanError, match=message):
        read_plan_file(str(path))


def test_both_sides_read_the_same_plan(tmp_path: Path) -> None:
    """From YAML, and from JSON of the same content."""
    path = tmp_path / "best_plan.yaml"
    path.write_text(write_plan(PLAN, {"speedup": 1.5}, "npu", 2, {"function": "f", "signature": "s"}))
    [task] = read_plan_file(str(path))
    assert (task.scopes, task.options) == (PLAN.marked, dict(PLAN.options))
    assert task.decode and (task.decode.function, task.decode.signature, task.backend) == ("f", "s", "npu")
    path.with_suffix(".json").write_text(json.dumps(yaml.safe_load(path.read_text())))
    assert read_plan_file(str(path.with_suffix(".json"))) == (task,)
    assert read_plan(path) == PLAN


def test_options_may_be_torchairs_string(tmp_path: Path) -> None:
    """As a person writes them."""
    path = tmp_path / "plan.yaml"
    path.write_text("version: 1\nbackend: npu\nplan:\n  scopes:\n"
                    "  - {first: a, last: b, options: 'early-start=0:split-mode=8'}  # by hand\n")  # fmt: skip
    assert dict(read_plan_file(str(path))[0].scopes[0].options) == {"early-start": 0, "split-mode": 8}


def test_both_sides_know_the_same_keys_and_backends() -> None:
    """A key that one of them refused would make files of two kinds."""
    assert set(PlanFile.model_fields) == KEYS
    assert set(ShapeEntry.model_fields) == SHAPE_KEYS
    assert set(ScopeFlavour) == set(FRONTENDS)


SOUND = "version: 1\nbackend: npu\nplan:\n  scopes:\n"
WRONG = {
    "missing": (None, "cannot be read (No such file or directory); set SKTUNE_PLAN"),
    "another version": (SOUND.replace("1", "2") + "  - {first: a, last: a}\n", "only 1 is known"),
    "no YAML of ours": ("version: 1\nplan: &x {scopes: []}\n", ":2: a second colon cannot be read in programs"),
    "an unknown key": (SOUND + "  - {first: a, last: a}\ndecoed: x\n", "did you mean 'decode' or"),
    "an unknown backend": ("version: 1\nbackend: gpu\nplan: {scopes: []}\n", "there is no backend 'gpu'"),
    "an unknown option": (SOUND + "  - {first: a, last: a, options: {early: 0}}\n", "has no option 'early'"),
    "two scopes over a unit": (SOUND + "  - {first: a, last: b}\n  - {first: b, last: c}\n", "belongs to two scopes"),
    "no plan": ("version: 1\n", "must be a mapping with the list 'scopes'"),
    "a list": ("- 1\n", "a plan file is a mapping of keys, got list"),
    "no UTF-8": (b"version: \xff", "cannot be read"),
    "a scope without an end": (SOUND + "  - {first: a}\n", "must be names of units, got 'a' and None"),
    "another decode": (SOUND + "  - {first: a, last: a}\ndecode: x\n", "decode must have the function"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("start", ["launch", "site"])
def test_a_plan_that_cannot_be_used_ends_the_program_in_one_line(case: str, start: str, tmp_path: Path) -> None:
    """With exit code 2 and no traceback, before the program has loaded its model."""
    text, message = WRONG[case]
    path, program = tmp_path / "none.yaml", tmp_path / "prog.py"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    program.write_text("import torch; print('ran')")
    command = [sys.executable, *(["-m", "sktune.launch", "--"] if start == "launch" else []), str(program)]
    done = ran(command, STANDINS, variables={"SKTUNE_PLAN": str(path)})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {path}") and message in done.stderr
    assert len(done.stderr.splitlines()) == 1
