"""A plan in source code: what `sktune apply` changes, what it keeps, and what it refuses."""

import ast
import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
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
from sktune.core.scope_flavour import ScopeFlavour
from sktune.core.space import OptionRules, SearchSpace, SpaceSpec, bind
from sktune.source import edits
from sktune.source.apply import source_change
from sktune.source.codemod import rewrite
from sktune.source.guards import of_layers
from sktune.source.own_configuration import own_configuration
from sktune.source.values import Reading
from sktune.source.yaml_flag import check_mode, turn_on
from sktune.targets.tracing import trace_layout
from tests.builders import one_line_error
from tests.projects import N_LAYERS, RANKS, TEMPLATE

SOURCE = TEMPLATE.root / TEMPLATE.source
FUSION = (("stream-fusion", 1),)


def layers(*keys: tuple[str, str], among: Sequence[int] = range(N_LAYERS), options: Any = ()) -> Plan:
    """Return a plan with the same scopes in several layers."""
    name = "model.layers.{}.{}".format
    return Plan(tuple(Scope(name(i, first), name(i, last), options) for i in among for first, last in keys))


CUSTOM = Reading("infer_config", ("model_config", "custom_params", "enable_superkernel"))
ATTENTION = layers(("self_attn", "self_attn"), options=FUSION)


def plan_file(plan: Plan, **values: Any) -> PlanFile:
    """Return a plan as read from a file."""
    return PlanFile.model_validate(yaml.safe_load(write_plan(plan, {}, "npu", N_LAYERS)) | values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the model's folder in a copy of the project."""
    shutil.copytree(TEMPLATE.root, tmp_path / "project")
    return tmp_path / "project" / TEMPLATE.model


def test_attention_only_is_what_an_engineer_would_write(folder: Path) -> None:
    """The flag is turned on, one block encloses one statement, its label has the layer; nothing else differs."""
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


@pytest.mark.parametrize("signature", ["", "int64[8,1]"])
def test_the_single_plan_of_several_shapes_is_written_and_told(folder: Path, signature: str) -> None:
    """sktune.launch chooses among them only where the file has the calls of each."""
    plan = yaml.safe_load(write_plan(ATTENTION, {}, "npu", N_LAYERS))["plan"]
    shape = {"batch": 8, "plan": plan, "decode": {"function": "Model.decode", "signature": signature}}
    (note,) = source_change(plan_file(ATTENTION, shapes=[shape]), folder).notes
    assert "the best single plan for all of them; --shape takes that of one" in note
    assert note.endswith("sktune.launch chooses by itself") == bool(signature)


def test_apply_is_idempotent_replaces_an_earlier_plan_and_can_be_undone(folder: Path) -> None:
    """The record in the model's folder restores every byte after any number of plans."""
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


def test_windows_line_endings_are_kept_and_scopes_written_by_hand_are_replaced(folder: Path) -> None:
    """Undo restores the scopes that were written by hand."""
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
    """The user's edit takes precedence over sktune's record."""
    source_change(plan_file(ATTENTION), folder).write()
    path = folder / "models" / "modeling_tiny.py"
    path.write_text(path.read_text() + "# mine\n")
    for attempt in (lambda: edits.undo(folder), lambda: source_change(plan_file(ATTENTION), folder)):
        with pytest.raises(BadInputError, match="was edited after sktune changed it"):
            attempt()
    assert path.read_text().endswith("# mine\n")


def test_a_file_that_the_next_plan_leaves_alone_is_restored(folder: Path) -> None:
    """The flag in the other YAML is off again, and a source that already has the plan's scopes is unchanged."""
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
    """The record is written first, with or without an earlier plan; the failure is one line."""
    before = contents(folder)
    for earlier in ([], [layers(("mlp", "mlp"))]):
        for finish in (True, False):
            for plan in earlier:
                source_change(plan_file(plan), folder).write()
            change = source_change(plan_file(ATTENTION), folder)
            with monkeypatch.context() as patched:
                patched.setattr(os, "fdopen", failing_after(written))
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
    """Return a stand-in for ``os.fdopen`` on a disk that is full after some files."""
    plain, left = os.fdopen, iter(range(written))

    def full(descriptor: int, mode: str = "r", *others: Any, **named: Any) -> Any:
        if mode == "w" and next(left, None) is None:
            os.close(descriptor)
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(descriptor, mode, *others, **named)

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
        "begins in one layer and ends in a later one; ",
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
        "they overlap, in different layers",
    ),
    "units in each other": (
        Plan((Scope("model.layers.0.self_attn", "model.layers.0.self_attn.o_proj"),)),
        "the plan's unit 'model.layers.0.self_attn' contains 'model.layers.0.self_attn.o_proj'",
    ),
    "an end before the begin": (
        Plan((Scope("model.layers.0.mlp", "model.layers.0.self_attn"),)),
        "its last unit 'model.layers.0.self_attn' runs before its first one 'model.layers.0.mlp'",
    ),
    "another model": (Plan((Scope("transformer.h.0.attn", "transformer.h.0.attn"),)), "no class runs the plan's units"),
    "no scope": (Plan(), "has no scope"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_plan_that_the_source_cannot_express_is_refused_with_the_reason(case: str, folder: Path) -> None:
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
        "DecoderLayer has no flag that enables scopes",
    ),
    "no number": (LAYER(", layer_idx"), LAYER(""), "DecoderLayer has no attribute for its layer's number"),
    "no prefill flag": ("is_prefill", "something", "cannot distinguish prefill from decode"),
    "two units in one statement": (
        "self.mlp(hidden_states)",
        "self.mlp(self.post_attention_layernorm(hidden_states))",
        "is not the first unit that its statement runs",
    ),
    "no Python": ("class MLP", "class class MLP", "fix the file first"),
    "more parentheses than a parser's stack": ("class MLP", f"X = {'(' * 5000}1{')' * 5000}\nclass MLP", "too deeply"),
    "more signs than a visitor's": ("class MLP", f"X = {'-' * 1000}1\nclass MLP", "nested too deeply"),
}


