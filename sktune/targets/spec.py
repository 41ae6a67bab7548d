"""Target specs: descriptions of targets by plain values, which are stored and sent to workers.

The class of each kind of target knows how users refer to it, its name, the files that it is built from, and how a plan
is applied to it. Nothing here imports torch; ``sktune.targets.loading`` builds the target of a spec.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self

from sktune.core.contents import checkpoint_files, content_digest, files_below, module_files
from sktune.core.errors import TargetError, nearest
from sktune.core.files import real_path
from sktune.targets.folder_code import code_files, named_classes
from sktune.targets.presets import FULL, Preset, load_preset, preset_names
from sktune.targets.recipe import digest as recipe_digest
from sktune.targets.recipe import read_recipe


class Application(StrEnum):
    """How a plan is applied without an edit of the source."""

    IN_PYTHON = "in_python"
    """``sktune.apply``, before the decode step is compiled."""
    AT_START = "at_start"
    """``sktune.launch``, by environment variables in front of the program's command."""


class Extent(StrEnum):
    """The devices that took part in a timed decode step."""

    ONE_DEVICE = "one_device"
    ONE_HOST = "one_host"


@dataclass(frozen=True, slots=True)
class Usage:
    """How plans for a kind of target are applied, and what their figures are valid for.

    Attributes:
        application: how a plan is applied.
        extent: the devices that took part in a step.
        is_own_program: whether the user's program was timed, not a model that sktune built.
    """

    application: Application = Application.IN_PYTHON
    extent: Extent = Extent.ONE_DEVICE
    is_own_program: bool = False


STORED_KEYS = (
    "source", "kind", "scale", "weights", "seed", "dtype", "backend", "device", "batch", "context", "constants",
    "profile", "layers",
)  # fmt: skip
"""Keys of the stored form, in order; None where a kind has no such field."""
KEYS_IF_SET = ("trust",)
"""Keys that follow only if they are set, as version 0.1 did not have them and a fingerprint depends on the form."""


@dataclass(frozen=True, slots=True)
class TargetSpec(ABC):
    """Description of a target; the base of one class for each kind of target.

    Attributes:
        source: the preset, function, file or folder that the user gave; files and folders as absolute paths.
        seed: of random weights and inputs.
        dtype: ``bfloat16``, ``float16`` or ``float32``; empty if the program decides.
        backend: the backend; TorchAir needs another attention and another KV cache than Inductor.
        device: ``cpu``, ``cuda``, ``npu``, or ``meta`` for shapes without values.
        batch, context: sequences decoded together, and tokens in the KV cache before the first step; None for the
            preset's.
        weights: folder of a checkpoint in Hugging Face format; None for random weights.
        constants: file with the simulated device's constants; None for the built-in ones.
        profile: a measured baseline to base the simulation on, or None.
        layers: number of layers of each kind that the model is cut to, with random weights; None for all.
    """

    kind: ClassVar[str]
    """The kind's name in the stored form."""
    runner: ClassVar[str] = "worker"
    """Its runner: ``worker``, a process of sktune that loads the model, or ``program``, the user's command."""
    usage: ClassVar[Usage] = Usage()
    has_own_environment: ClassVar[bool] = False
    """Whether it runs in an environment that is set by the user's script, not by sktune."""

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
        """Default name of the study; bytes of a file's name that are no text are written as numbers."""
        return f"{self.name}-{self.backend}-{self.device}".encode(errors="backslashreplace").decode()

    @property
    def preset(self) -> Preset | None:
        """The preset, with its space; None for all other kinds."""
        return None

    @property
    def sequences(self) -> int | None:
        """Sequences decoded together; None if unspecified, or if the target makes its own inputs."""
        return None

    @property
    def hosts(self) -> int:
        """Number of hosts that one run needs."""
        return 1

    @property
    def home(self) -> Path | None:
        """Folder to which a study's paths of the user's modules are relative, so that both can be moved; or None."""
        return None

    @property
    def package(self) -> str | None:
        """The user's top-level package from which the target is imported, or None."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the stored form: plain values, with equal keys for every kind, except for ``KEYS_IF_SET``."""
        stored = {key: getattr(self, key, None) for key in STORED_KEYS}
        return stored | {key: value for key in KEYS_IF_SET if (value := getattr(self, key, None))}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "TargetSpec":
        """Inverse of ``to_dict``.

        Raises:
            TargetError: this version does not know such a target.
        """
        kind = _KINDS.get(str(values.get("kind")))
        if kind is None or "source" not in values or not values.keys() <= {*STORED_KEYS, *KEYS_IF_SET}:
            raise TargetError("the study has a target that this version of sktune does not know; search again")
        names = {field.name for field in fields(kind)}
        return kind(**{name: value for name, value in values.items() if name in names})

    def missing(self) -> str:
        """Return a message that names the first missing file of the spec; empty if all exist."""
        paths = filter(None, (self._path, self.weights, self.constants, self.profile))
        return next((f"there is no {path}" for path in paths if not Path(path).exists()), "")

    def fingerprint(self) -> str:
        """Return a digest of the spec and the content of its files, which does not depend on where they are."""
        values = self.to_dict() | {"source": self.source.replace(self._path, Path(self._path).name, 1)}
        values |= {name: values[name] is not None for name in ("weights", "constants", "profile")}
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
        for part in self._contents():
            digest.update(part.encode())
        return digest.hexdigest()

    def choices(self) -> dict[str, str]:
        """Return the options that describe the same target again, by name and as text."""
        values = self.to_dict()
        names = ("scale", "dtype", "batch", "context", "seed", *KEYS_IF_SET)
        return {name: str(values[name]) for name in names if name in values}

    @property
    def _path(self) -> str:
        """The path with which ``source`` begins, if any; else empty."""
        return ""

    def _contents(self) -> Iterator[str]:
        """Yield texts that identify the files that the target is built from."""
        for file in self._files():
            yield file.name
            yield content_digest(file)

    def _files(self) -> list[Path]:
        return [*self._simulation_files(), *self._checkpoint_files()]

    def _simulation_files(self) -> list[Path]:
        paths = filter(None, (self.constants, self.profile))
        return [file for path in paths for file in files_below(Path(path))]

    def _checkpoint_files(self) -> list[Path]:
        return checkpoint_files(Path(self.weights)) if self.weights else []

    def _cut_suffix(self) -> str:
        return "" if self.layers is None else f"-proxy{self.layers}"


