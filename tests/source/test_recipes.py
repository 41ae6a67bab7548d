"""Shapes of code that the recipes have: where the flag is read, draft layers, metadata, inner loops, other depths."""

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from sktune.core.codec import encoded
from sktune.core.errors import BadInputError, PlanError
from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import PlanFile
from sktune.source import edits
from sktune.source.apply import SourceChange, source_change
from sktune.source.values import Reading
from sktune.source.yaml_flag import turn_on
from tests.builders import one_line_error

PROJECT = Path(__file__).parents[1] / "projects" / "recipes"
HIDDEN = 8
DEEP = {"layers": 6, "kinds": "2 dense, 4 moe"}
"""The layers of the drafts' own configuration."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a copy of the project, whose modules can be imported in this test only."""
    shutil.copytree(PROJECT, tmp_path / "recipes")
    monkeypatch.syspath_prepend(str(tmp_path / "recipes"))
    loaded = set(sys.modules)
    shadowed = {name: sys.modules.pop(name) for name in loaded if name.partition(".")[0] in ("executor", "models")}
    yield tmp_path / "recipes"
    for name in set(sys.modules) - loaded | {name for name in sys.modules if name.startswith(("executor", "models"))}:
        if name.partition(".")[0] in ("executor", "models"):
            del sys.modules[name]
    sys.modules.update(shadowed)


def plan_file(scopes: Sequence[tuple[str, ...]], among: range, **values: Any) -> PlanFile:
    """Return a plan with the same scopes, of first and last unit and perhaps label, in several layers."""
    plan = Plan(
        tuple(
            Scope(f"layers.{i}.{first}", f"layers.{i}.{last}", (), *(label.format(i) for label in labels))
            for i in among
            for first, last, *labels in scopes
        )
    )
    return PlanFile.model_validate({"version": 1, "backend": "npu", "plan": encoded(plan), **values})


def applied(project: Path, model: str, file: PlanFile, settings: str = "") -> SourceChange:
    """Write a plan into a model of the project."""
    folder = project / "models" / model
    change = source_change(file, folder, Path("config", settings) if settings else None)
    change.write()
    return change


def built(project: Path, model: str, name: str, settings: str, config: Any) -> tuple[Any, Callable[[], list[Any]]]:
    """Return the class's model, made from its YAML as the program makes it, and a function that returns its marks."""
    importlib.invalidate_caches()
    executor: Any = importlib.import_module("executor.config")
    helpers: Any = importlib.import_module("executor.utils")
    module = importlib.import_module(f"models.{model}.models.modeling_{model}")
    document = yaml.safe_load((project / "models" / model / "config" / settings).read_text())
    torch.manual_seed(0)
    instance = getattr(module, name)(config, executor.InferenceConfig.from_dict(document)).eval().requires_grad_(False)
    helpers.entered.clear()

    def marks() -> list[Any]:
        seen = list(helpers.entered)
        helpers.entered.clear()
        return seen

    return instance, marks


def labels(marks: list[Any]) -> list[str]:
    """Return the labels of the scopes that were entered."""
    return [label for action, kind, label, *_ in marks if action == "enter" and kind == "scope"]


def drafts_config() -> Any:
    """Return the configuration that the folder's code gives by default."""
    return importlib.import_module("models.drafts.models.configuration_drafts").DraftsConfig()


def with_weights(project: Path, configuration: str) -> None:
    """Give the drafts a folder of weights that has a configuration, relative to the folder of the YAML."""
    folder = project / "models" / "drafts"
    path = folder / "config" / "drafts_1_rank.yaml"
    path.write_text(path.read_text().replace("/nowhere/drafts", "weights"))
    (folder / "weights").mkdir()
    (folder / "weights" / "config.json").write_text(configuration)


SIX = '{"num_hidden_layers": 6, "first_k_dense_replace": 2, "n_routed_experts": 4}'
MODES = {"decode": SimpleNamespace(is_prefill=False), "prefill": SimpleNamespace(is_prefill=True)}
TOKEN = torch.ones(1, HIDDEN)


