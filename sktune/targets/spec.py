"""Target specs: what is to be tuned, as plain values that are stored and that travel to a worker.

One class for each kind of target knows how users name it, what it is called, which files it is built from, and how a
plan gets into it. Nothing here imports torch; ``sktune.targets.loading`` builds what a spec names.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from sktune.core.contents import checkpoint_files, content_digest, files_below, module_files
from sktune.core.errors import TargetError, nearest
from sktune.targets.presets import FULL, Preset, load_preset, preset_names
from sktune.targets.recipe import digest as recipe_digest
from sktune.targets.recipe import read_recipe
from sktune.targets.usage import Application, Extent, Usage

STORED_KEYS = (
    "source", "kind", "scale", "weights", "seed", "dtype", "backend", "device", "batch", "context", "constants",
    "profile", "layers",
)  # fmt: skip
"""Of the stored form, in its order; what a kind has no field for is None."""


@dataclass(frozen=True, slots=True)
class TargetSpec(ABC):
    """What to tune; the base of one class for each kind of target.

    Attributes:
        source: what the user named, by an absolute path where it is a file or a folder.
        seed: of random weights and inputs.
        dtype: ``bfloat16``, ``float16`` or ``float32``; empty where the program decides.
        backend: what will compile it; TorchAir takes other attention and another KV cache than Inductor.
        device: ``cpu``, ``cuda``, ``npu``, or ``meta`` for shapes without values.
        batch, context: sequences decoded together, and tokens in the KV cache before the first step; None: the
            preset's.
        weights: folder of a checkpoint in Hugging Face format, or None for random weights.
        constants: file with the simulated device's constants, or None for those that are shipped.
        profile: a measured baseline that the simulation starts from, or None.
        layers: how many layers of each kind the model is cut to, with random weights; None for all.
    """

    kind: ClassVar[str]
    """In the stored form."""
    runner: ClassVar[str] = "worker"
    """Who runs it: ``worker``, a process of sktune's own that loads the model, or ``program``, the user's command."""
    usage: ClassVar[Usage] = Usage()
    has_own_environment: ClassVar[bool] = False
    """Whether it runs with an environment that the user's script sets, and sktune does not."""

    source: str
    seed: int = 0
    dtype: str = "bfloat16"
    backend: str = "inductor"
    device: str = "cpu"
    batch: int | None = None
    context: int | None = None
    weights: str | None = None
    constants: str | None = None
    profile: str | None = None
    layers: int | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """Short name for studies and reports."""

    @property
    def study_name(self) -> str:
        """Name of the study where the user gives none."""
        return f"{self.name}-{self.backend}-{self.device}"

    @property
    def preset(self) -> Preset | None:
        """The preset that it is, with its space; None for all other kinds."""
        return None

    @property
    def sequences(self) -> int | None:
        """Sequences decoded together; None where nobody has said, or where the target makes its own inputs."""
        return None

    @property
    def home(self) -> Path | None:
        """Folder that the paths of a user's modules are relative to in a study, which may move with it; None: none."""
        return None

    @property
    def package(self) -> str | None:
        """The top-level package of the user's own that the target is imported from; None: none."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the stored form: plain values, with the same keys for every kind."""
        return {key: getattr(self, key, None) for key in STORED_KEYS}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "TargetSpec":
        """Inverse of ``to_dict``.

        Raises:
            TargetError: not the stored form of a target that this version knows.
        """
        kind = _KINDS.get(str(values.get("kind")))
        if kind is None or "source" not in values or not values.keys() <= set(STORED_KEYS):
            raise TargetError("this is not the stored form of a target that this sktune knows; search again")
        own = {field.name for field in fields(kind)}
        return kind(**{name: value for name, value in values.items() if name in own})

    def missing(self) -> str:
        """Return which of the files that the spec names does not exist; empty where all do."""
        named = [*self._named_paths(), *filter(None, (self.weights, self.constants, self.profile))]
        return next((f"there is no {path}" for path in named if not Path(path).exists()), "")

    def fingerprint(self) -> str:
        """Identity of what is built: the spec, and the content of the files that it names, wherever they are."""
        values = self.to_dict() | {"source": self._portable_source()}
        values |= {name: values[name] is not None for name in ("weights", "constants", "profile")}
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
        for part in self._contents():
            digest.update(part.encode())
        return digest.hexdigest()

    def choices(self) -> dict[str, str]:
        """Return what a user gives as options of the same names, as text: what to give again for the same target."""
        values = self.to_dict()
        return {name: str(values[name]) for name in ("scale", "dtype", "batch", "context", "seed")}

    def _portable_source(self) -> str:
        """Return ``source`` without the folder that it is in."""
        return self.source

    def _named_paths(self) -> list[str]:
        """Return the paths that ``source`` names."""
        return []

    def _contents(self) -> Iterator[str]:
        """Yield what identifies the content that the target is built from."""
        for file in self._files():
            yield file.name
            yield content_digest(file)

    def _files(self) -> list[Path]:
        return [*self._simulation_files(), *self._checkpoint_files()]

    def _simulation_files(self) -> list[Path]:
        given = filter(None, (self.constants, self.profile))
        return [file for path in given for file in files_below(Path(path))]

    def _checkpoint_files(self) -> list[Path]:
        return checkpoint_files(Path(self.weights)) if self.weights else []

    def _cut_suffix(self) -> str:
        return "" if self.layers is None else f"-proxy{self.layers}"