@pytest.mark.parametrize(
    "line",
    [
        "chosen = chosen if chosen is not None else self.config.chosen",
        "chosen = chosen or self.config.chosen",
        "chosen = self.config.chosen if not chosen else chosen and chosen",
        "other = chosen if chosen is not None else None; chosen = other if other is not None else 1",
        "self.chosen = self.chosen if self.chosen is not None else chosen",
    ],
)
def test_a_name_may_be_set_from_itself(line: str, folder: Path) -> None:
    """What it was before is not known, so both ways of a branch may be taken; no stack overflows."""
    path = folder / "models" / "modeling_tiny.py"
    loop = "        for decoder_layer in self.layers:\n"
    branch = "            if chosen or self.chosen:\n                kept.append(hidden_states)\n"
    assert loop in path.read_text()
    text = path.read_text().replace(loop, f"        chosen, kept = None, []\n        {line}\n{loop}{branch}")
    text = text.replace("        super().__init__()\n", "        super().__init__()\n        self.chosen = None\n")
    path.write_text(text.replace("self.chosen = None", line) if line.startswith("self.chosen") else text)
    assert "with superkernel_scope(" in source_change(plan_file(ATTENTION), folder).diff


BRANCH = """        if self.is_fast:
            hidden_states = self.before(hidden_states)
            hidden_states = self.mlp(hidden_states)
        hidden_states = self.after(hidden_states)
"""


def test_the_reason_of_a_refusal_is_true(folder: Path) -> None:
    """A scope of one layer that begins in a branch is not one that ends in a later layer."""
    path = folder / "models" / "modeling_tiny.py"
    norm = "        self.input_layernorm = Norm()\n"
    text = path.read_text().replace(
        norm, norm + "".join(norm.replace("input_layernorm", n) for n in ("before", "after"))
    )
    path.write_text(text.replace(CALL, BRANCH))
    with pytest.raises(PlanError) as failure:
        source_change(plan_file(layers(("mlp", "after"))), folder)
    assert "a branch or a loop of DecoderLayer.forward has only its begin" in str(failure.value)
    assert "iteration" not in str(failure.value)


OTHER_BRANCH = {
    "another unit first": (["before", "mlp"], ["mlp"], "its units are called in several places"),
    "another unit last": (["mlp"], ["mlp", "after"], "its units are called in several places"),
    "alone in both": (["mlp"], ["mlp"], ""),
    "not in the other": (["before"], ["mlp"], ""),
}