def test_the_program_reads_the_flag_where_it_is_written(project: Path) -> None:
    """The YAML has no ``custom_params``, and the configuration class drops every other key."""
    applied(project, "drafts", plan_file([("mlp", "mlp")], range(6), **DEEP))
    model, marks = built(project, "drafts", "DraftsForCausalLM", "drafts_1_rank.yaml", drafts_config())
    assert model.model.infer_config.model_config.custom_params == {"enable_superkernel": True}
    model(TOKEN, MODES["decode"])
    assert labels(marks()) == [f"mlp_{layer}" for layer in range(6)]
    model(TOKEN, MODES["prefill"])
    assert labels(marks()) == []


def test_draft_layers_get_no_scopes(project: Path) -> None:
    """They are made from the decoder layer's own class, with numbers after the last; outputs are as before."""
    model, marks = built(project, "drafts", "DraftsForCausalLM", "drafts_1_rank.yaml", drafts_config())
    before = model(TOKEN, MODES["decode"])
    for name in [name for name in sys.modules if name.startswith("models")]:
        del sys.modules[name]
    scopes = [("input_layernorm", "post_attention_layernorm"), ("mlp", "mlp")]
    change = applied(project, "drafts", plan_file(scopes, range(6), **DEEP))
    assert "draft layers get no scopes: DraftsModelMTPLayer" in change.notes
    draft, marks = built(project, "drafts", "DraftsModelMTP", "drafts_1_rank.yaml", drafts_config())
    draft(TOKEN, MODES["decode"])
    assert labels(marks()) == []
    model, marks = built(project, "drafts", "DraftsForCausalLM", "drafts_1_rank.yaml", drafts_config())
    assert torch.equal(model(TOKEN, MODES["decode"]), before)
    seen = labels(marks())
    assert len(seen) == len(set(seen)) == 12


def test_draft_layers_may_have_a_class_of_their_own(project: Path) -> None:
    """It runs the methods of the decoder layer, its base."""
    source = project / "models/drafts/models/modeling_drafts.py"
    text = source.read_text().replace("i): DecoderLayer(", "i): DraftLayer(")
    source.write_text(
        text.replace(
            "\n\n\nclass DraftsModel(", "\n\n\nclass DraftLayer(DecoderLayer):\n    pass\n\n\nclass DraftsModel("
        )
    )
    change = applied(project, "drafts", plan_file([("mlp", "mlp")], range(6), **DEEP))
    assert "draft layers get no scopes: DraftsModelMTPLayer" in change.notes
    draft, marks = built(project, "drafts", "DraftsModelMTP", "drafts_1_rank.yaml", drafts_config())
    draft(TOKEN, MODES["decode"])
    assert labels(marks()) == []


@pytest.mark.parametrize(
    ("imported", "of_module"),
    [
        ("from .modeling_drafts import DecoderLayer, DraftsModel, Norm", ""),
        ("from .modeling_drafts import *", ""),
        ("from . import modeling_drafts as base", "base."),
    ],
)
def test_a_draft_in_another_file_is_told(project: Path, imported: str, of_module: str) -> None:
    """Its layers have numbers after the last one, as those of the recipes do: that cannot be seen here."""
    source = project / "models/drafts/models/modeling_drafts.py"
    text, draft = source.read_text().split("\n\n\nclass DraftsModelMTPLayer(")
    draft = draft.replace("DecoderLayer(", f"{of_module}DecoderLayer(")
    source.write_text(text + "\n")
    source.with_name("convert.py").write_bytes("# 权重\n".encode("gbk"))  # a script that is no part of it
    source.with_name("draft.py").write_text(
        f"import torch\nfrom torch import nn\n{imported}\n\n\nclass DraftsModelMTPLayer({draft}"
    )
    (note,) = [
        note
        for note in applied(project, "drafts", plan_file([("mlp", "mlp")], range(6), **DEEP)).notes
        if "models/draft.py" in note
    ]
    assert note.startswith("layers with number 6 or more get no scopes, as draft layers have")
    assert "and not self.is_draft_layer" in source.read_text()


