"""How long the modules of one eager step take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class StepTimes:
    """Seconds that one eager step took, and those of modules in it, by name."""

    total_s: float
    modules_s: Mapping[str, float]


def time_modules(
    module: nn.Module, names: Iterable[str], step: Callable[[], Any], clock: Callable[[], float]
) -> tuple[Any, StepTimes]:
    """Run ``step`` once, eagerly; return its output, and how long it and each named module took on ``clock``."""
    modules = dict(module.named_modules())
    began: dict[str, float] = {}
    spent: dict[str, float] = {}
    handles = []
    for name in names:

        def begin(_module: nn.Module, _arguments: Any, name: str = name) -> None:
            began[name] = clock()

        def end(_module: nn.Module, _arguments: Any, _output: Any, name: str = name) -> None:
            spent[name] = clock() - began[name]

        handles += [modules[name].register_forward_pre_hook(begin), modules[name].register_forward_hook(end)]
    try:
        start = clock()
        output = step()
        total = clock() - start
    finally:
        for handle in handles:
            handle.remove()
    return output, StepTimes(total, spent)
