"""Targets: presets and local configurations of transformers, and models of the user's own.

``describe`` names a target without importing torch; ``load`` builds it, in the worker.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sktune.core.contents import content_digest, module_files
from sktune.core.errors import TargetError, nearest
from sktune.targets.presets import Preset, load_preset, preset_names
from sktune.targets.recipe import digest as recipe_digest
from sktune.targets.recipe import read_recipe


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """What to build: plain values that travel to the worker.

    Attributes:
        source: a preset's name, a folder with a ``config.json``, or ``file.py:function``.
        kind: ``preset``, ``config``, ``function``, or ``recipe`` for a program that is started for each plan.
        scale: ``tiny``, ``small`` or ``full``; only presets have scales.
        weights: folder of a checkpoint in Hugging Face format, or None for random weights.
        seed: of random weights and inputs.
        dtype: ``bfloat16``, ``float16`` or ``float32``.
        backend: what will compile it; TorchAir takes other attention and another KV cache than Inductor.
        device: ``cpu``, ``cuda``, ``npu``, or ``meta`` for shapes without values.
        constants: file with the simulated device's constants, or None for those that are shipped.
        profile: a measured baseline that the simulation starts from, or None.
        batch, context: sequences decoded together, and tokens in the KV cache before the first step; None: the
            preset's.
        layers: how many layers of each kind the model is cut to, with random weights; None for all.
    """

    source: str
    kind: str
    scale: str | None = None
    weights: str | None = None
    seed: int = 0
    dtype: str = "bfloat16"
    backend: str = "inductor"
    device: str = "cpu"
    batch: int | None = None
    context: int | None = None
    constants: str | None = None
    profile: str | None = None
    layers: int | None = None

    @property
    def name(self) -> str:
        """Short name for studies and reports."""
        cut = "" if self.layers is None else f"-proxy{self.layers}"
        if self.kind == "preset":
            return f"{self.source}-{self.scale}{cut}"
        if self.kind == "recipe":
            return read_recipe(Path(self.source)).name
        if self.kind == "config":
            return f"{Path(self.source).resolve().name}{cut}"
        module, _, function = self.source.rpartition(":")
        return f"{Path(module).stem if module.endswith('.py') else module.rpartition('.')[2]}-{function}"

    @property
    def study_name(self) -> str:
        """Name of the study where the user gives none."""
        return f"{self.name}-{self.backend}-{self.device}"

    @property
    def home(self) -> Path | None:
        """Folder that the paths of a user's modules are relative to in a study, which may move with it; None: none."""
        path = self.source.rpartition(":")[0]
        if self.kind != "function":
            return None
        files = [Path(path)] if path.endswith(".py") else module_files(path)
        return files[0].parent if files else None

    @property
    def package(self) -> str | None:
        """The top-level package of a function's module; None for what is given by its file."""
        path = self.source.rpartition(":")[0]
        return None if self.kind != "function" or path.endswith(".py") else path.partition(".")[0]

    def missing(self) -> str:
        """Return what of the files that the spec names is not there; empty where all is."""
        path = self.source.rpartition(":")[0]
        named = [path] if self.kind == "function" and path.endswith(".py") else []
        named += [self.source] if self.kind in ("config", "recipe") else []
        named += filter(None, (self.weights, self.constants, self.profile))
        return next((f"there is no {own}" for own in named if not Path(own).exists()), "")

    def fingerprint(self) -> str:
        """Identity of what is built: the spec, and the content of the files that it names, wherever they lie."""
        values = asdict(self)
        for name in ("weights", "constants", "profile"):
            values[name] = values[name] is not None
        if self.kind in ("config", "recipe"):
            values["source"] = Path(self.source).name
        if self.kind == "function":
            module, _, function = self.source.rpartition(":")
            values["source"] = f"{Path(module).name}:{function}"
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
        if self.kind == "recipe":
            path = Path(self.source)
            digest.update(recipe_digest(read_recipe(path), path).encode())
        for file in self._files():
            digest.update(file.name.encode())
            digest.update(content_digest(file).encode())
        return digest.hexdigest()

    def _files(self) -> list[Path]:
        files: list[Path] = []
        path = self.source.rpartition(":")[0]
        if self.kind == "function":
            files += [Path(path)] if path.endswith(".py") else module_files(path)
        for given in filter(None, (self.constants, self.profile)):
            files += _files_below(Path(given))
        if self.kind == "config":
            files.append(Path(self.source) / "config.json")
        if self.weights:
            files += [file for file in sorted(Path(self.weights).iterdir()) if _is_read(file)]
        return files