def test_a_plan_that_fits_two_files_is_refused(project: Path) -> None:
    """One of them may be a copy that no program runs."""
    source = project / "models/drafts/models/modeling_drafts.py"
    shutil.copy(source, source.with_name("modeling_backup.py"))
    with pytest.raises(PlanError, match=r"fits models/modeling_backup\.py and models/modeling_drafts\.py; rename"):
        applied(project, "drafts", plan_file([("mlp", "mlp")], range(6), **DEEP))


def test_an_attribute_with_options_is_no_flag(project: Path) -> None:
    """Though it comes first, and has SuperKernels in its name."""
    source = project / "models/drafts/models/modeling_drafts.py"
    flag = "        self.enable_superkernel = self.infer_config"
    source.write_text(source.read_text().replace(flag, f'        self.superkernel_options = "x"\n{flag}'))
    plan = Plan((Scope("layers.0.input_layernorm", "layers.5.mlp"),))
    file = PlanFile.model_validate({"version": 1, "backend": "npu", "plan": encoded(plan), **DEEP})
    applied(project, "drafts", file)
    assert "superkernel_options and" not in source.read_text()
    assert "self.enable_superkernel and" in source.read_text()


def test_units_inside_a_draft_layers_attention_are_left_alone_too(project: Path) -> None:
    """Where the attention sets its number to 0 in a draft, its parameter decides."""
    applied(project, "drafts", plan_file([("self_attn.o_proj", "self_attn.o_proj")], range(6), **DEEP))
    for name, count in (("DraftsForCausalLM", 6), ("DraftsModelMTP", 0)):
        model, marks = built(project, "drafts", name, "drafts_1_rank.yaml", drafts_config())
        model(TOKEN, MODES["decode"])
        assert len(labels(marks())) == count


def test_a_draft_layer_that_cannot_be_told_from_the_models_is_refused(project: Path) -> None:
    """Its number is not known to be after the last layer."""
    path = project / "models" / "drafts" / "models" / "modeling_drafts.py"
    path.write_text(
        path.read_text().replace("self.infer_config, self.mtp_start_layer_idx + i)", "self.infer_config, i)")
    )
    with pytest.raises(PlanError, match=r"also runs in draft layers \(DraftsModelMTPLayer\), which must get no scopes"):
        applied(project, "drafts", plan_file([("mlp", "mlp")], range(6), **DEEP))


def test_a_plan_of_few_layers_is_carried_by_kind(project: Path) -> None:
    """A preset's 3 layers, 1 dense, become the model's own 6, 2 dense."""
    with_weights(project, SIX)
    change = applied(project, "drafts", plan_file([("mlp", "mlp")], range(1, 3), layers=3, kinds="1 dense, 2 moe"))
    assert any(note.startswith("carried from the plan's 3 layers (1 dense, 2 moe)") for note in change.notes)
    model, marks = built(project, "drafts", "DraftsForCausalLM", "drafts_1_rank.yaml", drafts_config())
    model(TOKEN, MODES["decode"])
    assert labels(marks()) == [f"mlp_{layer}" for layer in range(2, 6)]


@pytest.mark.parametrize("skipped", [0, 1])
def test_a_condition_that_the_branch_around_a_scope_implies_is_not_repeated(project: Path, skipped: int) -> None:
    """``if self.is_moe`` is already only the layers from 2 on; some of them need a condition."""
    with_weights(project, SIX)
    change = applied(project, "drafts", plan_file([("mlp", "mlp")], range(2 + skipped, 6), **DEEP))
    assert ("self.layer_idx >= 3" in change.diff) == bool(skipped)
    assert ("self.layer_idx >=" in change.diff) == bool(skipped)
    model, marks = built(project, "drafts", "DraftsForCausalLM", "drafts_1_rank.yaml", drafts_config())
    model(TOKEN, MODES["decode"])
    assert labels(marks()) == [f"mlp_{layer}" for layer in range(2 + skipped, 6)]


