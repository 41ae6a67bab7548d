"""A plan in source code: what `sktune apply` changes, what it leaves alone, and what it refuses."""

import ast
import errno
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from sktune.core.errors import BadInputError, PlanError
from sktune.core.layout import Layout
from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import PlanFile, read_plan_file, write_plan
from sktune.core.space import OptionRules, SearchSpace, SpaceSpec, bind
from sktune.source import edits
from sktune.source.apply import source_change
from sktune.source.codemod import rewrite
from sktune.source.yaml_flag import turn_on
from sktune.targets.tracing import trace_layout
from tests.projects import N_LAYERS, RANKS, TEMPLATE

SOURCE = TEMPLATE.root / TEMPLATE.source
FUSION = (("stream-fusion", 1),)


def layers(*keys: tuple[str, str], among: range = range(N_LAYERS), options: Any = ()) -> Plan:
    """Return the plan with the same scopes in several layers."""
    name = "model.layers.{}.{}".format
    return Plan(tuple(Scope(name(i, first), name(i, last), options) for i in among for first, last in keys))


ATTENTION = layers(("self_attn", "self_attn"), options=FUSION)


def plan_file(plan: Plan, **values: Any) -> PlanFile:
    """Return a plan as a file holds it."""
    return PlanFile.model_validate(yaml.safe_load(write_plan(plan, {}, "npu", N_LAYERS)) | values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the model's folder in a copy of the project."""
    shutil.copytree(TEMPLATE.root, tmp_path / "project")
    return tmp_path / "project" / TEMPLATE.model


def test_attention_only_is_what_an_engineer_would_write(folder: Path) -> None:
    """A flag turned on, one block around one statement, a number for its label; nothing else differs."""
    change = source_change(plan_file(ATTENTION), folder)
    removed = [line[1:] for line in change.diff.splitlines() if line.startswith("-") and not line.startswith("---")]
    added = [line[1:] for line in change.diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert [line for line in removed if line.strip() not in {other.strip() for other in added}] == [
        "  enable_superkernel: False  # off until a plan is applied"
    ]
    assert [line for line in added if line.strip() not in {other.strip() for other in removed}] == [
        "  enable_superkernel: True  # off until a plan is applied",
        "        self.layer_idx = layer_idx",
        "        with superkernel_scope(",
        '            self.enable_superkernel and not is_prefill, f"self_attn_{self.layer_idx}", "stream-fusion=1"',
        "        ):",
    ]
    assert change.notes == ()
    assert source_change(plan_file(ATTENTION), folder).diff == change.diff  # nothing was written


def test_twice_is_once_another_plan_replaces_it_and_undone_all_bytes_are_back(folder: Path) -> None:
    """The record beside the model knows the way back from any number of plans."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    source_change(plan_file(ATTENTION), folder).write()
    once = {path: path.read_bytes() for path in before}
    again = source_change(plan_file(ATTENTION), folder)
    assert again.diff == "" and again.changes == ()
    again.write()
    assert {path: path.read_bytes() for path in before} == once

    other = layers(("mlp", "mlp"), among=range(1, N_LAYERS))
    source_change(plan_file(other), folder).write()
    text = (folder / "models" / "modeling_tiny.py").read_text()
    assert text.count("with superkernel_scope(") == 1
    assert "self.layer_idx >= 1" in text
    assert edits.undo(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_windows_line_ends_and_scopes_of_the_users_own_survive_or_are_replaced(folder: Path) -> None:
    """A file keeps its line ends; scopes written by hand make room for the plan's, and come back when it is undone."""
    path = folder / "models" / "modeling_tiny.py"
    by_hand = rewrite(path.read_text(), layers(("mlp", "mlp")), N_LAYERS, "executor.utils").text
    path.write_bytes(by_hand.replace("\n", "\r\n").encode())
    before = path.read_bytes()
    source_change(plan_file(ATTENTION), folder).write()
    after = path.read_bytes()
    assert after.count(b"\n") == after.count(b"\r\n")
    assert b"mlp_{" not in after and b"self_attn_{" in after
    edits.undo(folder)
    assert path.read_bytes() == before


def test_a_file_edited_since_is_neither_overwritten_nor_undone(folder: Path) -> None:
    """The user's edit is worth more than our record."""
    source_change(plan_file(ATTENTION), folder).write()
    path = folder / "models" / "modeling_tiny.py"
    path.write_text(path.read_text() + "# mine\n")
    for attempt in (lambda: edits.undo(folder), lambda: source_change(plan_file(ATTENTION), folder)):
        with pytest.raises(BadInputError, match="was edited after sktune had changed it"):
            attempt()
    assert path.read_text().endswith("# mine\n")


def test_a_file_that_the_next_plan_leaves_alone_is_restored(folder: Path) -> None:
    """The other YAML is switched off again, and source that holds the plan by hand is as it was."""
    path = folder / "models" / "modeling_tiny.py"
    by_hand = layers(("mlp", "mlp"))
    path.write_text(rewrite(path.read_text(), by_hand, N_LAYERS, "executor.utils").text)
    (folder / "other.yaml").write_bytes((folder / "config.yaml").read_bytes())
    before = contents(folder)
    source_change(plan_file(ATTENTION), folder, folder / "config.yaml").write()
    change = source_change(plan_file(by_hand), folder, folder / "other.yaml")
    assert {each.path.name for each in change.changes} == {"config.yaml", "other.yaml", "modeling_tiny.py"}
    change.write()
    assert {path for path, text in before.items() if path.read_bytes() != text} == {folder / "other.yaml"}
    assert edits.undo(folder) == [folder / "other.yaml"]
    assert contents(folder) == before


@pytest.mark.parametrize("written", range(4))
def test_a_write_that_was_interrupted_can_be_finished_and_undone(
    written: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way back is written first, whether no plan was there before or another; the failure is one line."""
    before = contents(folder)
    for earlier in ([], [layers(("mlp", "mlp"))]):
        for finish in (True, False):
            for plan in earlier:
                source_change(plan_file(plan), folder).write()
            change = source_change(plan_file(ATTENTION), folder)
            with monkeypatch.context() as patched:
                patched.setattr(Path, "open", failing_after(written))
                interrupted(change.write)
            if finish:
                source_change(plan_file(ATTENTION), folder).write()
                assert source_change(plan_file(ATTENTION), folder).diff == ""
            if (folder / edits.RECORD).exists():
                edits.undo(folder)
            assert contents(folder) == before


def contents(folder: Path) -> dict[Path, bytes]:
    """Return all files below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def failing_after(written: int) -> Callable[..., Any]:
    """Return a stand-in for ``Path.open`` on a disk that is full after some files."""
    plain, left = Path.open, iter(range(written))

    def full(path: Path, mode: str = "r", *others: Any, **named: Any) -> Any:
        if mode == "w" and next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(path, mode, *others, **named)

    return full


def interrupted(write: Callable[[], None]) -> None:
    """Write, and expect one line where the disk is full before the end."""
    try:
        write()
    except BadInputError as failure:
        assert "cannot be written (No space left on device)" in str(failure)
        assert "\n" not in str(failure)


REFUSED = {
    "two layers in one scope": (
        Plan((Scope("model.layers.0.input_layernorm", "model.layers.1.mlp"),)),
        "ends in a later pass of the loop over layers",
    ),
    "two functions": (
        Plan((Scope("model.norm", "lm_head"),)),
        "begins in TinyModel.forward and ends in TinyForCausalLM",
    ),
    "layers that cross": (
        Plan(
            (
                Scope("model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"),
                Scope("model.layers.1.self_attn", "model.layers.1.mlp"),
            )
        ),
        "in some layers one ends where in others the other has begun",
    ),
    "another model": (Plan((Scope("transformer.h.0.attn", "transformer.h.0.attn"),)), "no class runs the plan's units"),
    "no scope": (Plan(), "has no scope"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_this_source_cannot_say_is_refused_with_the_reason(case: str, folder: Path) -> None:
    """Refused before anything is written."""
    plan, reason = REFUSED[case]
    with pytest.raises(PlanError, match=reason):
        source_change(plan_file(plan), folder)
    assert not (folder / edits.RECORD).exists()


LAYER = "class DecoderLayer(nn.Module):\n    def __init__(self, config{}):\n".format
EDITS = {
    "no flag": (
        "self.enable_superkernel = config.enable_superkernel",
        "self.other = 1",
        "DecoderLayer does not know whether scopes are wanted",
    ),
    "no number": (LAYER(", layer_idx"), LAYER(""), "DecoderLayer does not know its layer's number"),
    "no mark of prefill": ("is_prefill", "something", "cannot tell prefill from decode"),
    "two units in one statement": (
        "self.mlp(hidden_states)",
        "self.mlp(self.post_attention_layernorm(hidden_states))",
        "is not the first unit that its statement runs",
    ),
    "no Python": ("class MLP", "class class MLP", "mend the file first"),
}


@pytest.mark.parametrize("case", EDITS)
def test_source_that_lacks_what_a_scope_needs_is_refused_with_the_mend(case: str, folder: Path) -> None:
    """The message says what to add."""
    old, new, reason = EDITS[case]
    path = folder / "models" / "modeling_tiny.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(PlanError, match=reason):
        source_change(plan_file(layers(("mlp", "mlp"))), folder)


def test_a_guard_that_the_step_carries_along_is_used_and_the_flag_is_copied() -> None:
    """cann-recipes-infer's newer models hand metadata down instead of a parameter."""
    text = (
        SOURCE.read_text()
        .replace("is_prefill=False", "forward_metadata=None")
        .replace("is_prefill=is_prefill", "is_prefill=forward_metadata.is_prefill")
    )
    head = text.replace("self.enable_superkernel = config.enable_superkernel\n        self.input", "self.input")
    new = rewrite(head, layers(("mlp", "mlp")), N_LAYERS, "executor.utils").text
    assert "self.enable_superkernel and not forward_metadata.is_prefill" in new
    assert new.count("self.enable_superkernel = config.enable_superkernel") == 3


WAYS = (
    (
        """    def __init__(self, config, layer_idx):
        super().__init__()
        self.enable_superkernel = config.enable_superkernel
        self.input""",
        """    def __init__(self, config, infer_config, layer_idx):
        super().__init__()
        self.make(config, layer_idx)

    def make(self, config, layer_idx):
        self.layer_idx = layer_idx
        self.input""",
    ),
    (
        """        self.layers = nn.ModuleList(
            [DecoderLayer(config, layer_idx) for layer_idx in range(config.num_hidden_layers)]
        )
""",
        """        layers = []
        for index in range(config.num_hidden_layers):
            layers.append(DecoderLayer(config, index))
        self.layers = nn.ModuleList(layers)
""",
    ),
    (
        """        hidden_states = self.mlp(hidden_states)
""",
        """        if self.is_fast:
            hidden_states = fast(hidden_states)
        else:
            hidden_states = self.mlp(hidden_states)
""",
    ),
    ("self.enable_superkernel = config.enable_superkernel", "self.config = config"),
    ("is_prefill=False", "forward_metadata=None"),
    ("is_prefill=is_prefill", "forward_metadata=forward_metadata"),
)


def test_models_that_make_themselves_in_the_recipes_ways_are_read() -> None:
    """Attributes made by methods of ``__init__``, lists filled one by one, the flag and the guard handed down."""
    text = SOURCE.read_text()
    for old, new in WAYS:
        assert old in text
        text = text.replace(old, new)
    plan = layers(("self_attn", "mlp"), options=FUSION)
    new = rewrite(text, plan, N_LAYERS, "executor.utils").text
    assert 'self.enable_superkernel = infer_config.model_config.custom_params.get("enable_superkernel", False)' in new
    assert (
        'self.enable_superkernel and not forward_metadata.is_prefill, f"self_attn_to_mlp_{self.layer_idx}", '
        '"stream-fusion=1"\n'
    ) in new
    assert new.count("self.layer_idx = layer_idx") == text.count("self.layer_idx = layer_idx")
    assert rewrite(new, plan, N_LAYERS, "executor.utils").text == new


CALL = "        hidden_states = self.mlp(hidden_states)\n"
INSIDE = CALL.replace("        hidden", "            hidden", 1)


def test_a_unit_that_branches_share_is_in_its_scope_whichever_runs() -> None:
    """A block around one branch would silently leave the other without its scope; prefill's branch does not count."""
    plan = layers(("mlp", "mlp"))
    branches = SOURCE.read_text().replace(CALL, f"        if self.is_fast:\n{INSIDE}        else:\n{INSIDE}")
    new = rewrite(branches, plan, N_LAYERS, "executor.utils").text
    assert new.count("with superkernel_scope(") == 1
    assert new.index("with superkernel_scope(") < new.index("if self.is_fast:")
    prefill = SOURCE.read_text().replace(CALL, f"        if is_prefill:\n{INSIDE}        else:\n{INSIDE}")
    new = rewrite(prefill, plan, N_LAYERS, "executor.utils").text
    assert new.index("with superkernel_scope(") > new.index("if is_prefill:\n" + INSIDE + "        else:\n")
    apart = SOURCE.read_text().replace(CALL, CALL + CALL)
    assert rewrite(apart, plan, N_LAYERS, "executor.utils").text.count("self.mlp(hidden_states)") == 2


def test_a_mark_of_prefill_is_taken_from_what_the_function_is_given() -> None:
    """A local name may not be bound yet where the scope begins."""
    text = SOURCE.read_text().replace("is_prefill=False", "meta=None").replace("is_prefill=is_prefill", "meta=meta")
    text = text.replace(CALL, CALL + "        later = make()\n        use(later.is_prefill)\n")
    with pytest.raises(PlanError, match="cannot tell prefill from decode"):
        rewrite(text, layers(("mlp", "mlp")), N_LAYERS, "executor.utils")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nenable_superkernel: false # b\n", "a: 1\nenable_superkernel: True # b\n"),
        (
            "m:\n  custom_params:\n    # first\n    x: 1\n",
            "m:\n  custom_params:\n    # first\n    enable_superkernel: True\n    x: 1\n",
        ),
        ("model_config: {x: 1}\n", "model_config: {enable_superkernel: True, x: 1}\n"),
        ("exe_mode: ge_graph\nenable_superkernel: yes\n", "exe_mode: ge_graph\nenable_superkernel: yes\n"),
    ],
)
def test_the_switch_is_turned_on_where_the_repository_keeps_it(text: str, expected: str) -> None:
    """Comments, order and form stay."""
    assert turn_on(text, Path("a.yaml")) == expected
    assert turn_on(expected, Path("a.yaml")) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exe_mode: eager\nenable_superkernel: False\n", "a.yaml:1: exe_mode is 'eager'"),
        ("a: 1\n", "has no custom_params and no model_config"),
        ("a: [1\n", "is no YAML"),
    ],
)
def test_a_yaml_in_which_scopes_would_do_nothing_is_refused(text: str, message: str) -> None:
    """One line with the mend."""
    with pytest.raises(BadInputError, match=message) as failure:
        turn_on(text, Path("a.yaml"))
    assert "\n" not in str(failure.value)


@dataclass
class Watched:
    """Which units ran while which scope was open."""

    labels: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    units: dict[str, list[str]] = field(default_factory=dict)

    @contextmanager
    def scope(self, enable: bool, label: str, options: str) -> Iterator[None]:
        """Stand in for the recipes' helper."""
        if not enable:
            yield
            return
        assert not self.open and label not in self.labels
        self.labels.append(label)
        self.open.append(label)
        self.options[label] = options
        yield
        self.open.pop()


def units_by_scope(project: Path, units: list[str], *, prefill: bool = False) -> list[tuple[list[str], str]]:
    """Run the model in ``project`` with scopes on; return the units and the options of each scope."""
    target = TEMPLATE.target(project, scopes=True)
    watched = Watched()
    module: Any = type(target.module).forward.__globals__
    module["superkernel_scope"] = watched.scope
    modules = dict(target.module.named_modules())
    for name in units:

        def begin(module: Any, arguments: Any, name: str = name) -> None:
            for label in watched.open:
                watched.units.setdefault(label, []).append(name)

        modules[name].register_forward_pre_hook(begin)
    (inputs,) = target.prefill(0, 1)
    with torch.no_grad():
        target.decode_step(*inputs, is_prefill=prefill)
    return [(watched.units[label], watched.options[label]) for label in watched.labels]


@pytest.fixture(scope="module")
def layout() -> Layout:
    """Return the layout of the project's model."""
    return trace_layout(TEMPLATE.target(TEMPLATE.root), SpaceSpec())


def space_of(layout: Layout, *, per_layer: bool) -> SearchSpace:
    """Return a space with one option."""
    options: Any = {"stream-fusion": (0, 1)}
    return bind(SpaceSpec(per_layer=per_layer), layout, options, OptionRules({"stream-fusion": 0}))


def asked(plan: Plan, units: list[str]) -> list[tuple[list[str], str]]:
    """Return the units and options of each scope, by the plan."""
    spans = [(units.index(scope.first), units.index(scope.last)) for scope in plan.scopes]
    options = [":".join(f"{name}={value}" for name, value in scope.options) for scope in plan.scopes]
    return [(units[first : last + 1], text) for (first, last), text in zip(spans, options, strict=True)]


def check_source(plan: Plan, project: Path, units: list[str]) -> bool:
    """Apply ``plan`` and run the model; return whether its source can say the plan."""
    try:
        change = source_change(plan_file(plan), project / TEMPLATE.model)
    except PlanError as failure:
        assert "cannot be said in this source" in str(failure)
        return False
    change.write()
    ast.parse((project / TEMPLATE.source).read_text())
    assert units_by_scope(project, units) == asked(plan, units)
    assert units_by_scope(project, units, prefill=True) == []
    return True


def test_starting_points_run_as_the_plan_says(tmp_path: Path, layout: Layout) -> None:
    """Every starting point of the generic space can be said, and runs with just its units in each scope."""
    space = space_of(layout, per_layer=False)
    names = [unit.name for unit in layout.units]
    for point in space.starting_points:
        project = tmp_path / point.name.replace(" ", "-")
        shutil.copytree(TEMPLATE.root, project)
        assert check_source(space.plan(point.values), project, names), point.name
    assert len(space.starting_points) >= 5


def test_calls_inside_one_another_hold_nothing_beside(tmp_path: Path) -> None:
    """``return self.lm_head(self.model(...))`` is two units and no more: there is nothing to tell of."""
    shutil.copytree(RANKS.root, tmp_path / "project")
    plan = Plan((Scope("model.embed_tokens", "lm_head"),))
    change = source_change(plan_file(plan, layers=RANKS.layers), tmp_path / "project" / RANKS.model)
    assert "superkernel_scope(" in change.diff
    assert change.notes == ()


@pytest.mark.slow
@seed(0)
@settings(max_examples=80, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_random_plans_run_as_they_say_or_not_at_all(data: st.DataObject, tmp_path_factory: Any, layout: Layout) -> None:
    """Points of spaces with parameters for layer kinds and for single layers; the model is really run."""
    space = space_of(layout, per_layer=data.draw(st.booleans(), "per_layer"))
    values = {name: data.draw(st.sampled_from(choices), name) for name, choices in space.choices.items()}
    plan = space.plan(values)
    if not plan.scopes:
        return
    project = tmp_path_factory.mktemp("random") / "project"
    shutil.copytree(TEMPLATE.root, project)
    check_source(plan, project, [unit.name for unit in layout.units])


def test_a_yaml_is_known_by_whatever_way_leads_to_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute beside a relative folder, or with detours; one outside of the folder is refused."""
    monkeypatch.chdir(folder.parent)
    before = contents(folder)
    to = Path(folder.name)
    for yaml_file in (folder / "config.yaml", Path("..", folder.parent.name, folder.name, "config.yaml")):
        for place in (to, folder, to / ".." / folder.name):
            change = source_change(plan_file(ATTENTION), place, yaml_file)
            assert "b/config.yaml" in change.diff
            change.write()
            assert place / "config.yaml" in edits.undo(place)
            assert contents(folder) == before
    (folder.parent / "outside.yaml").write_bytes((folder / "config.yaml").read_bytes())
    with pytest.raises(BadInputError, match="lies outside of"):
        source_change(plan_file(ATTENTION), to, Path("outside.yaml"))


def test_the_command_shows_writes_and_undoes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The diff on standard output is a patch; with --json the last line has the same."""
    from sktune.cli import app

    path = tmp_path / "best_plan.yaml"
    path.write_text(write_plan(ATTENTION, {}, "npu", N_LAYERS))
    assert read_plan_file(path).layers == N_LAYERS
    app(["apply", str(path), "--to", str(folder)], standalone_mode=False)
    shown = capsys.readouterr()
    assert shown.out.startswith("--- a/config.yaml\n+++ b/config.yaml\n")
    assert "nothing written" in shown.err
    app(["apply", str(path), "--to", str(folder), "--write", "--json"], standalone_mode=False)
    event = json.loads(capsys.readouterr().out)
    assert event["event"] == "plan_applied" and event["written"] and event["diff"] == shown.out
    app(["apply", "--undo", "--to", str(folder), "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["event"] == "plan_undone"
    with pytest.raises(BadInputError, match="no plan was applied"):
        app(["apply", "--undo", "--to", str(folder)], standalone_mode=False)
