"""A model folder's own code runs only if the user allows it, from where it is, and counts as part of the target."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sktune.core.errors import BadInputError, ExitCode, TargetError
from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import write_plan
from sktune.core.space import SpaceSpec
from sktune.targets import ConfigSpec, TargetSpec, describe
from sktune.targets.base import decode_inputs
from sktune.targets.loading import load
from sktune.targets.tracing import trace_layout
from sktune.tuning.recheck import RecheckRequest, recheck
from sktune.tuning.request import Request
from tests.builders import ROOT, one_line_error, sktune_command, sktune_process

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
CONFIGURATION = """
from transformers import LlamaConfig

class OwnConfig(LlamaConfig):
    model_type = "own_llama"
"""
MODELING = """
from pathlib import Path

from transformers import LlamaForCausalLM

from .configuration_own import OwnConfig
from .scaling import SCALE

Path(__file__).with_name("executed").touch()

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig

    def forward(self, input_ids=None, past_key_values=None, use_cache=None, **keywords):
        output = super().forward(input_ids=input_ids, past_key_values=past_key_values, use_cache=use_cache, **keywords)
        output.logits = output.logits * SCALE
        return output
"""
OWN = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}


def write_folder(folder: Path, auto_map: dict[str, Any] | None = None, **values: Any) -> Path:
    """Write a model folder with its own code."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "own_llama", "auto_map": OWN if auto_map is None else auto_map, **SIZES, **values}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "configuration_own.py").write_text(CONFIGURATION)
    (folder / "modeling_own.py").write_text(MODELING)
    (folder / "scaling.py").write_text("SCALE = 2.0\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a model folder with its own code."""
    return write_folder(tmp_path / "own.model-1")


def spec_of(folder: Path, **values: Any) -> ConfigSpec:
    """Return the spec of a folder whose code is allowed to run."""
    spec, _ = describe(str(folder), trust=True, **values)
    assert isinstance(spec, ConfigSpec)
    return spec


def logits(spec: TargetSpec) -> torch.Tensor:
    """Return what the model's first decode step returns."""
    target = load(spec)
    with torch.no_grad():
        out: torch.Tensor = target.decode_step(*decode_inputs(target, 0, 1)[0])
    return out


@pytest.mark.parametrize("command", [["inspect"], ["search", "--backend=sim"]])
def test_code_does_not_run_unasked(folder: Path, tmp_path: Path, command: list[str]) -> None:
    """One line names the files and the flag; the exit code is that of bad input; nothing is executed."""
    runs = [] if command == ["inspect"] else [f"--runs={tmp_path / 'runs'}"]
    done = sktune_command(*command, "--model", str(folder), *runs)
    assert done.returncode == ExitCode.BAD_INPUT
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert "configuration_own.py, modeling_own.py" in line and line.endswith("run it with --trust")
    assert not (folder / "executed").exists()


def test_a_model_that_transformers_has_is_taken_from_there(folder: Path) -> None:
    """Published checkpoints often bring code that transformers has since adopted."""
    known = write_folder(folder, {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}, model_type="llama")
    assert type(load(describe(str(known))[0]).module).__module__.startswith("transformers.")
    assert not (known / "executed").exists()


def test_code_that_is_allowed_runs_where_it_is(folder: Path) -> None:
    """With its relative imports; transformers keeps no copy, and other models are not affected."""
    target = load(spec_of(folder))
    assert sys.modules[type(target.module).__module__].__file__ == str(folder / "modeling_own.py")
    assert not any(name.startswith("transformers_modules") for name in sys.modules)
    layout = trace_layout(target, SpaceSpec())
    assert [layer.kind for layer in layout.layers] == ["dense", "dense"]
    plain = write_folder(folder.parent / "plain", {}, model_type="llama")
    assert torch.equal(logits(spec_of(folder)), 2 * logits(describe(str(plain))[0]))


def test_a_change_to_any_file_of_the_code_counts(folder: Path) -> None:
    """In the fingerprint, and in the next model that is loaded in this process; moving the folder does not."""
    spec = spec_of(folder)
    before, first = spec.fingerprint(), logits(spec)
    assert replace(spec, trust=False).fingerprint() != before
    shutil.copytree(folder, folder.parent / "moved" / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    assert spec_of(folder.parent / "moved" / folder.name).fingerprint() == before
    (folder / "scaling.py").write_text("SCALE = 16.0\n")
    assert spec.fingerprint() != before
    assert torch.equal(logits(spec), 8 * first)
    (folder / "sub").mkdir()
    below = spec.fingerprint()
    (folder / "sub" / "more.py").write_text("")
    assert spec.fingerprint() != below


@pytest.mark.parametrize(
    ("auto_map", "message"),
    [
        ({"AutoModelForCausalLM": "../outside.Own"}, r"auto_map has '../outside.Own' .* name FILE.CLASS of a file"),
        ({"AutoModelForCausalLM": "other/repo--modeling_own.Own"}, "is in another repository, other/repo: copy its"),
        ({"AutoModelForCausalLM": "nowhere.Own"}, "name FILE.CLASS of a file in this folder"),
        ({"AutoModelForCausalLM": "modeling_own.Other"}, "cannot be imported: AttributeError: .*'Other'; fix the file"),
        ({"AutoModelForCausalLM": "broken.Own"}, "broken.py cannot be imported: ModuleNotFoundError: .*install what"),
        ({"AutoModelForCausalLM": "failing.Own"}, "the code in .* fails: RuntimeError: no model today; fix it"),
    ],
)
def test_code_that_cannot_run_is_refused_in_a_line(folder: Path, auto_map: dict[str, str], message: str) -> None:
    """Names of the configuration do not leave the folder."""
    (folder.parent / "outside.py").write_text("raise SystemExit")
    (folder / "broken.py").write_text("import nowhere_at_all\n")
    (folder / "failing.py").write_text(
        "from transformers import LlamaForCausalLM\n\nclass Own(LlamaForCausalLM):\n"
        "    def __init__(self, config):\n        raise RuntimeError('no model today\\nor ever')\n"
    )
    write_folder(folder, auto_map, model_type="llama")
    with one_line_error(TargetError, message):
        load(spec_of(folder))


def test_the_flag_is_refused_where_it_means_nothing(folder: Path) -> None:
    """Instead of being ignored."""
    plain = write_folder(folder.parent / "plain", {}, model_type="llama")
    for model in ("llama", f"{ROOT / 'examples' / 'own_model.py'}:target"):
        with pytest.raises(TargetError, match="--trust is for a model folder with its own code, not for"):
            describe(model, trust=True)
    with pytest.raises(TargetError, match=r"has no code of its own \(no auto_map in config.json\)"):
        describe(str(plain), trust=True)
    with pytest.raises(BadInputError, match="not for --recipe; leave it out"):
        Request("", recipe=Path("recipe.yaml"), trust=True)


def test_a_plan_file_cannot_switch_it_on(folder: Path, tmp_path: Path) -> None:
    """It may come from anywhere."""
    plan = tmp_path / "best_plan.yaml"
    target = {"spec": spec_of(folder).to_dict(), "units": {}}
    plan.write_text(write_plan(Plan((Scope("lm_head", "lm_head"),)), {}, target=target))
    with pytest.raises(TargetError, match=r"its model is code in .*; read it, then run it with --trust"):
        next(recheck(RecheckRequest(plan)))
    plan.write_text(write_plan(Plan(), {}, target=target | {"spec": describe(str(folder))[0].to_dict()}))
    with pytest.raises(BadInputError, match="found for transformers' own model; leave --trust out"):
        next(recheck(RecheckRequest(plan, trust=True)))
    assert not (folder / "executed").exists()


@pytest.mark.slow
def test_a_study_of_own_code_continues_only_alike(folder: Path, tmp_path: Path) -> None:
    """The worker gets the flag; the code and the flag are part of the study."""
    command = ["search", "--model", str(folder), "--backend=sim", "--trials=2", f"--runs={tmp_path / 'runs'}"]
    assert sktune_process(*command, "--trust").returncode == ExitCode.DONE
    without = sktune_process(*command)
    assert without.returncode == ExitCode.BAD_INPUT
    assert "was made with trust 'True', but now it is the default" in without.stderr
    (folder / "scaling.py").write_text("SCALE = 3.0\n")
    changed = sktune_process(*command, "--trust")
    assert changed.returncode == ExitCode.BAD_INPUT
    assert "scaling.py, which has changed since; restore it" in changed.stderr


@pytest.mark.parametrize("trust", [[], ["--trust"]])
def test_code_in_another_repository_is_refused_at_once(tmp_path: Path, trust: list[str]) -> None:
    """It says where the code is, rather than that --trust would run it."""
    names = {
        "AutoConfig": "someone/repo--configuration_x.XConfig",
        "AutoModelForCausalLM": "someone/repo--modeling_x.X",
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mycustom", "auto_map": names}))
    done = sktune_command("inspect", "--model", str(tmp_path), *trust)
    assert done.returncode == 2
    assert "is in another repository, someone/repo: copy its Python files" in done.stderr
    assert "run it with" not in done.stderr