@pytest.mark.parametrize(
    ("among", "values", "reason"),
    [
        (range(1, 3), {"layers": 3}, "add to the plan file which layers are of one kind"),
        (range(2, 3), {"layers": 3, "kinds": "1 dense, 2 moe"}, "its moe layers have different scopes"),
        (range(1, 3), {"layers": 3, "kinds": "1 a, 1 b, 1 c"}, "is for layers of 3 kinds"),
        (range(1, 3), {"layers": 3, "kinds": "1 dense, 3 moe"}, "correct one of them"),
    ],
)
def test_a_plan_for_other_layers_is_refused_if_its_place_is_open(
    project: Path, among: range, values: dict[str, Any], reason: str
) -> None:
    """Nothing is written."""
    with_weights(project, SIX)
    with pytest.raises(PlanError, match=reason):
        applied(project, "drafts", plan_file([("mlp", "mlp")], among, **values))


@pytest.mark.parametrize(
    ("among", "values", "condition"),
    [
        (range(1, 6), {"layers": 6, "kinds": "1 dense, 5 moe"}, "self.layer_idx >= 1"),
        (range(1, 6), {"layers": 6}, "self.layer_idx >= 1"),
        (range(12), {"layers": 12, "kinds": "1 dense, 11 moe"}, ""),
        (range(1, 12), {"layers": 12, "kinds": "1 dense, 11 moe"}, "refused"),
        (range(1, 12, 2), {"layers": 12}, "refused"),
    ],
)
def test_the_defaults_of_the_code_do_not_change_a_plan(
    project: Path, among: range, values: dict[str, Any], condition: str
) -> None:
    """The 6 layers, 2 of them dense, of ``configuration_drafts.py`` may not be the model's own."""
    file = plan_file([("self_attn", "self_attn")], among, **values)
    if condition == "refused":
        with pytest.raises(
            PlanError, match=r"has 6 by the defaults in configuration_drafts\.py, which the config\.json"
        ):
            applied(project, "drafts", file)
        return
    change = applied(project, "drafts", file)
    assert (condition in change.diff) and ("self.layer_idx >= " in change.diff) == bool(condition)
    assert not any("carried" in note for note in change.notes)
    is_told = "the model has 6 by the defaults in configuration_drafts.py" in "".join(change.notes)
    assert is_told == ("kinds" in values)


def test_a_unit_that_some_layers_do_not_have_is_refused_for_them(project: Path) -> None:
    """The ``config.json`` decides the class of each layer's feed-forward; ``gate`` is in that of the last four."""
    gate = [("mlp.gate", "mlp.gate")]
    reason = r"no call of 'layers\.[01]\.mlp\.gate', which runs in other layers, is seen"
    with pytest.raises(PlanError, match=rf"by the defaults in configuration_drafts\.py, .*{reason}.* config\.json"):
        applied(project, "drafts", plan_file(gate, range(6), layers=6))
    with_weights(project, SIX)
    with pytest.raises(PlanError, match=rf"py: no class runs .*{reason}"):
        applied(project, "drafts", plan_file(gate, range(6), layers=6))
    with pytest.raises(PlanError, match="MoE has no attribute for its layer"):  # found there
        applied(project, "drafts", plan_file(gate, range(2, 6), layers=6))


def test_the_weights_configuration_takes_precedence(project: Path) -> None:
    """The ``config.json`` at the YAML's ``model_path``, here relative to the folder, has other layers."""
    with_weights(project, '{"num_hidden_layers": 4, "first_k_dense_replace": 1, "n_routed_experts": 4}')
    file = plan_file([("self_attn", "self_attn")], range(1, 3), layers=3, kinds="1 dense, 2 moe")
    change = source_change(file, project / "models" / "drafts")
    assert "self.layer_idx >= 1" in change.diff
    assert any("to the model's 4" in note for note in change.notes)


def test_more_layers_than_any_model_has_are_refused(project: Path) -> None:
    """In one line that names where the number is from, and at once."""
    folder = project / "models" / "drafts"
    (folder / "config.json").write_text('{"num_hidden_layers": 1000000000000000000000}')
    with one_line_error(BadInputError, r"config\.json: more than 10000 decoder layers"):
        source_change(plan_file([("mlp", "mlp")], range(1, 3), layers=3, kinds="1 dense, 2 moe"), folder)


