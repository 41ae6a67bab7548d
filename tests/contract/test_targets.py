"""What holds for every kind of target: a new kind joins by one entry in ``CASES`` and in ``STORED``."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from sktune.core.errors import BadInputError, TargetError
from sktune.targets import Application, RecipeSpec, TargetSpec, describe
from sktune.targets.base import Snapshot, decode_inputs
from sktune.targets.loading import load
from sktune.targets.presets import load_preset
from sktune.targets.state import complete_state, written_by

MODELS = Path(__file__).parents[1] / "models"

STORED: dict[str, dict[str, Any]] = {
    "preset": {
        "source": "llama", "kind": "preset", "scale": "full", "weights": None, "seed": 0, "dtype": "bfloat16",
        "backend": "inductor", "device": "meta", "batch": None, "context": None, "constants": None, "profile": None,
        "layers": 2,
    },
    "config": {
        "source": "/models/own", "kind": "config", "scale": None, "weights": "/models/own", "seed": 3,
        "dtype": "float32", "backend": "sim", "device": "cpu", "batch": 4, "context": 128,
        "constants": "/fitted.yaml", "profile": "/profile", "layers": None,
    },
    "function": {
        "source": "/models/own.py:target", "kind": "function", "scale": None, "weights": None, "seed": 0,
        "dtype": "bfloat16", "backend": "npu", "device": "npu", "batch": None, "context": None, "constants": None,
        "profile": None, "layers": None,
    },
    "recipe": {
        "source": "/recipes/recipe.yaml", "kind": "recipe", "scale": None, "weights": None, "seed": 0, "dtype": "",
        "backend": "npu", "device": "npu", "batch": None, "context": None, "constants": None, "profile": None,
        "layers": None,
    },
}  # fmt: skip
"""As studies, plan files and requests to workers of version 0.1.0 hold them."""
FULL_LLAMA_0_1_0 = "7dbaa2a2b38d00a891fff0d7b016294c85e507206ee4c3e10d8ac1cf4d23e388"
"""The fingerprint that version 0.1.0 gave to ``STORED["preset"]``."""


@dataclass(frozen=True)
class Case:
    """A target of one kind.

    Attributes:
        make: writes its files into a folder and returns its spec.
        counts: a file in that folder that the target is built from.
        idle: a file beside it that it is not built from.
    """

    make: Callable[[Path], TargetSpec]
    counts: str
    idle: str


def preset(folder: Path) -> TargetSpec:
    """Return a preset with a checkpoint."""
    (folder / "config.json").write_text("{}")
    return describe("llama", weights=folder)[0]


def config(folder: Path) -> TargetSpec:
    """Return a folder with the configuration of a small llama."""
    model = load_preset("llama").model
    (folder / "config.json").write_text(json.dumps({"model_type": model.model_type, **model.configuration("tiny")}))
    return describe(str(folder))[0]


def function(folder: Path) -> TargetSpec:
    """Return a function in a file."""
    shutil.copy(MODELS / "caches.py", folder / "caches.py")
    return describe(f"{folder / 'caches.py'}:with_capacity")[0]


def recipe(folder: Path) -> TargetSpec:
    """Return a recipe."""
    (folder / "program.py").write_text("pass\n")
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "name": "own", "command": ["python3", "program.py"]}))
    return RecipeSpec.of_file(path, 0, lambda backend: "cpu")


CASES = {
    "preset": Case(preset, "config.json", "tokenizer.json"),
    "config": Case(config, "config.json", "README.md"),
    "function": Case(function, "caches.py", "notes.txt"),
    "recipe": Case(recipe, "program.py", "log_0.log"),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    """Return the case of each kind."""
    return CASES[request.param]


@pytest.fixture
def spec(case: Case, tmp_path: Path) -> TargetSpec:
    """Return a spec of each kind whose files are there."""
    return case.make(tmp_path)


def test_every_kind_has_a_case() -> None:
    """The tables above are complete."""
    assert CASES.keys() == STORED.keys() == {kind.kind for kind in TargetSpec.__subclasses__()}


def test_the_stored_form_is_plain_and_loads_again(spec: TargetSpec) -> None:
    """It travels as JSON to a worker, and stands in studies and plan files."""
    stored = json.loads(json.dumps(spec.to_dict()))
    assert TargetSpec.from_dict(stored) == spec
    assert TargetSpec.from_dict(stored).to_dict() == stored


@pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
def test_what_version_0_1_0_stored_loads(stored: dict[str, Any]) -> None:
    """And is written as it was, in the same order."""
    spec = TargetSpec.from_dict(stored)
    assert spec.kind == stored["kind"]
    assert list(spec.to_dict().items()) == list(stored.items())


def test_a_model_of_version_0_1_0_has_the_fingerprint_that_it_had() -> None:
    """So that a plan's recheck names only what has changed."""
    assert TargetSpec.from_dict(STORED["preset"]).fingerprint() == FULL_LLAMA_0_1_0


