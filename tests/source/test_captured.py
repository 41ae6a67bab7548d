"""A plan for npugraph_ex in source code: begin and end as direct calls, one end on each way out, all of it undone."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from sktune.core.errors import BadInputError, PlanError
from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import PlanFile, write_plan
from sktune.core.scope_flavour import ScopeFlavour
from sktune.source import edits
from sktune.source.apply import source_change
from sktune.source.codemod import rewrite
from sktune.source.yaml_flag import turn_on_static_kernels
from tests.projects import N_LAYERS, TEMPLATE

MODEL = """
import torch
from torch import nn


class DecoderLayer(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.enable_superkernel = config.enable_superkernel
        self.self_attn = Attention()
        self.mlp = MLP()

    def forward(self, hidden_states, is_prefill, early=False):
        hidden_states = self.self_attn(hidden_states)
BODY

class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList([DecoderLayer(config, i) for i in range(2)])

    def forward(self, hidden_states, is_prefill, early=False):
        for layer in self.layers:
            hidden_states = layer(hidden_states, is_prefill, early)
        return hidden_states


class Attention(nn.Module):
    def forward(self, x):
        return x + 1


class MLP(nn.Module):
    def forward(self, x):
        return x * 2
"""
PLAN = Plan(tuple(Scope(f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp") for i in range(2)))


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return what the calls of ``torch.npu`` note."""
    noted: list[str] = []
    npu = SimpleNamespace(
        super_kernel_scope_begin=lambda label: noted.append(f"begin {label}"),
        super_kernel_scope_end=lambda label: noted.append(f"end {label}"),
    )
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    yield noted


def rewritten(body: str) -> str:
    """Return the model with ``body`` and the plan's scopes."""
    return rewrite(MODEL.replace("BODY", body), PLAN, 2, "executor.utils", flavour=ScopeFlavour.CAPTURED).text


def ran(source: str, **arguments: Any) -> float:
    """Return what the model computes from 1."""
    names: dict[str, Any] = {}
    exec(source, names)
    model = names["Model"](SimpleNamespace(enable_superkernel=True))
    return float(model(torch.tensor(1.0), **arguments))


BODIES = {
    "result returned": "        return self.mlp(hidden_states)\n",
    "name returned": "        hidden_states = self.mlp(hidden_states)\n        return hidden_states\n",
    "early return": """        if early:
            return hidden_states
        return self.mlp(hidden_states)
""",
    "early return in one line": """        if early: return hidden_states - 1
        hidden_states = self.mlp(hidden_states)
        return hidden_states
""",
    "both branches return": """        if early:
            return self.mlp(hidden_states) + 1
        else:
            return self.mlp(hidden_states)
""",
    "return in a context": """        with torch.no_grad():
            return self.mlp(hidden_states)
""",
    "attributes set inside": """        is_early, self.is_prefill = early, 1
        return self.mlp(hidden_states)
""",
    "loop inside": """        for result in range(3):
            if result == 1:
                break
        def unused():
            return 1
        return self.mlp(hidden_states) + result
""",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
@pytest.mark.parametrize("early", [False, True])
def test_each_way_out_ends_the_scope(marks: list[str], body: str, early: bool) -> None:
    """Once, after what the ``return`` computes; the result is that without scopes, and prefill has none."""
    expected = ran(MODEL.replace("BODY", body), is_prefill=False, early=early)
    source = rewritten(body)
    assert ran(source, is_prefill=False, early=early) == expected
    assert marks == [f"{what} self_attn_to_mlp_{i}" for i in range(2) for what in ("begin", "end")]
    marks.clear()
    assert ran(source, is_prefill=True, early=early) == expected
    assert not marks


def test_a_long_label_has_a_line_of_its_own(marks: list[str]) -> None:
    """At most 120 characters a line; nothing else differs."""
    unit = "self_attn_" + "of_a_long_name_" * 3 + "and_more"
    text = MODEL.replace("BODY", BODIES["early return"]).replace("self.self_attn", f"self.{unit}")
    plan = Plan(tuple(Scope(scope.first.replace("self_attn", unit), scope.last) for scope in PLAN.scopes))
    source = rewrite(text, plan, 2, "executor.utils", flavour=ScopeFlavour.CAPTURED).text
    assert max(map(len, source.splitlines())) <= 120
    assert ran(source, is_prefill=False) == ran(text, is_prefill=False)
    assert marks == [f"{what} {unit}_to_mlp_{i}" for i in range(2) for what in ("begin", "end")]


UNITS = [f"model.layers.{layer}.{unit}" for layer in range(3) for unit in ("self_attn", "mlp")]
SPANS = [(first, last) for first in range(len(UNITS)) for last in range(first, len(UNITS))]
DISJOINT = [(*one, *other) for one in SPANS for other in SPANS if one[1] < other[0]]


def entered(source: str, marks: list[str]) -> list[list[str]]:
    """Run the model with three layers; return the units in each scope, in the order of the scopes."""
    names: dict[str, Any] = {}
    exec(source.replace("range(2)", "range(3)"), names)
    model = names["Model"](SimpleNamespace(enable_superkernel=True))
    for name, module in model.named_modules():
        if f"model.{name}" in UNITS:
            module.register_forward_pre_hook(lambda *_, name=name: marks.append(f"model.{name}"))
    model(torch.tensor(1.0), is_prefill=False)
    scopes: list[list[str]] = []
    open_label = ""
    for mark in marks:
        what, _, label = mark.partition(" ")
        if what == "begin":
            assert not open_label
            open_label = label
            scopes.append([])
        elif what == "end":
            assert label == open_label
            open_label = ""
        elif open_label:
            scopes[-1].append(mark)
    assert not open_label
    marks.clear()
    return scopes


@pytest.mark.parametrize(
    ("body", "all_ends"),
    [("result returned", SPANS), ("both branches return", [*SPANS, *DISJOINT]), ("return in a context", SPANS)],
)
def test_a_scope_may_begin_in_one_layer_and_end_in_another(
    marks: list[str], body: str, all_ends: Sequence[tuple[int, ...]]
) -> None:
    """All scopes over three layers of two units each, and all pairs of them, which share the layer's source."""
    text = MODEL.replace("BODY", BODIES[body])
    for ends in all_ends:
        spans = list(zip(ends[::2], ends[1::2], strict=True))
        plan = Plan(tuple(Scope(UNITS[first], UNITS[last]) for first, last in spans))
        source = rewrite(text, plan, 3, "executor.utils", flavour=ScopeFlavour.CAPTURED).text
        assert entered(source, marks) == [UNITS[first : last + 1] for first, last in spans]


def test_scopes_over_two_layers_have_a_label_each(marks: list[str]) -> None:
    """The end says the number of the layer in which its scope began."""
    plan = Plan(tuple(Scope(UNITS[2 * layer + 1], UNITS[2 * layer + 2], name=f"s{layer}") for layer in range(2)))
    text = MODEL.replace("BODY", BODIES["name returned"])
    source = rewrite(text, plan, 3, "executor.utils", flavour=ScopeFlavour.CAPTURED).text
    assert 'super_kernel_scope_begin(f"s{self.layer_idx}")' in source
    assert 'super_kernel_scope_end(f"s{self.layer_idx - 1}")' in source
    assert entered(source, marks) == [UNITS[1:3], UNITS[3:5]]
    unnamed = Plan(tuple(Scope(scope.first, scope.last) for scope in plan.scopes))
    source = rewrite(text, unnamed, 3, "executor.utils", flavour=ScopeFlavour.CAPTURED).text
    assert 'super_kernel_scope_end(f"mlp_to_self_attn_{self.layer_idx - 1}")' in source


@pytest.mark.parametrize("early", [False, True])
def test_a_begin_and_its_end_are_in_the_same_branch(early: bool, marks: list[str]) -> None:
    """A unit in a branch that the source does not decide: its scope begins before the branch, as it ends after it."""
    body = """        if early:
            hidden_states = hidden_states - 1
            hidden_states = self.norm(hidden_states)
        return self.mlp(hidden_states)
"""
    text = MODEL.replace("BODY", body).replace("self.mlp = MLP()", "self.mlp = MLP()\n        self.norm = MLP()")
    for first, last, distance in (("norm", "mlp", 0), ("norm", "self_attn", 1), ("self_attn", "norm", 0)):
        plan = Plan(
            tuple(
                Scope(f"model.layers.{i}.{first}", f"model.layers.{i + distance}.{last}") for i in range(2 - distance)
            )
        )
        marks.clear()
        source = rewrite(text, plan, 2, "executor.utils", flavour=ScopeFlavour.CAPTURED).text
        ran(source, is_prefill=False, early=early)
        assert [mark.partition(" ")[0] for mark in marks] == ["begin", "end"] * (2 - distance)
        assert [mark.partition(" ")[2] for mark in marks[::2]] == [mark.partition(" ")[2] for mark in marks[1::2]]


def test_a_loop_over_layers_that_may_be_left_keeps_scopes_within_a_layer() -> None:
    """Else ``break`` would leave a scope open that ends in a later layer."""
    text = MODEL.replace("BODY", BODIES["name returned"]).replace("range(2)", "range(3)")
    call = "            hidden_states = layer(hidden_states, is_prefill, early)\n"
    text = text.replace(call, f"{call}            if early:\n                break\n")
    rewrite(text, PLAN, 3, "executor.utils", flavour=ScopeFlavour.CAPTURED)
    across = Plan((Scope("model.layers.0.self_attn", "model.layers.1.mlp"),))
    with pytest.raises(PlanError, match=r"and Model\.forward may return, or leave a loop, before"):
        rewrite(text, across, 3, "executor.utils", flavour=ScopeFlavour.CAPTURED)


def test_an_end_before_its_begin_is_refused() -> None:
    """Of one layer; an end in the next layer is after it."""
    text = MODEL.replace("BODY", BODIES["name returned"])
    plan = Plan((Scope("model.layers.0.mlp", "model.layers.0.self_attn"),))
    with pytest.raises(PlanError, match=r"its last unit 'model\.layers\.0\.self_attn' runs before its first one"):
        rewrite(text, plan, 2, "executor.utils", flavour=ScopeFlavour.CAPTURED)


@pytest.mark.parametrize("early", [False, True])
def test_an_end_that_may_not_be_reached_is_moved_out(early: bool, marks: list[str]) -> None:
    """A return before it, in the function where it would end, would leave the scope open: it ends in the caller."""
    plan = Plan((Scope("model.layers.0.self_attn", "model.layers.1.mlp"),))
    text = MODEL.replace("BODY", BODIES["early return"])
    ran(rewrite(text, plan, 2, "executor.utils", flavour=ScopeFlavour.CAPTURED).text, is_prefill=False, early=early)
    assert [mark.partition(" ")[0] for mark in marks] == ["begin", "end"]
    with pytest.raises(PlanError, match=r"start the program with the plan instead, which needs no edit"):
        rewrite(MODEL.replace("BODY", BODIES["name returned"]), plan, 3, "executor.utils")


def test_lines_of_the_model_stay_as_they_are() -> None:
    """The scope adds two guarded calls and reindents nothing."""
    before, after = MODEL.replace("BODY", BODIES["name returned"]), rewritten(BODIES["name returned"])
    added = [line for line in after.splitlines() if line not in before.splitlines()]
    assert added == [
        "        if self.enable_superkernel and not is_prefill:",
        '            torch.npu.super_kernel_scope_begin(f"self_attn_to_mlp_{self.layer_idx}")',
        "        if self.enable_superkernel and not is_prefill:",
        '            torch.npu.super_kernel_scope_end(f"self_attn_to_mlp_{self.layer_idx}")',
    ]
    assert [line for line in after.splitlines() if line not in added] == before.splitlines()


def test_what_a_condition_depends_on_does_not_change_inside() -> None:
    """The end would be decided by another value than the begin."""
    with pytest.raises(PlanError, match="assigns 'is_prefill' within the scope"):
        rewritten("        is_prefill = True\n        return self.mlp(hidden_states)\n")


def test_scopes_by_hand_and_the_refusal_of_the_mode_go(marks: list[str]) -> None:
    """Marks of either path are replaced, and the check that refuses SuperKernels in this mode is removed."""
    body = """        if self.enable_superkernel:
            torch.npu.super_kernel_scope_begin("by_hand")
        with superkernel_scope(self.enable_superkernel, "ge", ""):
            hidden_states = self.mlp(hidden_states)
        torch.npu.super_kernel_scope_end("by_hand")
        return hidden_states

    def check(self, exe_mode, enable_superkernel):
        if exe_mode == "npugraph_ex" and enable_superkernel:
            raise ValueError("npugraph_ex does not support superkernel.")
        if exe_mode == "eager" and enable_superkernel:
            raise ValueError("eager does not support superkernel.")
"""
    result = rewrite(MODEL.replace("BODY", body), PLAN, 2, "executor.utils", flavour=ScopeFlavour.CAPTURED)
    assert "by_hand" not in result.text and "superkernel_scope(" not in result.text
    assert "npugraph_ex" not in result.text and "eager does not support" in result.text
    notes = "\n".join(result.notes)
    assert 'is replaced: "by_hand"' in notes and 'is replaced: "ge"' in notes
    assert '`if exe_mode == "npugraph_ex" and enable_superkernel: raise ...` is removed' in notes
    ran(result.text, is_prefill=False)
    assert len(marks) == 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the model's folder in a copy of the project, in the mode npugraph_ex."""
    shutil.copytree(TEMPLATE.root, tmp_path / "project")
    folder = tmp_path / "project" / TEMPLATE.model
    for path in folder.rglob("*.yaml"):
        path.write_text(path.read_text().replace('exe_mode: "ge_graph"', "exe_mode: npugraph_ex"))
    return folder


def captured(**options: Any) -> PlanFile:
    """Return a plan file for npugraph_ex, with options of the whole step."""
    scopes = tuple(Scope(f"model.layers.{i}.self_attn", f"model.layers.{i}.self_attn") for i in range(N_LAYERS))
    plan = Plan(scopes, tuple(options.items()))
    return PlanFile.model_validate(yaml.safe_load(write_plan(plan, {}, ScopeFlavour.CAPTURED, N_LAYERS)))


def test_a_project_is_changed_and_restored(folder: Path) -> None:
    """Scopes, flag and static kernels are on; undone, all files are the same bytes."""
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    change = source_change(captured(), folder)
    change.write()
    assert "torch.npu.super_kernel_scope_begin(" in change.diff
    (settings,) = (yaml.safe_load(each.after) for each in change.changes if each.path.suffix == ".yaml")
    assert "enable_static_kernel: True" in change.diff and "enable_superkernel: True" in change.diff
    assert settings
    edits.undo(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


def test_a_plan_of_inductor_is_written_for_the_programs_own_mode(folder: Path) -> None:
    """Its scopes alone say nothing of the path."""
    file = captured().model_copy(update={"backend": ScopeFlavour.REGION})
    assert "torch.npu.super_kernel_scope_begin(" in source_change(file, folder).diff
    for path in folder.rglob("*.yaml"):
        path.write_text(path.read_text().replace("exe_mode: npugraph_ex", "exe_mode: ge_graph"))
    assert "with superkernel_scope(" in source_change(file, folder).diff


def test_where_the_program_passes_other_options_is_said(folder: Path) -> None:
    """For each place, with what to write there; nothing where it has them."""
    runner = folder / "runner.py"
    runner.write_text('options = {"static_kernel_compile": True}\n')
    wanted = "{'early_start': 1}"
    (note,) = (note for note in source_change(captured(early_start=1), folder).notes if "runner.py:1" in note)
    assert f'"super_kernel_optimize": True, "super_kernel_optimize_options": {wanted}' in note
    runner.write_text('options = {"static_kernel_compile": True, "super_kernel_optimize": False}\n')
    assert any("runner.py:1 does not turn SuperKernels on" in note for note in source_change(captured(), folder).notes)
    entries = '"super_kernel_optimize": on, "super_kernel_optimize_options": '
    runner.write_text(f'options = {{"static_kernel_compile": True, {entries}{{}}}}\n')
    (note,) = (note for note in source_change(captured(early_start=1), folder).notes if "runner.py:1" in note)
    assert note.endswith(f"write its own there: {wanted}")
    runner.write_text(f'options = {{"static_kernel_compile": True, {entries}{wanted}}}\n')
    assert not [note for note in source_change(captured(early_start=1), folder).notes if "runner.py" in note]


def test_a_draft_model_is_named(folder: Path) -> None:
    """The switch reaches it, and it has no scopes."""
    assert not [note for note in source_change(captured(), folder).notes if "draft model" in note]
    for path in folder.rglob("*.yaml"):
        path.write_text(f"{path.read_text()}  next_n: 1\n")
    assert [note for note in source_change(captured(), folder).notes if note.startswith("next_n is 1: the draft model")]


def test_a_yaml_of_the_other_mode_is_refused(folder: Path) -> None:
    """By name, with its line."""
    for path in folder.rglob("*.yaml"):
        path.write_text(path.read_text().replace("exe_mode: npugraph_ex", "exe_mode: ge_graph"))
    with pytest.raises(BadInputError, match=r"exe_mode is 'ge_graph', but the plan's scopes are for npugraph_ex"):
        source_change(captured(), folder)


MODE = "exe_mode: npugraph_ex\n"
ON = "enable_static_kernel: True"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{MODE}model_config:\n  a: 1\n", f"{MODE}model_config:\n  {ON}\n  a: 1\n"),
        (f"model_config:\n  {MODE}", f"model_config:\n  {ON}\n  {MODE}"),
        ("a: {enable_static_kernel: false}\n", "a: {enable_static_kernel: True}\n"),
        (MODE, f"{ON}\n{MODE}"),
    ],
)
def test_static_kernels_are_turned_on_where_programs_read_them(text: str, expected: str) -> None:
    """In ``model_config``, or beside the mode; once is enough."""
    assert turn_on_static_kernels(text, Path("a.yaml")) == expected
    assert turn_on_static_kernels(expected, Path("a.yaml")) == expected