@dataclass(frozen=True, slots=True)
class PresetSpec(TargetSpec):
    """A preset.

    Attributes:
        scale: ``tiny``, ``small`` or ``full``.
    """

    kind: ClassVar[str] = "preset"

    scale: str = FULL

    @classmethod
    def recognises(cls, model: str) -> bool:
        """Whether ``model`` is the name of a preset."""
        return model in preset_names()

    @classmethod
    def of_model(cls, model: str, *, scale: str | None = None, device: str = "cpu", **values: Any) -> Self:
        """Return the preset's spec; without ``scale``, at the one that suits the device."""
        scales = load_preset(model).model.scale_names
        chosen = scale or ("tiny" if device == "cpu" else "small")
        if chosen not in scales:
            raise TargetError(f"{model} has no scale {chosen!r}; it has {', '.join(scales)}")
        return cls(model, scale=chosen, device=device, **values)

    @property
    def name(self) -> str:
        """Name of the preset, with its scale."""
        return f"{self.source}-{self.scale}{self._cut_suffix()}"

    @property
    def preset(self) -> Preset:
        """The preset, read from its file."""
        return load_preset(self.source)

    @property
    def sequences(self) -> int | None:
        """The requested batch, or else the preset's."""
        return self.batch or self.preset.model.batch.get(self.scale)


@dataclass(frozen=True, slots=True)
class ConfigSpec(TargetSpec):
    """A folder with the ``config.json`` of a model that transformers knows, or that is code in the folder.

    Attributes:
        trust: whether to run the folder's own code, instead of transformers' own model.
    """

    kind: ClassVar[str] = "config"

    trust: bool = False

    @classmethod
    def recognises(cls, model: str) -> bool:
        """Whether ``model`` is a folder."""
        return Path(model).is_dir()

    @classmethod
    def of_model(cls, model: str, **values: Any) -> Self:
        """Return the folder's spec."""
        if not (Path(model) / "config.json").is_file():
            raise TargetError(f"--model {model}: the folder has no config.json; give a Hugging Face model folder")
        spec = cls(str(real_path(Path(model))), **values)
        if spec.trust and not named_classes(spec.folder):
            raise TargetError(
                f"--trust: {spec.folder} has no code of its own (no auto_map in config.json); leave it out"
            )
        return spec

    @property
    def folder(self) -> Path:
        """The folder that the configuration is read from: that of the weights, if there are any."""
        return Path(self.weights or self.source)

    @property
    def home(self) -> Path | None:
        """The folder, whose own code may be imported."""
        return self.folder

    @property
    def name(self) -> str:
        """Name of the folder."""
        return f"{real_path(Path(self.source)).name}{self._cut_suffix()}"

    @property
    def sequences(self) -> int | None:
        """The requested batch."""
        return self.batch

    @property
    def _path(self) -> str:
        return self.source

    def _files(self) -> list[Path]:
        code = code_files(self.folder) if self.trust else []
        return [*self._simulation_files(), Path(self.source) / "config.json", *self._checkpoint_files(), *code]