@pytest.mark.parametrize("case", OTHER_BRANCH)
@pytest.mark.parametrize("flavour", [ScopeFlavour.SUPERKERNEL, ScopeFlavour.CAPTURED])
def test_a_scope_around_a_branch_has_the_same_units_in_both_ways(case: str, flavour: ScopeFlavour) -> None:
    """Which way decode takes is not known here; one that runs more than the plan's units would be another plan."""
    *branches, reason = OTHER_BRANCH[case]
    norm = "        self.input_layernorm = Norm()\n"
    made = "".join(norm.replace("input_layernorm", name) for name in ("before", "after"))
    ways = ["".join(f"    {CALL.replace('mlp', name)}" for name in names) for names in branches]
    text = SOURCE.read_text().replace(norm, norm + made)
    text = text.replace(CALL, f"        if self.is_fast:\n{ways[0]}        else:\n{ways[1]}")
    plan = layers(("mlp", "mlp"))
    if reason:
        with pytest.raises(PlanError, match=reason):
            rewrite(text, plan, N_LAYERS, "executor.utils", None, flavour)
    else:
        assert 'f"mlp_{self.layer_idx}"' in rewrite(text, plan, N_LAYERS, "executor.utils", None, flavour).text


def test_a_scope_between_two_modules_of_one_class_is_refused_with_the_true_reason(folder: Path) -> None:
    """Each statement of the class is in the source once, and runs for both."""
    path = folder / "models" / "modeling_tiny.py"
    weight = "        self.weight = nn.Parameter(torch.ones(HIDDEN))\n"
    made = "".join(f"        self.{name} = nn.Identity()\n" for name in ("before", "scale", "after"))
    called = "        hidden_states = self.before(hidden_states)\n        hidden_states = self.scale(hidden_states)\n"
    text = path.read_text().replace(weight, weight + made)
    head = "        return self.weight * hidden_states"
    path.write_text(text.replace(head, f"{called}        return self.after(hidden_states)"))
    plan = layers(("input_layernorm.scale", "post_attention_layernorm.scale"))
    with pytest.raises(PlanError, match=r": it begins in one call of Norm\.forward and ends in a later one; "):
        source_change(plan_file(plan), folder)


def test_a_plan_of_very_many_layers_is_applied() -> None:
    """Each layer is followed once, whatever the plan has in the others."""
    many = 300
    plan = layers(("input_layernorm", "self_attn"), ("mlp", "mlp"), among=range(0, many, 2))
    new = rewrite(SOURCE.read_text(), plan, many, "executor.utils").text
    assert new.count("self.layer_idx % 2 == 0") == 2


def test_a_folder_without_a_yaml_is_not_told_to_name_it(folder: Path) -> None:
    """Nor is one of which no YAML has settings of a model, told that none were there."""
    path = folder / "config.yaml"
    path.write_text("other: 1\n")
    with pytest.raises(BadInputError, match=r"none of the 1 in .* has .*\(config\.yaml\); name the one .* with --yaml"):
        source_change(plan_file(ATTENTION), folder)
    path.unlink()
    with pytest.raises(BadInputError, match="has no YAML file") as failure:
        source_change(plan_file(ATTENTION), folder)
    assert "--yaml" not in str(failure.value)


CONDITIONS = {
    "self.layer_idx % 2 == 0": (43, range(0, 43, 2)),
    "self.layer_idx <= 42 and self.layer_idx % 2 == 0": (61, range(0, 43, 2)),
    "self.layer_idx % 4 == 3": (61, range(3, 61, 4)),
    "self.layer_idx >= 7 and self.layer_idx % 4 == 3": (61, range(7, 61, 4)),
    "self.layer_idx % 10 == 5": (100, range(5, 100, 10)),
    "self.layer_idx != 7": (61, [*range(7), *range(8, 61)]),
    "self.layer_idx >= 3 and self.layer_idx not in (9, 20)": (61, [*range(3, 9), *range(10, 20), *range(21, 61)]),
    "(self.layer_idx <= 3 or self.layer_idx >= 50)": (61, [*range(4), *range(50, 61)]),
    "(self.layer_idx <= 5 or self.layer_idx % 2 == 1)": (78, [*range(6), *range(7, 78, 2)]),
    "(self.layer_idx == 55 or self.layer_idx % 4 == 1)": (61, sorted({55, *range(1, 61, 4)})),
    "self.layer_idx in (2, 6, 14, 18, 22, 26, 30, 34, 42, 46, 50, 54, 58)": (61, sorted({*range(2, 61, 4)} - {10, 38})),
    "self.layer_idx in (1, 4, 9)": (61, [1, 4, 9]),
}


