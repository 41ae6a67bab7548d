"""Builds the target that a spec names. Imports torch, so only workers and libraries come here."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from sktune.core.errors import TargetError, described, nearest
from sktune.targets import TargetSpec
from sktune.targets.base import Target
from sktune.targets.causal_lm import from_configuration, from_folder
from sktune.targets.presets import load_preset


def load(spec: TargetSpec, *, takes_torchair: bool = False) -> Target:
    """Build the target.

    Args:
        spec: what to build.
        takes_torchair: whether TorchAir has to convert its operators; a function of the user's decides for itself.

    Raises:
        TargetError: it cannot be built; one line with the reason.
    """
    if spec.kind == "preset":
        return from_configuration(spec, load_preset(spec.source).model, takes_torchair=takes_torchair)
    if spec.kind == "config":
        return from_folder(spec, takes_torchair=takes_torchair)
    return _from_function(spec)


def _from_function(spec: TargetSpec) -> Target:
    path, _, name = spec.source.rpartition(":")
    module = _module(path)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise TargetError(f"{path} has no function {name!r}{nearest(name, functions)}")
    try:
        target = function()
    except Exception as failure:
        raise TargetError(f"{spec.source} raises {described(failure)}; mend the function") from failure
    if not isinstance(target, Target):
        raise TargetError(f"{spec.source} returns {type(target).__name__}; return a sktune.Target")
    return target


def _module(path: str) -> ModuleType:
    try:
        if not path.endswith(".py"):
            return importlib.import_module(path)
        location = importlib.util.spec_from_file_location(f"sktune_target_{Path(path).stem}", path)
        assert location is not None and location.loader is not None
        module = importlib.util.module_from_spec(location)
        sys.modules[module.__name__] = module
        sys.path.insert(0, str(Path(path).parent))
        location.loader.exec_module(module)
    except Exception as failure:
        raise TargetError(f"{path} cannot be imported: {described(failure)}; mend the file") from failure
    return module
