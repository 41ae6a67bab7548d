"""Loading: builds the target that a spec describes. As it imports torch, only workers and libraries import it."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from functools import singledispatch
from pathlib import Path
from types import ModuleType

from sktune.core.errors import SktuneError, TargetError, described, nearest
from sktune.targets.base import Target
from sktune.targets.causal_lm import from_folder, from_preset
from sktune.targets.configuration import check_configuration
from sktune.targets.spec import ConfigSpec, FunctionSpec, PresetSpec, TargetSpec


@singledispatch
def load(spec: TargetSpec, *, takes_torchair: bool = False) -> Target:  # noqa: ARG001
    """Build the target.

    Args:
        spec: describes the target.
        takes_torchair: whether TorchAir must be able to convert its operators; ignored for a user's function.

    Raises:
        TargetError: it cannot be built; the message is one line.
    """
    raise TargetError(f"{spec.name} is a recipe, whose program builds its own model; search it with --recipe")


load.register(PresetSpec, from_preset)


@load.register
def _of_folder(spec: ConfigSpec, *, takes_torchair: bool = False) -> Target:
    folder = Path(spec.source)
    check_configuration(folder)
    try:
        return from_folder(spec, takes_torchair=takes_torchair)
    except SktuneError:
        raise
    except Exception as failure:  # whatever transformers' code meets in a configuration
        raise TargetError(f"the model of {folder / 'config.json'} fails: {described(failure)}; fix it") from failure


@load.register
def _of_function(spec: FunctionSpec, *, takes_torchair: bool = False) -> Target:  # noqa: ARG001
    module = _module(spec.place)
    function = getattr(module, spec.function, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise TargetError(f"{spec.place} has no function {spec.function!r}{nearest(spec.function, functions)}")
    sizes = _accepted(spec, function)
    try:
        target = function(**sizes)
    except Exception as failure:
        raise TargetError(f"{spec.source} raises {described(failure)}; fix the function") from failure
    if not isinstance(target, Target):
        raise TargetError(f"{spec.source} returns {type(target).__name__}; return a sktune.Target")
    return target


def _accepted(spec: FunctionSpec, function: Callable[..., object]) -> dict[str, int]:
    """Return the batch and context that the function is to make its target for.

    Raises:
        TargetError: it takes no such parameter.
    """
    sizes = {name: value for name, value in (("batch", spec.batch), ("context", spec.context)) if value is not None}
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a callable without a signature is asked for what it makes by itself
        return sizes
    if missing := [name for name in sizes if name not in parameters]:
        raise TargetError(
            f"{spec.source} takes no {missing[0]}; give the function the parameter {missing[0]!r}, or leave "
            f"--{missing[0]} and --shapes out"
        )
    return sizes


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
        raise TargetError(f"{path} cannot be imported: {described(failure)}; fix the file") from failure
    return module