@pytest.mark.parametrize("expected", CONDITIONS)
def test_a_condition_is_what_an_engineer_would_write(expected: str) -> None:
    """Patterns instead of lists."""
    n_layers, among = CONDITIONS[expected]
    assert of_layers([*among], n_layers, "self.layer_idx") == expected


@given(n_layers=st.integers(1, 200), data=st.data())
def test_a_condition_holds_in_exactly_the_plans_layers(n_layers: int, data: st.DataObject) -> None:
    """For any set of layers."""
    chosen = sorted(data.draw(st.sets(st.integers(0, n_layers - 1), min_size=1)))
    condition = of_layers(chosen, n_layers, "number")
    assert [number for number in range(n_layers) if not condition or eval(condition)] == chosen


def test_a_long_condition_is_broken_into_lines() -> None:
    """At most 120 characters; the change is Python."""
    among = [layer for layer in range(120) if layer * layer % 7 in (1, 2) or layer % 11 == 3]
    new = rewrite(SOURCE.read_text(), layers(("mlp", "mlp"), among=among), 120, "executor.utils").text
    ast.parse(new)
    assert "self.layer_idx" in new and max(map(len, new.splitlines())) <= 120


@pytest.mark.parametrize("case", EDITS)
def test_source_that_lacks_what_a_scope_needs_is_refused_with_the_fix(case: str, folder: Path) -> None:
    """The message says what to add."""
    old, new, reason = EDITS[case]
    path = folder / "models" / "modeling_tiny.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(PlanError, match=reason):
        source_change(plan_file(layers(("mlp", "mlp"))), folder)


def test_the_prefill_flag_of_metadata_is_used_and_the_scope_flag_is_copied() -> None:
    """cann-recipes-infer's newer models pass metadata down instead of a parameter."""
    text = (
        SOURCE.read_text()
        .replace("is_prefill=False", "forward_metadata=None")
        .replace("is_prefill=is_prefill", "is_prefill=forward_metadata.is_prefill")
    )
    head = text.replace("self.enable_superkernel = config.enable_superkernel\n        self.input", "self.input")
    new = rewrite(head, layers(("mlp", "mlp")), N_LAYERS, "executor.utils").text
    assert "self.enable_superkernel and not forward_metadata.is_prefill" in new
    assert new.count("self.enable_superkernel = config.enable_superkernel") == 3


STYLES = (
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


def test_the_recipes_coding_styles_are_supported() -> None:
    """Attributes set in methods that ``__init__`` calls, lists filled by append, flag and metadata as arguments."""
    text = SOURCE.read_text()
    for old, new in STYLES:
        assert old in text
        text = text.replace(old, new)
    plan = layers(("self_attn", "mlp"), options=FUSION)
    new = rewrite(text, plan, N_LAYERS, "executor.utils").text
    assert 'self.enable_superkernel = infer_config.model_config.custom_params.get("enable_superkernel", False)' in new
    assert (
        "            self.enable_superkernel and not forward_metadata.is_prefill,\n"
        '            f"self_attn_to_mlp_{self.layer_idx}",\n            "stream-fusion=1",\n        ):\n'
    ) in new
    assert new.count("self.layer_idx = layer_idx") == text.count("self.layer_idx = layer_idx")
    assert rewrite(new, plan, N_LAYERS, "executor.utils").text == new


CALL = "        hidden_states = self.mlp(hidden_states)\n"
INSIDE = CALL.replace("        hidden", "            hidden", 1)


def test_a_unit_in_several_branches_is_in_its_scope_whichever_runs() -> None:
    """A block around one branch would silently leave the other without its scope; prefill's branch is ignored."""
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


def test_the_prefill_flag_is_read_only_from_parameters() -> None:
    """A local name may not be bound yet where the scope begins."""
    text = SOURCE.read_text().replace("is_prefill=False", "meta=None").replace("is_prefill=is_prefill", "meta=meta")
    text = text.replace(CALL, CALL + "        later = make()\n        use(later.is_prefill)\n")
    with pytest.raises(PlanError, match="cannot distinguish prefill from decode"):
        rewrite(text, layers(("mlp", "mlp")), N_LAYERS, "executor.utils")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nenable_superkernel: false # b\n", "a: 1\nenable_superkernel: True # b\n"),
        ("exe_mode: ge_graph\nenable_superkernel: yes\n", "exe_mode: ge_graph\nenable_superkernel: yes\n"),
    ],
)
def test_the_flag_is_turned_on_wherever_it_is(text: str, expected: str) -> None:
    """Comments, order and formatting are kept."""
    assert turn_on(text, Path("a.yaml"), [None]) == expected
    assert turn_on(expected, Path("a.yaml"), [None]) == expected