@dataclass(frozen=True, slots=True)
class PresetSpec(TargetSpec):
    """A preset, by its name.

    Attributes:
        scale: ``tiny``, ``small`` or ``full``.
    """

    kind: ClassVar[str] = "preset"

    scale: str = FULL

    @classmethod
    def recognises(cls, model: str) -> bool:
        """Whether a preset has this name."""
        return model in preset_names()

    @classmethod
    def of_model(cls, model: str, *, scale: str | None = None, device: str = "cpu", **values: Any) -> Self:
        """Return the preset's spec; without a scale, at the one that suits the device."""
        scales = load_preset(model).model.scale_names
        chosen = scale or ("tiny" if device == "cpu" else "small")
        if chosen not in scales:
            raise TargetError(f"{model} has no scale {chosen!r}; it has {', '.join(scales)}")
        return cls(model, scale=chosen, device=device, **values)

    @property
    def name(self) -> str:
        """The preset's, with its scale."""
        return f"{self.source}-{self.scale}{self._cut_suffix()}"

    @property
    def preset(self) -> Preset:
        """Read from its file."""
        return load_preset(self.source)

    @property
    def sequences(self) -> int | None:
        """The preset's, unless another number is asked for."""
        return self.batch or self.preset.model.batch.get(self.scale)


@dataclass(frozen=True, slots=True)
class ConfigSpec(TargetSpec):
    """A folder with a ``config.json`` of a model that transformers knows."""

    kind: ClassVar[str] = "config"

    @classmethod
    def recognises(cls, model: str) -> bool:
        """Whether this is a folder."""
        return Path(model).is_dir()

    @classmethod
    def of_model(cls, model: str, **values: Any) -> Self:
        """Return the folder's spec."""
        if not (Path(model) / "config.json").is_file():
            raise TargetError(f"--model {model}: the folder has no config.json; give a Hugging Face model folder")
        return cls(str(Path(model).resolve()), **values)

    @property
    def name(self) -> str:
        """The folder's."""
        return f"{Path(self.source).resolve().name}{self._cut_suffix()}"

    @property
    def sequences(self) -> int | None:
        """As asked for."""
        return self.batch

    def _portable_source(self) -> str:
        return Path(self.source).name

    def _named_paths(self) -> list[str]:
        return [self.source]

    def _files(self) -> list[Path]:
        return [*self._simulation_files(), Path(self.source) / "config.json", *self._checkpoint_files()]