@dataclass(frozen=True, slots=True)
class FunctionSpec(TargetSpec):
    """A user's function that returns a ``sktune.Target``: ``file.py:function`` or ``module:function``."""

    kind: ClassVar[str] = "function"

    @classmethod
    def recognises(cls, model: str) -> bool:
        """Whether ``model`` has text on both sides of its last colon."""
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
            path = str(real_path(Path(path)))
        return cls(f"{path}:{function}", **values)

    @property
    def place(self) -> str:
        """The file or module that the function is in."""
        return self.source.rpartition(":")[0]

    @property
    def function(self) -> str:
        """The function's name."""
        return self.source.rpartition(":")[2]

    @property
    def name(self) -> str:
        """Names of module and function."""
        module = Path(self.place).stem if self._is_in_file else self.place.rpartition(".")[2]
        return f"{module}-{self.function}"

    @property
    def home(self) -> Path | None:
        """The folder of the function's file; None if the module is not found."""
        files = self._modules()
        return files[0].parent if files else None

    @property
    def package(self) -> str | None:
        """The top-level package of the function's module; None if it is given by its file."""
        return None if self._is_in_file else self.place.partition(".")[0]

    @property
    def _is_in_file(self) -> bool:
        return self.place.endswith(".py")

    def _modules(self) -> list[Path]:
        return [Path(self.place)] if self._is_in_file else module_files(self.place)

    @property
    def _path(self) -> str:
        return self.place if self._is_in_file else ""

    def _files(self) -> list[Path]:
        return [*self._modules(), *self._simulation_files(), *self._checkpoint_files()]


@dataclass(frozen=True, slots=True)
class RecipeSpec(TargetSpec):
    """A recipe: a user's program that is started for each plan and makes its own inputs."""

    kind: ClassVar[str] = "recipe"
    runner: ClassVar[str] = "program"
    usage: ClassVar[Usage] = Usage(Application.AT_START, Extent.ONE_HOST, is_own_program=True)
    has_own_environment: ClassVar[bool] = True

    @classmethod
    def of_file(cls, path: Path, seed: int, default_device: Callable[[str], str]) -> Self:
        """Return the spec of the recipe in ``path``, with the recipe's backend and device.

        Args:
            path: of the recipe's file.
            seed: of the search.
            default_device: returns the device for a backend's name; called if the recipe names no device.

        Raises:
            TargetError: it is not a recipe; the message is one line with file, line and key.
        """
        recipe = read_recipe(path)
        device = recipe.device or default_device(recipe.backend)
        return cls(str(real_path(path)), seed=seed, dtype="", backend=recipe.backend, device=device)

    @property
    def hosts(self) -> int:
        """See ``TargetSpec.hosts``."""
        return read_recipe(Path(self.source)).hosts

    @property
    def name(self) -> str:
        """Name in the recipe."""
        return read_recipe(Path(self.source)).name

    @property
    def _path(self) -> str:
        return self.source

    def _contents(self) -> Iterator[str]:
        path = Path(self.source)
        yield recipe_digest(read_recipe(path), path)


_KINDS: Mapping[str, type[TargetSpec]] = {
    kind.kind: kind for kind in (PresetSpec, ConfigSpec, FunctionSpec, RecipeSpec)
}


_BY_MODEL: tuple[type[PresetSpec | FunctionSpec | ConfigSpec], ...] = (PresetSpec, FunctionSpec, ConfigSpec)
"""The kinds, in the order in which they are tried."""


def describe(
    model: str,
    *,
    scale: str | None = None,
    weights: Path | None = None,
    dtype: str | None = None,
    constants: Path | None = None,
    profile: Path | None = None,
    trust: bool = False,
    **values: Any,
) -> tuple[TargetSpec, Preset | None]:
    """Return the spec of the target that ``--model`` names, and its preset, if any; see ``TargetSpec`` for ``values``.

    Raises:
        TargetError: there is no such preset, folder, file or function; the message has the nearest names.
    """
    if weights is not None and not (weights / "config.json").is_file():
        raise TargetError(f"--weights {weights}: no config.json there; give a checkpoint folder in Hugging Face format")
    kind = next((kind for kind in _BY_MODEL if kind.recognises(model)), None)
    if kind is PresetSpec:
        values["scale"] = scale
    elif scale is not None:
        raise TargetError(f"--scale is for presets ({', '.join(preset_names())}), not for {model!r}; leave it out")
    if kind is None:
        raise TargetError(
            f"unknown model {model!r}{nearest(model, preset_names())} "
            "(or a folder with a config.json, or path/to/file.py:function)"
        )
    if kind is ConfigSpec:
        values["trust"] = trust
    elif trust:
        raise TargetError(f"--trust is for a model folder with its own code, not for {model!r}; leave it out")
    paths = {"weights": weights, "constants": constants, "profile": profile}
    values |= {name: str(real_path(path)) for name, path in paths.items() if path}
    spec = kind.of_model(model, dtype=dtype or "bfloat16", **values)
    return spec, spec.preset