@pytest.mark.parametrize("change", [{"kind": "dream"}, {"kind": ["preset"]}, {"kind": None}, {"colour": "red"}])
def test_what_no_version_stored_is_refused(change: dict[str, Any]) -> None:
    """In a line, not by a traceback."""
    with pytest.raises(TargetError, match="a target that this version of sktune does not know") as failure:
        TargetSpec.from_dict(STORED["preset"] | change)
    assert_one_line(failure.value)


def test_a_study_is_named_after_model_backend_and_device(spec: TargetSpec) -> None:
    """The name is short, and the same for the stored form."""
    assert spec.study_name == f"{spec.name}-{spec.backend}-{spec.device}"
    assert "/" not in spec.name
    assert TargetSpec.from_dict(spec.to_dict()).name == spec.name


def test_the_content_of_its_files_counts(case: Case, tmp_path: Path) -> None:
    """Another content is another target, and the old one again the old target."""
    spec = case.make(tmp_path)
    file, before = tmp_path / case.counts, spec.fingerprint()
    text = file.read_text()
    file.write_text(text + "\n# changed\n")
    assert spec.fingerprint() != before
    file.write_text(text)
    assert spec.fingerprint() == before


def test_seed_device_and_backend_count(spec: TargetSpec) -> None:
    """Other weights and inputs, and another compiler."""
    changes: list[dict[str, Any]] = [{"seed": 7}, {"device": "cuda"}, {"backend": "sim"}, {"batch": 3}]
    found = {spec.fingerprint(), *(replace(spec, **change).fingerprint() for change in changes)}
    assert len(found) == 1 + len(changes)


def test_reading_moving_and_other_files_do_not_count(case: Case, tmp_path: Path) -> None:
    """The time of the last access is that of the search itself."""
    first, second = tmp_path / "own" / "model", tmp_path / "moved" / "model"
    first.mkdir(parents=True)
    spec = case.make(first)
    before = spec.fingerprint()
    os.utime(first / case.counts, (1, 1))
    (first / case.idle).write_text("a text")
    assert spec.fingerprint() == before
    second.mkdir(parents=True)
    assert case.make(second).fingerprint() == before


def test_a_file_that_is_gone_is_named(spec: TargetSpec, tmp_path: Path) -> None:
    """What a recheck on another machine says first."""
    assert spec.missing() == ""
    shutil.rmtree(tmp_path)
    assert spec.missing().startswith(f"there is no {tmp_path}")


def test_each_kind_says_how_its_plans_are_used(spec: TargetSpec) -> None:
    """A program that the user starts gets its plan at its start; a model that sktune loads gets it in Python."""
    is_program = spec.runner == "program"
    assert (spec.usage.application is Application.AT_START) == is_program
    assert spec.usage.is_own_program == spec.has_own_environment == is_program


def assert_one_line(failure: BadInputError) -> None:
    """A message is one line that says what to do."""
    text = str(failure)
    assert "\n" not in text
    assert ";" in text or "(or " in text


