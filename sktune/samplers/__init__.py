"""Strategies that propose plans: each is a ``Strategy`` and a line in ``STRATEGIES``.

``sktune.study.strategy`` defines their interface; ``sktune.learning`` has the models that they learn. Other packages
add strategies as entry points of the group ``sktune.samplers``.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from optuna.samplers import BaseSampler

from sktune.core.errors import BadInputError, first_line, nearest
from sktune.core.space import SearchSpace
from sktune.study.strategy import SamplerFactory, Strategy

__all__ = ["GROUP", "STRATEGIES", "SamplerFactory", "Strategy", "find_strategy", "strategy_names"]

STRATEGIES: Mapping[str, str] = {
    "partition": "sktune.samplers.partition:PARTITION",
    "tpe": "sktune.samplers.of_optuna:TPE",
    "gp": "sktune.samplers.of_optuna:GP",
    "random": "sktune.samplers.of_optuna:RANDOM",
    "grid": "sktune.samplers.grid:GRID",
    "bottom-up": "sktune.samplers.guide:BOTTOM_UP",
    "top-down": "sktune.samplers.guide:TOP_DOWN",
    "profile": "sktune.samplers.guide:PROFILE",
}
"""The strategies that come with sktune, imported on use."""
GROUP = "sktune.samplers"
"""Group of the entry points of other packages: each is a ``Strategy``, or a function of a space and a seed."""


def strategy_names() -> tuple[str, ...]:
    """Return the names of all available strategies, those of other packages last."""
    return tuple(dict.fromkeys([*STRATEGIES, *sorted(entry_points(group=GROUP).names)]))


def find_strategy(name: str) -> Strategy:
    """Return a strategy by its name, or the user's own as ``module:attribute``.

    Raises:
        BadInputError: it does not exist, or cannot be imported.
    """
    if name in STRATEGIES:
        return _loaded(name, lambda: _attribute(STRATEGIES[name]))
    if ":" in name:
        return _loaded(name, lambda: _attribute(name))
    installed: list[EntryPoint] = list(entry_points(group=GROUP, name=name))
    if not installed:
        raise BadInputError(
            f"unknown strategy {name!r}{nearest(name, strategy_names())} (or module:function of your own)"
        )
    return _loaded(name, installed[0].load)


def _attribute(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _loaded(name: str, load: Callable[[], Any]) -> Strategy:
    try:
        loaded = load()
        if isinstance(loaded, Strategy):
            return replace(loaded, name=name)
        if inspect.isbuiltin(loaded):  # functions of Python itself, such as os.system, make no samplers
            raise TypeError("it is a function of Python itself")
        inspect.signature(loaded).bind("space", 0)
    except Exception as failure:  # whatever a module of the user's raises
        raise BadInputError(
            f"--strategy {name}: {first_line(failure)}; give module:function, a function of a space and a seed"
        ) from failure
    return Strategy(name, partial(_own_sampler, name, loaded))


def _own_sampler(name: str, make: SamplerFactory, space: SearchSpace, seed: int) -> BaseSampler:
    """Return the sampler that a function of the user's makes."""
    try:
        sampler = make(space, seed)
        if not isinstance(sampler, BaseSampler):
            raise TypeError(f"it returns {type(sampler).__name__}")
    except Exception as failure:  # whatever the user's code raises
        raise BadInputError(f"--strategy {name}: {first_line(failure)}; return a sampler of Optuna") from failure
    return sampler