@pytest.mark.parametrize("indent", [1, 2, 4])
def test_the_flag_is_inside_an_empty_mapping(indent: int) -> None:
    """However deep the file's levels are."""
    space = " " * indent
    text = f"model_config:\n{space}custom_params:\n{space}next_n: 1\n"
    flag = {"custom_params": {"enable_superkernel": True}, "next_n": 1}
    assert yaml.safe_load(turn_on(text, Path("a.yaml"), [CUSTOM])) == {"model_config": flag}


def test_a_flag_that_others_would_share_is_not_written() -> None:
    """An alias is the same mapping in several places."""
    text = "base: &base\n  x: 1\nmodel_config:\n  custom_params: *base\n"
    with one_line_error(BadInputError, "cannot be set without changing more; set it to True there by hand"):
        turn_on(text, Path("a.yaml"), [CUSTOM])


def test_the_patch_is_one_that_git_applies(folder: Path) -> None:
    """Also to a file with a form feed, which does not end a line."""
    source = folder.parents[1] / TEMPLATE.source
    source.write_text(source.read_text().replace("\n\nclass ", "\n\x0c\n\nclass "))
    change = source_change(plan_file(ATTENTION), folder)
    (folder / "patch").write_text(change.diff)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "apply", "patch"], cwd=folder, check=True)
    applied = {each.path: each.path.read_text() for each in change.changes}
    assert applied == {each.path: each.after for each in change.changes}


@pytest.mark.parametrize(
    ("text", "message"),
    [("exe_mode: eager\nenable_superkernel: False\n", "a.yaml:1: exe_mode is 'eager'"), ("a: [1\n", "is not YAML")],
)
def test_a_yaml_in_which_scopes_would_have_no_effect_is_refused(text: str, message: str) -> None:
    """One line with the fix."""
    with one_line_error(BadInputError, message):
        check_mode(text, Path("a.yaml"))


@dataclass
class Watched:
    """Which units ran while which scope was open."""

    labels: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    units: dict[str, list[str]] = field(default_factory=dict)

    @contextmanager
    def scope(self, enable: bool, label: str, options: str) -> Iterator[None]:
        """Replace the recipes' helper."""
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


def expected_units(plan: Plan, units: list[str]) -> list[tuple[list[str], str]]:
    """Return the units and options of each scope of the plan."""
    spans = [(units.index(scope.first), units.index(scope.last)) for scope in plan.scopes]
    options = [":".join(f"{name}={value}" for name, value in scope.options) for scope in plan.scopes]
    return [(units[first : last + 1], text) for (first, last), text in zip(spans, options, strict=True)]


def check_source(plan: Plan, project: Path, units: list[str]) -> bool:
    """Apply ``plan`` and run the model; return whether its source can express the plan."""
    try:
        change = source_change(plan_file(plan), project / TEMPLATE.model)
    except PlanError as failure:
        assert "cannot be expressed in this file" in str(failure)
        return False
    change.write()
    ast.parse((project / TEMPLATE.source).read_text())
    assert units_by_scope(project, units) == expected_units(plan, units)
    assert units_by_scope(project, units, prefill=True) == []
    return True


