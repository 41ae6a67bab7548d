"""Strategies that propose plans: each is a ``Strategy`` and a line in ``STRATEGIES``.

``sktune.study.strategy`` defines their interface; ``sktune.learning`` has the models that they learn. Other packages
add strategies as entry points of the group ``sktune.samplers``.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from sktune.core.errors import BadInputError, nearest
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
    except (ImportError, AttributeError) as failure:
        raise BadInputError(
            f"--strategy {name}: {failure}; give module:function, a function of a space and a seed"
        ) from failure
    return replace(loaded, name=name) if isinstance(loaded, Strategy) else Strategy(name, loaded)
