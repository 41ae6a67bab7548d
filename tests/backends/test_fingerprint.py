"""Fingerprints include everything that changes a result, and nothing else."""

import json
import os
import shutil
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from sktune.backends.fingerprint import fingerprint, numerics_environment
from sktune.core.contents import WHOLE_BYTES, changed_file, content_digest, imported_modules, module_files
from sktune.core.space import SpaceSpec
from sktune.targets import PresetSpec, describe

MODEL = "def target():\n    pass\n"


def checkpoint(folder: Path) -> Path:
    """Write a checkpoint of two tensors in a file that is too large to be read completely at every start."""
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    half = WHOLE_BYTES
    spans = {
        name: {"dtype": "U8", "shape": [half], "data_offsets": [at, at + half]} for name, at in (("a", 0), ("b", half))
    }
    header = json.dumps(spans).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(2 * half))
    return folder


def model_of(weights: Path) -> str:
    """Return the fingerprint of a preset with the checkpoint in ``weights``."""
    return describe("llama", weights=weights)[0].fingerprint()


def test_reading_and_copying_a_checkpoint_change_nothing(tmp_path: Path) -> None:
    """A search itself changes the time of the last access."""
    weights = checkpoint(tmp_path / "weights")
    before = model_of(weights)
    os.utime(weights / "model.safetensors", (time.time() + 60, time.time() - 60))
    assert model_of(weights) == before
    copy = shutil.copytree(weights, tmp_path / "elsewhere", copy_function=shutil.copyfile)
    assert model_of(copy) == before
    (weights / "README.md").write_text("a text")
    (weights / "tokenizer.json").write_text("{}")
    assert model_of(weights) == before


@pytest.mark.parametrize("tensor", [0, 1])
def test_another_tensor_is_another_checkpoint(tmp_path: Path, tensor: int) -> None:
    """In a file of the same size and time, as left by tools that restore files."""
    weights = checkpoint(tmp_path / "weights")
    file, before = weights / "model.safetensors", model_of(weights)
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    with file.open("r+b") as handle:
        handle.seek(-WHOLE_BYTES * (2 - tensor), os.SEEK_END)
        handle.write(b"\1" * WHOLE_BYTES)
    os.utime(file, ns=times)
    assert model_of(weights) != before


def test_code_in_a_checkpoint_counts(tmp_path: Path) -> None:
    """Custom code is part of the model."""
    weights = checkpoint(tmp_path / "weights")
    before = model_of(weights)
    (weights / "modeling_own.py").write_text("scale = 2\n")
    assert model_of(weights) != before


def test_a_large_file_of_another_kind_is_sampled(tmp_path: Path) -> None:
    """Its end is included."""
    file = tmp_path / "profile.json"
    file.write_bytes(bytes(3 * WHOLE_BYTES))
    before = content_digest(file)
    with file.open("r+b") as handle:
        handle.seek(-1, os.SEEK_END)
        handle.write(b"\1")
    assert content_digest(file) != before


def test_the_files_of_a_function_in_a_package_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found without importing the package, which may import torch or fail."""
    package = tmp_path / "ownpackage"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    spec, _ = describe("ownpackage.model:target")
    before = spec.fingerprint()
    assert spec.fingerprint() == before
    assert spec.home == package
    (package / "model.py").write_text(MODEL + "# changed\n")
    assert spec.fingerprint() != before
    assert module_files("no.such.module") == []


def test_the_users_modules_are_identified_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of a compiler's cache, Python, installed packages and sktune itself are excluded."""
    helper, cache = tmp_path / "sktune_test_helper.py", tmp_path / "cache"
    cache.mkdir()
    helper.write_text("SCALE = 1\n")
    (cache / "sktune_test_kernel.py").write_text("")
    for folder in (tmp_path, cache):
        monkeypatch.syspath_prepend(str(folder))
    __import__("sktune_test_helper")
    __import__("sktune_test_kernel")
    modules = imported_modules(None, tmp_path, (cache,))
    assert helper.name in modules
    others = {"sktune_test_kernel.py", "fingerprint.py", "pytest.py"}
    assert not [name for name in modules if Path(name).name in others or "site-packages" in name]
    assert "pytest" in " ".join(imported_modules("pytest", tmp_path, (cache,)))
    assert changed_file({helper.name: modules[helper.name]}, tmp_path) is None
    helper.write_text("SCALE = 2\n")
    assert changed_file({helper.name: modules[helper.name]}, tmp_path) == helper
    helper.unlink()
    assert changed_file({helper.name: modules[helper.name]}, tmp_path) == helper
    for name in ("sktune_test_helper", "sktune_test_kernel"):
        del sys.modules[name]


def preset_fingerprint(**changes: str) -> dict[str, str]:
    """Return the fingerprint of a preset with ``changes`` to the spec."""
    return fingerprint(PresetSpec("llama", scale="tiny", **changes), SpaceSpec())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "TORCHINDUCTOR_FREEZING", "MKL_CBWR", "ATEN_CPU_CAPABILITY"])
def test_environment_that_changes_figures_or_bits_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stored by name and value, so that a user can undo a difference."""
    monkeypatch.delenv(name, raising=False)
    assert name not in preset_fingerprint()
    monkeypatch.setenv(name, "1")
    assert preset_fingerprint()[name] == "1"
    assert name not in preset_fingerprint(backend="sim")


@pytest.mark.parametrize(
    "name", ["TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "OMP_DISPLAY_ENV", "ONEDNN_VERBOSE",
             "TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_WORKER_START", "HOME", "TORCH_LOGS"],
)  # fmt: skip
def test_environment_that_changes_neither_does_not_count(name: str) -> None:
    """Logs, caches, and the distribution of compilation over processes."""
    assert not any(numerics_environment(device, {name: "1"}) for device in ("cpu", "cuda", "npu"))


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("HCCL_DETERMINISTIC", {"npu"}),
        ("CLOSE_MATMUL_K_SHIFT", {"npu"}),
        ("NVIDIA_TF32_OVERRIDE", {"cuda"}),
        ("LD_PRELOAD", {"cpu"}),
        ("ONEDNN_MAX_CPU_ISA", {"cpu", "cuda", "npu"}),
    ],
)
def test_environment_counts_on_the_devices_that_read_it(name: str, devices: set[str]) -> None:
    """A study on a CPU can be continued after a variable for NPUs was set."""
    assert {device for device in ("cpu", "cuda", "npu") if numerics_environment(device, {name: "1"})} == devices


def test_what_a_distribution_links_into_its_library_is_no_module_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's ``sitecustomize`` is a link to a file in /etc, which its own updates change."""
    library, elsewhere = tmp_path / "library", tmp_path / "etc"
    library.mkdir()
    elsewhere.mkdir()
    (elsewhere / "linked.py").write_text("")
    (library / "linked.py").symlink_to(elsewhere / "linked.py")
    module = ModuleType("linked")
    module.__file__ = str(library / "linked.py")
    monkeypatch.setitem(sys.modules, "linked", module)
    assert any("linked.py" in name for name in imported_modules(None, None, ()))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(library))
    assert not any("linked.py" in name for name in imported_modules(None, None, ()))