def _files_below(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _is_read(file: Path) -> bool:
    """Whether a model is built from a checkpoint's ``file``: tokenizers and texts change no decode step."""
    no_model = ("tokenizer", "vocab", "added_tokens", "special_tokens", "preprocessor", "processor", "chat_template")
    return file.suffix in (".json", ".safetensors", ".py") and not file.name.startswith(no_model) and file.is_file()


def describe_recipe(path: Path, seed: int, default_device: Callable[[str], str]) -> TargetSpec:
    """Return what the recipe in ``path`` names.

    Args:
        path: of the recipe's file.
        seed: of the search.
        default_device: takes a backend's name; returns where a program runs whose recipe does not say so.

    Raises:
        TargetError: no recipe; one line with file, line and key.
    """
    recipe = read_recipe(path)
    source = str(path.resolve())
    device = recipe.device or default_device(recipe.backend)
    return TargetSpec(source, "recipe", seed=seed, dtype="", backend=recipe.backend, device=device)


def describe(
    model: str,
    *,
    scale: str | None = None,
    weights: Path | None = None,
    seed: int = 0,
    dtype: str | None = None,
    backend: str = "inductor",
    device: str = "cpu",
    batch: int | None = None,
    context: int | None = None,
    constants: Path | None = None,
    profile: Path | None = None,
    layers: int | None = None,
) -> tuple[TargetSpec, Preset | None]:
    """Return what ``--model`` names, and its preset where it is one.

    Raises:
        TargetError: no such preset, folder, file or function; the message has the nearest names.
    """
    if weights is not None and not (weights / "config.json").is_file():
        raise TargetError(f"--weights {weights}: no config.json there; give a checkpoint folder in Hugging Face format")
    values: dict[str, Any] = {
        "weights": str(weights.resolve()) if weights else None,
        "seed": seed,
        "dtype": dtype or "bfloat16",
        "backend": backend,
        "device": device,
        "batch": batch,
        "context": context,
        "constants": str(constants.resolve()) if constants else None,
        "profile": str(profile.resolve()) if profile else None,
        "layers": layers,
    }
    if model in preset_names():
        preset = load_preset(model)
        chosen = scale or ("tiny" if device == "cpu" else "small")
        if chosen not in preset.model.scale_names:
            raise TargetError(f"{model} has no scale {chosen!r}; it has {', '.join(preset.model.scale_names)}")
        return TargetSpec(model, "preset", scale=chosen, **values), preset
    if scale is not None:
        raise TargetError(
            f"--scale belongs to the presets ({', '.join(preset_names())}), not to {model!r}; leave it out"
        )
    path, colon, function = model.rpartition(":")
    if colon and path and function:
        if layers is not None:
            raise TargetError(
                f"--proxy-layers cuts models that are built from a configuration, not {model!r}; leave it out"
            )
        if path.endswith(".py"):
            if not Path(path).is_file():
                raise TargetError(f"--model {model}: there is no file {path!r}; give path/to/file.py:function")
            path = str(Path(path).resolve())
        return TargetSpec(f"{path}:{function}", "function", **values), None
    if (Path(model) / "config.json").is_file():
        return TargetSpec(str(Path(model).resolve()), "config", **values), None
    if Path(model).is_dir():
        raise TargetError(f"--model {model}: the folder has no config.json; give a Hugging Face model folder")
    raise TargetError(
        f"unknown model {model!r}{nearest(model, preset_names())} "
        "(or a folder with a config.json, or path/to/file.py:function)"
    )
