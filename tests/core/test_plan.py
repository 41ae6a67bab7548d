"""Plans are values: canonical, comparable, and equal across processes."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import sktune
from sktune.core.codec import decoded, encoded
from sktune.core.errors import PlanError
from sktune.core.plan import MAX_LABEL_LENGTH, Plan, Scope
from sktune.core.plan_file import read_plan, read_plan_file, write_plan

names = st.text(st.characters(categories=("L", "N"), include_characters="._"), min_size=1, max_size=30)
options = st.dictionaries(names, st.booleans() | st.integers(-9, 9) | names, max_size=3)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans over distinct unit names."""
    edges = draw(st.lists(names, unique=True, max_size=8))
    scopes = [Scope(a, b, tuple(draw(options).items())) for a, b in zip(edges[::2], edges[1::2], strict=False)]
    return Plan(tuple(scopes))


@given(plans())
def test_a_plan_survives_json_and_yaml(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> None:
    """What is written is read back equal, with an equal digest."""
    again = decoded(Plan, json.loads(json.dumps(encoded(plan))))
    assert again == plan
    assert again.digest == plan.digest
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    path.write_text(write_plan(plan, {"speedup": 1.5}), encoding="utf-8")
    assert read_plan(path) == plan


def test_the_order_of_options_does_not_matter() -> None:
    """Equal options make equal scopes."""
    assert Scope("a", "b", (("x", 1), ("y", 2))) == Scope("a", "b", (("y", 2), ("x", 1)))


def test_a_digest_is_the_same_in_another_process() -> None:
    """Digests depend only on the plan."""
    plan = Plan((Scope("a", "b", (("x", True),)),))
    code = "from sktune.core.plan import *; print(Plan((Scope('a', 'b', (('x', True),)),)).digest)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == plan.digest


@given(st.text(min_size=1, max_size=400), st.text(min_size=1, max_size=400))
def test_labels_fit_into_255_characters(first: str, last: str) -> None:
    """GE and aclskScopeBegin reject longer names."""
    assert 0 < len(Scope(first, last).label) <= MAX_LABEL_LENGTH


def test_long_labels_stay_distinct() -> None:
    """Truncating labels does not merge two scopes."""
    assert Scope("x" * 300, "y").label != Scope("x" * 300, "z").label


def test_a_unit_belongs_to_one_scope() -> None:
    """Scopes are disjoint."""
    with pytest.raises(PlanError, match="belongs to two scopes"):
        Plan((Scope("a", "b"), Scope("b", "c")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "version: 1\nplan: {scopes: [{first: a, last: b, optoins: {}}]}\n",
            r"unknown key.*optoins.*did you mean 'options'",
        ),
        ("version: 2\nplan: {scopes: []}\n", "version"),
        ("version: 1\n", "'plan' is missing"),
        ("version: 1\nbackend: gpu\nplan: {scopes: []}\n", "backend"),
        ("- 1\n", "mapping"),
        ("version: 1\nplan: [\n", "this is not YAML"),
        ("version: 1\nplan: !!python/object/apply:os.system [true]\n", "this is not YAML"),
    ],
)
def test_a_bad_plan_file_gets_one_line(tmp_path_factory: pytest.TempPathFactory, text: str, message: str) -> None:
    """The line names the file and the fix; YAML tags are not executed."""
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    path.write_text(text)
    with pytest.raises(PlanError, match=message) as caught:
        read_plan(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plan_file_names_the_backend_of_its_scopes(tmp_path: Path) -> None:
    """A plan for an NPU is not applied with Inductor's scopes; a file without the key is for Inductor."""
    path = tmp_path / "plan.yaml"
    path.write_text(write_plan(Plan((Scope("a", "b"),)), {}, "npu"))
    assert read_plan_file(path).backend == "npu"
    path.write_text("version: 1\nplan: {scopes: []}\n")
    assert read_plan_file(path).backend == "inductor"


def test_a_backend_without_scopes_is_named() -> None:
    """The message names the existing ones."""
    with pytest.raises(PlanError, match="no compiling backend 'nput'; did you mean 'npu'"):
        sktune.apply(nn.Linear(1, 1), Plan(), "nput")


@pytest.mark.skipif(importlib.util.find_spec("torch_npu") is not None, reason="needs an environment without torch_npu")
def test_scopes_of_torchair_need_torchair() -> None:
    """The message is one line that names the fix."""
    with pytest.raises(PlanError, match=r"cannot be imported .*; install the torch_npu of this torch"):
        sktune.apply(nn.Sequential(nn.Linear(1, 1)), Plan((Scope("0", "0"),)), "npu")


def test_a_label_given_by_the_user_does_not_change_the_plan(tmp_path: Path) -> None:
    """It is preserved in files and across processes, but equal plans stay equal."""
    named, plain = Plan((Scope("a", "b", (), "sp1"),)), Plan((Scope("a", "b"),))
    assert named == plain
    assert named.digest == plain.digest
    assert decoded(Plan, encoded(named)).scopes[0].label == "sp1"
    path = tmp_path / "plan.yaml"
    path.write_text(write_plan(named, {}))
    assert read_plan(path).scopes[0].label == "sp1"


def test_two_scopes_cannot_share_a_label() -> None:
    """GE would compile them as one scope."""
    with pytest.raises(PlanError, match="label 'sp1'"):
        Plan((Scope("a", "a", (), "sp1"), Scope("b", "b", (), "sp1")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("backend: npu\nplan: {scopes: [{first: a, last: a, options: {stream-funsion: 1}}]}", "'stream-fusion'"),
        ("backend: npu\nplan: {scopes: [{first: a, last: a, options: 'a=b:c'}]}", "no option 'a'"),
        (
            "plan: {scopes: [], options: {topology_sorting_strategy: DFS}}",
            "only the backend npu has options of the whole step",
        ),
        ("backend: npu\nplan: {scopes: [], options: {topology_sorting_strategi: DFS}}", "'topology_sorting_strategy'"),
    ],
)
def test_options_of_a_plan_file_are_checked_when_it_is_applied(tmp_path: Path, text: str, message: str) -> None:
    """Nothing is dropped silently or left for the compiler to reject."""
    path = tmp_path / "plan.yaml"
    path.write_text(f"version: 1\n{text}\n")
    with pytest.raises(PlanError, match=message):
        sktune.apply(nn.Sequential(nn.Linear(2, 2)), str(path))