def test_metadata_is_read_as_the_function_itself_reads_it(project: Path) -> None:
    """A dictionary has no attribute ``is_prefill``."""
    applied(project, "metadata", plan_file([("self_attn", "self_attn"), ("mlp", "mlp")], range(8), layers=8))
    config = SimpleNamespace(hidden_size=HIDDEN, num_hidden_layers=8)
    model, marks = built(project, "metadata", "MetadataModel", "metadata.yaml", config)
    decode = {"is_prefill": False, "decode_metadata": {"is_prefill": False}}
    model(TOKEN, decode)
    assert len(labels(marks())) == 16
    model(TOKEN, {"is_prefill": True})
    assert labels(marks()) == []


def test_layers_that_alternate_have_a_short_condition(project: Path) -> None:
    """Not a list of thirty numbers."""
    chosen = [layer for layer in range(40) if layer % 4 != 3]
    file = plan_file([("mlp", "mlp")], range(40), layers=40)
    scopes = [scope for scope in file.plan.scopes if int(scope.first.split(".")[1]) in chosen]
    file = file.model_copy(update={"plan": file.plan.model_copy(update={"scopes": scopes})})
    diff = source_change(file, project / "models" / "metadata").diff
    assert "self.layer_idx % 4 != 3" in diff


SPLIT = [
    ("input_layernorm.0", "self_attn.0", "scope_{}_part1"),
    ("mlp", "mlp", "scope_{}_moe"),
    ("mlps.0", "mlps.1", "scope_{}_main"),
]


def test_the_three_way_split_on_streams_and_cores_is_applied(project: Path) -> None:
    """The YAML decides which way a decode step takes; the loop of two is no loop over layers; labels are the plan's."""
    applied(project, "streams", plan_file(SPLIT, range(3), layers=3), "streams.yaml")
    config = SimpleNamespace(hidden_size=HIDDEN, num_hidden_layers=3)
    model, marks = built(project, "streams", "StreamsModel", "streams.yaml", config)
    model(TOKEN)
    entered = [mark[1:3] for mark in marks() if mark[0] == "enter"]
    assert entered == [
        mark
        for layer in range(3)
        for mark in (
            ("scope", f"scope_{layer}_part1"),
            ("stream", "1"),
            ("cores", "8"),
            ("scope", f"scope_{layer}_moe"),
            ("cores", "16"),
            ("scope", f"scope_{layer}_main"),
        )
    ]
    model(TOKEN, is_prefill=True)
    assert labels(marks()) == []


def test_what_the_other_way_cannot_express_is_refused_with_the_reason(project: Path) -> None:
    """On one stream the two halves of a layer are passes of a loop."""
    with pytest.raises(PlanError, match="begins in one iteration of the loop inside the layer"):
        applied(project, "streams", plan_file(SPLIT, range(3), layers=3), "one_stream.yaml")


def test_a_pass_of_the_loop_inside_a_layer_can_have_a_scope(project: Path) -> None:
    """With a condition on the loop's variable."""
    file = plan_file([("input_layernorm.1", "self_attn.1")], range(3), layers=3)
    change = applied(project, "streams", file, "one_stream.yaml")
    assert "and i == 1" in change.diff
    config = SimpleNamespace(hidden_size=HIDDEN, num_hidden_layers=3)
    model, marks = built(project, "streams", "StreamsModel", "one_stream.yaml", config)
    model(TOKEN)
    assert labels(marks()) == [f"input_layernorm_1_to_self_attn_1_{layer}" for layer in range(3)]


def test_modules_of_one_layer_that_share_their_code_are_refused(project: Path) -> None:
    """The code of one attention cannot tell which of the two it is."""
    file = plan_file([("self_attn.0.o_proj", "self_attn.0.o_proj")], range(3), layers=3)
    with pytest.raises(PlanError, match=r"share Attention\.absorb"):
        applied(project, "streams", file, "streams.yaml")


