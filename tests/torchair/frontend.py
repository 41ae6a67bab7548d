"""TorchAir without a device: the front end is its own, up to the GE graph; the engine behind it is left out.

Importing this module replaces the engine's initialisation, the one part of TorchAir that needs a device, and has the
npu backend set TorchAir's own ``debug.run_eagerly``: what runs is the FX graph that was converted, on the CPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch_npu  # noqa: F401 - torchair can be imported after it
import torchair._ge_concrete_graph.fx2ge_converter as converter
from torch import fx
from torchair.ge._ge_graph import get_default_ge_graph
from torchair.npu_fx_compiler import _NpuGraphConverter

from sktune.backends.npu.backend import DUMPS, NpuBackend
from sktune.core.plan import Plan
from sktune.targets import describe
from sktune.targets.base import Target
from sktune.targets.loading import load
from tests.torchair.marked import Marked, read_dump

converter.initialize_graph_engine = lambda *arguments, **options: None
_configuration = NpuBackend.configuration


def _eager(self: NpuBackend, plan: Plan) -> Any:
    config = _configuration(self, plan)
    config.debug.run_eagerly = True
    return config


NpuBackend.configuration = _eager  # type: ignore[method-assign]


@contextmanager
def watched_conversion() -> Iterator[list[tuple[fx.Node, tuple[str, ...]]]]:
    """Collect each captured operator that is converted meanwhile, with the names of the GE operators made of it."""
    seen: list[tuple[fx.Node, tuple[str, ...]]] = []
    run_node = _NpuGraphConverter.run_node

    def watch(self: Any, node: fx.Node) -> Any:
        before = len(get_default_ge_graph().op)
        result = run_node(self, node)
        seen.append((node, tuple(operator.name for operator in get_default_ge_graph().op[before:])))
        return result

    with patch.object(_NpuGraphConverter, "run_node", watch):
        yield seen


def newest_dump() -> list[Marked]:
    """Return the operators of the graph that was dumped last."""
    newest = max(DUMPS.glob("*.txt"), key=lambda path: path.stat().st_mtime_ns)
    return read_dump(newest.read_text())


def deepseek_v3() -> Target:
    """Return the preset as TorchAir takes it, on the CPU; a target function for ``--model``."""
    return load(describe("deepseek-v3", backend="npu", device="cpu")[0], takes_torchair=True)