def test_starting_points_run_as_the_plan_says(tmp_path: Path, layout: Layout) -> None:
    """Every starting point of the generic space can be expressed, and each scope runs exactly its units."""
    space = space_of(layout, per_layer=False)
    names = [unit.name for unit in layout.units]
    for point in space.starting_points:
        project = tmp_path / point.name.replace(" ", "-")
        shutil.copytree(TEMPLATE.root, project)
        assert check_source(space.plan(point.values), project, names), point.name
    assert len(space.starting_points) >= 5


IN_BLOCKS = (
    (
        "        self.input_layernorm = Norm()",
        "        self.layer_idx = layer_idx\n        self.input_layernorm = Norm()",
    ),
    (
        """    def forward(
        self,
        hidden_states,
        position,
        is_prefill=False,
        **kwargs
    ):
        residual = hidden_states
""",
        """    def forward_attention(self, hidden_states, position, is_prefill):
""",
    ),
    (
        """        # Add & Norm
        hidden_states = residual + attn_output
        hidden_states = self.post""",
        """        return attn_output

    def forward_mlp(self, hidden_states, is_prefill):
        residual = hidden_states
        hidden_states = self.post""",
    ),
    (
        """        residual = hidden_states
        hidden_states = self.mlp(hidden_states)
        hidden_states = residual + hidden_states

        return hidden_states
""",
        """        if residual.shape[0] > 0:
            return residual + self.mlp(hidden_states)
        return self.mlp(hidden_states)
""",
    ),
    (
        """        for decoder_layer in self.layers:
            hidden_states = decoder_layer(hidden_states, position, is_prefill=is_prefill)
        hidden_states = self.norm(hidden_states)
        return hidden_states
""",
        """        for start in range(0, len(self.layers), 2):
            hidden_states = self.run_block(start, hidden_states, position, is_prefill)
        hidden_states = self.norm(hidden_states)
        return hidden_states

    def run_block(self, start, hidden_states, position, is_prefill):
        block = tuple(self.layers[index] for index in range(start, min(start + 2, len(self.layers))))
        for offset, decoder_layer in enumerate(block):
            attended = decoder_layer.forward_attention(hidden_states, position, is_prefill)
            hidden_states = decoder_layer.forward_mlp(hidden_states + attended, is_prefill)
        return hidden_states
""",
    ),
)


@pytest.mark.parametrize(
    ("plan", "is_expressed"),
    [
        (layers(("input_layernorm", "mlp")), True),
        (layers(("input_layernorm", "mlp"), among=range(1, N_LAYERS)), True),
        (layers(("self_attn", "self_attn"), ("mlp", "mlp")), True),
        (Plan((Scope("model.layers.0.input_layernorm", f"model.layers.{N_LAYERS - 1}.mlp"),)), True),
        (Plan((Scope("model.layers.0.input_layernorm", "model.layers.1.mlp"),)), False),
    ],
)
def test_layers_that_run_in_blocks_and_in_two_functions(
    tmp_path: Path, layout: Layout, plan: Plan, is_expressed: bool
) -> None:
    """As those of Kimi K3: a loop over blocks of layers, and in it one over the block's, which count from its start."""
    project = tmp_path / "project"
    shutil.copytree(TEMPLATE.root, project)
    text = (project / TEMPLATE.source).read_text()
    for old, new in IN_BLOCKS:
        assert old in text
        text = text.replace(old, new)
    (project / TEMPLATE.source).write_text(text)
    assert check_source(plan, project, [unit.name for unit in layout.units]) is is_expressed


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ("self.attend_plain", ""),
        ("self.attend_plain if layer_idx >= 0 else self.attend_twice", ""),
        ("self.attend_twice", "cannot be expressed"),
        ("self.attend_plain if torch.get_num_threads() else self.attend_twice", "called in several places"),
        (
            "self.attend_plain if torch.get_num_threads() else {}[config]",
            r"no call of 'model\.layers\.0\.self_attn\.o_proj' is seen",
        ),
    ],
)
def test_a_method_that_the_constructor_chooses_is_followed(tmp_path: Path, chosen: str, reason: str) -> None:
    """As recipes choose one for the weights' quantisation, if all that it may be are known; also for ``forward``."""
    project = tmp_path / "project"
    shutil.copytree(TEMPLATE.root, project)
    text = (project / TEMPLATE.source).read_text()
    made = "        self.layer_idx = layer_idx\n        self.qkv_proj"
    head = "    def forward(self, hidden_states, position, is_prefill=False):\n        batch"
    twice = """    def attend_twice(self, hidden_states, position, is_prefill):
        return self.o_proj(self.o_proj(self.qkv_proj(hidden_states)[..., :HIDDEN]))

"""
    assert made in text and head in text
    text = text.replace(made, f"        self.attend = {chosen}\n{made}").replace(
        head,
        f"""{head.partition("        batch")[0]}        return self.attend(hidden_states, position, is_prefill)

{twice}    def attend_plain(self, hidden_states, position, is_prefill):
        batch""",
    )
    plan = layers(("self_attn.o_proj", "self_attn.o_proj"))
    units = [f"model.layers.{i}.self_attn.{name}" for i in range(N_LAYERS) for name in ("qkv_proj", "o_proj")]
    called = head.partition("        batch")[0] + "        return self.attend(hidden_states, position, is_prefill)\n"
    fast, _, others = chosen.partition(" if ")
    condition, _, slow = others.partition(" else ")
    local = f"""        fn = None
        if is_prefill:
            fn = self.attend_twice
        elif {condition.replace("layer_idx", "self.layer_idx") or "True"}:
            fn = {fast}
        else:
            fn = {slow or fast}
"""
    in_forward = text.replace("        return self.attend(", f"{local}        return fn(")
    for written in (text, text.replace(called, "").replace("self.attend =", "self.forward ="), in_forward):
        (project / TEMPLATE.source).write_text(written)
        if reason:
            with pytest.raises(PlanError, match=reason):
                source_change(plan_file(plan), project / TEMPLATE.model)
        else:
            assert check_source(plan, project, units)
            edits.undo(project / TEMPLATE.model)


