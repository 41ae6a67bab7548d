"""npugraph_ex without a device: its front end is its own, up to the graph that it would capture.

Importing this module replaces what needs a device: its number, the current stream, and the run of the generated code,
instead of which the operators of the optimized graph run on the CPU, but for the marks.
"""

import ast
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch_npu
from torch import fx

torch_npu.npu.current_stream = lambda device=None: SimpleNamespace(stream_id=0)
torch_npu.npu.current_device = lambda: 0

from npugraph_ex import npu_fx_compiler

MARKS = (torch.ops.npu.super_kernel_scope_begin.default, torch.ops.npu.super_kernel_scope_end.default)


class Captured:
    """What the front end has made since this module was imported.

    Attributes:
        graphs: optimized graphs, with their marks.
        settings: what it passes on to the captured graph, for each of them, as newer releases write it.
    """

    graphs: list[fx.GraphModule] = []
    settings: list[dict[str, Any]] = []


_FORMER = {
    "_aclnn_static_shape_kernel": "static_kernel_compile",
    "_super_kernel_optimize": "super_kernel_optimize",
    "_super_kernel_optimize_options": "super_kernel_optimize_options",
}
"""Settings of torch_npu 2.8, all of them texts, with their names since 2.10."""


def _as_now(settings: Mapping[str, Any]) -> dict[str, Any]:
    if not _FORMER.keys() & settings.keys() and "run_eagerly" not in settings:
        return dict(settings)
    values = {"0": False, "1": True}
    return {
        _FORMER.get(name, name): ast.literal_eval(value) if value.startswith("{") else values.get(value, value)
        for name, value in settings.items()
    }


class _WithoutMarks(fx.Interpreter):
    def call_function(self, target: Any, arguments: Any, keywords: Any) -> Any:
        return None if target in MARKS else super().call_function(target, arguments, keywords)


def _on_cpu(compiled: Any, extend_config: Any = None) -> Any:
    Captured.graphs.append(compiled.runner.fx_graph)
    Captured.settings.append(_as_now(compiled.runner.normalize_config()))
    return _WithoutMarks(compiled.runner.fx_graph).run


npu_fx_compiler._CompiledFxGraph.get_code = _on_cpu