@pytest.mark.parametrize(
    ("model", "values", "message"),
    [
        ("lama", {}, "unknown model 'lama'; did you mean 'llama'"),
        ("llama", {"scale": "huge"}, "llama has no scale 'huge'; it has tiny"),
        ("nowhere.py:target", {}, r"there is no file 'nowhere.py'; give path/to/file.py:function"),
        ("empty", {}, "the folder has no config.json; give a Hugging Face model folder"),
        ("empty", {"scale": "tiny"}, "--scale is for presets .* leave it out"),
        ("own.py:target", {"layers": 2}, "--proxy-layers cuts models .* leave it out"),
        ("llama", {"weights": Path("empty")}, "--weights empty: no config.json there; give a checkpoint folder"),
    ],
)
def test_a_model_that_is_not_there_is_refused_in_a_line(
    model: str, values: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to give instead."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TargetError, match=message) as failure:
        describe(model, **values)
    assert_one_line(failure.value)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def taget():\n    pass\n", "has no function 'target'; did you mean 'taget'"),
        ("def target():\n    return 1\n", "returns int; return a sktune.Target"),
        ("def target():\n    raise ValueError('no\\nmodel')\n", "raises ValueError: no; fix the function"),
        ("import nowhere_at_all\n", "cannot be imported: ModuleNotFoundError.*; fix the file"),
    ],
)
def test_a_function_that_returns_no_target_is_refused_in_a_line(code: str, message: str, tmp_path: Path) -> None:
    """When it is loaded: naming a target runs nothing of the user's."""
    (tmp_path / "own.py").write_text(code)
    spec, _ = describe(f"{tmp_path / 'own.py'}:target")
    with pytest.raises(TargetError, match=message) as failure:
        load(spec)
    assert_one_line(failure.value)


def test_a_recipe_that_is_not_there_is_refused_in_a_line(tmp_path: Path) -> None:
    """So is loading one: its program builds the model."""
    with pytest.raises(TargetError, match=r"nowhere.yaml cannot be read .*; give the path of a YAML file") as failure:
        RecipeSpec.of_file(tmp_path / "nowhere.yaml", 0, lambda backend: "cpu")
    assert_one_line(failure.value)
    with pytest.raises(TargetError, match=r"builds its own model; search it with --recipe") as failure:
        load(recipe(tmp_path))
    assert_one_line(failure.value)


def test_specs_need_no_torch() -> None:
    """Naming a target is quick."""
    code = "import sys, sktune.targets; sktune.targets.describe('llama'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(params=["llama", "config", "caches.py:with_capacity", "hidden_state.py:in_a_closure"])
def loadable(request: pytest.FixtureRequest, tmp_path: Path) -> TargetSpec:
    """Return a target of each kind that sktune builds; the last one names none of its state."""
    if request.param == "config":
        return config(tmp_path)
    return describe(request.param if request.param == "llama" else f"{MODELS / request.param}")[0]


def test_a_step_can_be_replayed(loadable: TargetSpec) -> None:
    """State is found whether it is declared or not; put back, the same step gives the same bits and the same state."""
    target = load(loadable)
    inputs = decode_inputs(target, 0, 1)[0]
    with torch.no_grad():
        written = written_by(target, lambda: target.decode_step(*inputs))
        state = complete_state(target, written)
        assert state
        assert all(any(own is tensor for tensor in state.values()) for own in written.values())
        before = [tensor.clone() for tensor in state.values()]
        snapshot = Snapshot(state)
        first = target.decode_step(*inputs).clone()
        after = [tensor.clone() for tensor in state.values()]
        assert not all(map(torch.equal, before, after))
        snapshot.restore()
        assert all(map(torch.equal, before, state.values()))
        assert torch.equal(target.decode_step(*inputs), first)
        assert all(map(torch.equal, after, state.values()))


def test_the_same_seed_gives_the_same_inputs(loadable: TargetSpec) -> None:
    """In a target that is built anew, too; another seed gives others."""

    def inputs(seed: int) -> list[torch.Tensor]:
        return [value for step in decode_inputs(load(loadable), seed, 2) for value in step]

    assert all(map(torch.equal, inputs(0), inputs(0)))
    assert not all(map(torch.equal, inputs(0), inputs(1)))