def test_the_configuration_classes_copy_values_of_the_yaml(tmp_path: Path) -> None:
    """Those decide branches, which defaults do not."""
    text = """class Config:
    def __init__(self, num_hidden_layers=3, mode="plain", other="plain", runner_settings=None):
        custom_params = runner_settings["custom_params"]
        values = dict(mode=mode, other=other)
        if "mode" in custom_params:
            values["mode"] = custom_params["mode"]
"""
    (tmp_path / "configuration_it.py").write_text(text)
    yaml_file = {"model_config": {"custom_params": {"mode": "fused", "other": "fused"}}}
    found = own_configuration(tmp_path, "from configuration_it import Config\n", yaml_file, Path.read_text)
    assert (found.certain, found.n_layers, found.values["other"]) == ({"mode": "fused"}, 3, "plain")
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 5, "mode": "plain"}')
    found = own_configuration(tmp_path, "from configuration_it import Config\n", yaml_file, Path.read_text)
    assert found.certain == {"num_hidden_layers": 5, "mode": "fused"}


def test_nested_calls_need_no_note(tmp_path: Path) -> None:
    """``return self.lm_head(self.model(...))`` runs two units and nothing else."""
    shutil.copytree(RANKS.root, tmp_path / "project")
    plan = Plan((Scope("model.embed_tokens", "lm_head"),))
    change = source_change(plan_file(plan, layers=RANKS.layers), tmp_path / "project" / RANKS.model)
    assert "superkernel_scope(" in change.diff
    assert change.notes == ()


@pytest.mark.slow
@seed(0)
@settings(max_examples=40, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_random_plans_run_correctly_or_are_refused(data: st.DataObject, tmp_path_factory: Any, layout: Layout) -> None:
    """Points of spaces with parameters for layer kinds and for single layers, run on the real model."""
    space = space_of(layout, per_layer=data.draw(st.booleans(), "per_layer"))
    values = {name: data.draw(st.sampled_from(choices), name) for name, choices in space.choices.items()}
    plan = space.plan(values)
    if not plan.scopes:
        return
    project = tmp_path_factory.mktemp("random") / "project"
    shutil.copytree(TEMPLATE.root, project)
    check_source(plan, project, [unit.name for unit in layout.units])


def test_a_yaml_is_found_by_any_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An absolute path with a relative folder, or with ``..``; one outside of the folder is refused."""
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
    with pytest.raises(BadInputError, match="is outside of"):
        source_change(plan_file(ATTENTION), to, Path("outside.yaml"))


def test_the_command_shows_writes_and_undoes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The diff on standard output is a patch; with --json the last line contains it."""
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