@dataclass(frozen=True, slots=True)
class FunctionSpec(TargetSpec):
    """A function of the user's own that returns a ``sktune.Target``: ``file.py:function`` or ``module:function``."""

    kind: ClassVar[str] = "function"

    @classmethod
    def recognises(cls, model: str) -> bool:
        """Whether something stands on both sides of the last colon."""
        path, _, function = model.rpartition(":")
        return bool(path and function)

    @classmethod
    def of_model(cls, model: str, *, layers: int | None = None, **values: Any) -> Self:
        """Return the function's spec."""
        if layers is not None:
            raise TargetError(
                f"--proxy-layers cuts models that are built from a configuration, not {model!r}; leave it out"
            )
        path, _, function = model.rpartition(":")
        if path.endswith(".py"):
            if not Path(path).is_file():
                raise TargetError(f"--model {model}: there is no file {path!r}; give path/to/file.py:function")
            path = str(Path(path).resolve())
        return cls(f"{path}:{function}", **values)

    @property
    def place(self) -> str:
        """The file or module that the function is in."""
        return self.source.rpartition(":")[0]

    @property
    def function(self) -> str:
        """Its name there."""
        return self.source.rpartition(":")[2]

    @property
    def name(self) -> str:
        """Those of module and function."""
        module = Path(self.place).stem if self._is_in_file else self.place.rpartition(".")[2]
        return f"{module}-{self.function}"

    @property
    def home(self) -> Path | None:
        """The folder of the function's file; None where the module is not found."""
        files = self._modules()
        return files[0].parent if files else None

    @property
    def package(self) -> str | None:
        """The top-level package of the function's module; None for what is given by its file."""
        return None if self._is_in_file else self.place.partition(".")[0]

    @property
    def _is_in_file(self) -> bool:
        return self.place.endswith(".py")

    def _modules(self) -> list[Path]:
        return [Path(self.place)] if self._is_in_file else module_files(self.place)

    def _portable_source(self) -> str:
        return f"{Path(self.place).name}:{self.function}"

    def _named_paths(self) -> list[str]:
        return [self.place] if self._is_in_file else []

    def _files(self) -> list[Path]:
        return [*self._modules(), *self._simulation_files(), *self._checkpoint_files()]


@dataclass(frozen=True, slots=True)
class RecipeSpec(TargetSpec):
    """A recipe's file: a program of the user's own that is started for each plan; it makes its own inputs."""

    kind: ClassVar[str] = "recipe"
    runner: ClassVar[str] = "program"
    usage: ClassVar[Usage] = Usage(Application.AT_START, Extent.ONE_HOST, is_own_program=True)
    has_own_environment: ClassVar[bool] = True

    @classmethod
    def of_file(cls, path: Path, seed: int, default_device: Callable[[str], str]) -> Self:
        """Return the spec of the recipe in ``path``; backend and device are what the recipe says.

        Args:
            path: of the recipe's file.
            seed: of the search.
            default_device: takes a backend's name; returns where a program runs whose recipe does not say so.

        Raises:
            TargetError: no recipe; one line with file, line and key.
        """
        recipe = read_recipe(path)
        device = recipe.device or default_device(recipe.backend)
        return cls(str(path.resolve()), seed=seed, dtype="", backend=recipe.backend, device=device)

    @property
    def name(self) -> str:
        """As the recipe says."""
        return read_recipe(Path(self.source)).name

    def _portable_source(self) -> str:
        return Path(self.source).name

    def _named_paths(self) -> list[str]:
        return [self.source]

    def _contents(self) -> Iterator[str]:
        path = Path(self.source)
        yield recipe_digest(read_recipe(path), path)


_BY_MODEL: tuple[type[PresetSpec | FunctionSpec | ConfigSpec], ...] = (PresetSpec, FunctionSpec, ConfigSpec)
"""The kinds that ``--model`` may name, in the order in which they are asked."""
_KINDS: Mapping[str, type[TargetSpec]] = {kind.kind: kind for kind in (*_BY_MODEL, RecipeSpec)}


def describe(
    model: str,
    *,
    scale: str | None = None,
    weights: Path | None = None,
    dtype: str | None = None,
    constants: Path | None = None,
    profile: Path | None = None,
    **values: Any,
) -> tuple[TargetSpec, Preset | None]:
    """Return what ``--model`` names, and its preset where it is one; see ``TargetSpec`` for ``values``.

    Raises:
        TargetError: no such preset, folder, file or function; the message has the nearest names.
    """
    if weights is not None and not (weights / "config.json").is_file():
        raise TargetError(f"--weights {weights}: no config.json there; give a checkpoint folder in Hugging Face format")
    kind = next((kind for kind in _BY_MODEL if kind.recognises(model)), None)
    if kind is PresetSpec:
        values["scale"] = scale
    elif scale is not None:
        raise TargetError(
            f"--scale belongs to the presets ({', '.join(preset_names())}), not to {model!r}; leave it out"
        )
    if kind is None:
        raise TargetError(
            f"unknown model {model!r}{nearest(model, preset_names())} "
            "(or a folder with a config.json, or path/to/file.py:function)"
        )
    paths = {"weights": weights, "constants": constants, "profile": profile}
    values |= {name: str(path.resolve()) for name, path in paths.items() if path}
    spec = kind.of_model(model, dtype=dtype or "bfloat16", **values)
    return spec, spec.preset
