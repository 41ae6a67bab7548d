"""What ``--model`` names: a preset, a function, or a folder."""

from pathlib import Path
from typing import Any

from sktune.core.errors import TargetError, nearest
from sktune.core.files import real_path
from sktune.targets.presets import Preset, preset_names
from sktune.targets.spec import ConfigSpec, FunctionSpec, PresetSpec, TargetSpec

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