def test_scopes_written_by_hand_are_named_and_leave_no_dead_names(project: Path) -> None:
    """The note has their label and options."""
    change = applied(project, "drafts", plan_file([("mlp", "mlp")], range(6), **DEEP))
    note = next(note for note in change.notes if "written by hand" in note)
    assert "decode_layer" in note and '"stream-fusion=1" or "option_xxx2"' in note
    text = (project / "models" / "drafts" / "models" / "modeling_drafts.py").read_text()
    assert "option" not in text and 'decode_layer"' not in text
    assert "enable_multi_streams" in text


def test_a_large_scope_written_by_hand_is_removed(project: Path) -> None:
    """No dead ``with`` is left, whatever it is around; ``--undo`` restores it."""
    path = project / "models" / "drafts" / "models" / "modeling_drafts.py"
    loop = "            for decoder_layer in self.layers:\n"
    assert loop in path.read_text()
    path.write_text(path.read_text().replace(loop, loop + "                assert self is not None\n" * 30))
    before = path.read_text()
    change = applied(project, "drafts", plan_file([("mlp", "mlp")], range(6), **DEEP))
    assert "is replaced" in next(note for note in change.notes if "written by hand" in note)
    text = path.read_text()
    assert text.count("with superkernel_scope(") == 1 and "label" not in text
    assert "            assert self is not None\n" * 30 in text
    edits.undo(project / "models" / "drafts")
    assert path.read_text() == before


def test_a_scope_that_encloses_a_change_of_stream_or_cores_is_noted(project: Path) -> None:
    """GE may split it there."""
    file = plan_file([("input_layernorm.0", "mlp")], range(3), layers=3)
    notes = applied(project, "streams", file, "streams.yaml").notes
    assert any("encloses npu_stream_switch" in note for note in notes)
    assert any("encloses limit_core_num" in note for note in notes)


CUSTOM = Reading("infer_config", ("model_config", "custom_params", "enable_superkernel"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "model_config:\n  a: 1 # one\n  # two\n\ndata: 2\n",
            "model_config:\n  a: 1 # one\n  custom_params:\n    enable_superkernel: True\n  # two\n\ndata: 2\n",
        ),
        ("model_config: {a: 1}\n", "model_config: {custom_params: {enable_superkernel: True}, a: 1}\n"),
        ("model_config:\n  custom_params: {}\n", "model_config:\n  custom_params: {enable_superkernel: True}\n"),
        (
            "model_config:\n  custom_params: # none\n  a: 1\n",
            "model_config:\n  custom_params:\n    enable_superkernel: True # none\n  a: 1\n",
        ),
        (
            "model_config:\n  a:\n  - 1\n  - 2",
            "model_config:\n  a:\n  - 1\n  - 2\n  custom_params:\n    enable_superkernel: True",
        ),
        (
            "model_config:\n  enable_superkernel: True\n  custom_params:\n    a: 1\n",
            "model_config:\n  enable_superkernel: True\n  custom_params:\n    enable_superkernel: True\n    a: 1\n",
        ),
        ("a: 1\n", "a: 1\nmodel_config:\n  custom_params:\n    enable_superkernel: True\n"),
    ],
)
def test_the_flag_is_written_where_the_program_reads_it(text: str, expected: str) -> None:
    """With the mappings that are missing; comments, order and formatting are kept."""
    assert turn_on(text, Path("a.yaml"), [CUSTOM]) == expected
    assert turn_on(expected, Path("a.yaml"), [CUSTOM]) == expected
    read: Any = yaml.safe_load(expected)
    assert read["model_config"]["custom_params"]["enable_superkernel"] is True


@pytest.mark.parametrize(
    ("text", "reading", "message"),
    [
        ("model_config: 1\n", CUSTOM, "has no mapping model_config to hold enable_superkernel"),
        ("- 1\n", CUSTOM, "has no mapping of settings"),
        ("a: 1\n", Reading("config", ("enable_superkernel",)), "the source does not show where the program reads it"),
        ("a: {enable_superkernel: 1}\nb: {enable_superkernel: 1}\n", None, "in 2 places"),
    ],
)
def test_a_place_that_is_not_known_is_refused(text: str, reading: Reading | None, message: str) -> None:
    """Instead of writing the flag where nothing reads it."""
    with pytest.raises(BadInputError, match=message):
        turn_on(text, Path("a.yaml"), [reading])
