"""npugraph_ex without a device: its front end is its own, up to the graph that it would capture.

Importing this module replaces what needs a device: its number, the current stream, and the run of the generated code,
instead of which the operators of the optimized graph run on the CPU, but for the marks.
"""

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
        settings: what it passes on to the captured graph, for each of them.
    """

    graphs: list[fx.GraphModule] = []
    settings: list[dict[str, Any]] = []


class _WithoutMarks(fx.Interpreter):
    def call_function(self, target: Any, arguments: Any, keywords: Any) -> Any:
        return None if target in MARKS else super().call_function(target, arguments, keywords)


def _on_cpu(compiled: Any, extend_config: Any = None) -> Any:
    Captured.graphs.append(compiled.runner.fx_graph)
    Captured.settings.append(compiled.runner.normalize_config())
    return _WithoutMarks(compiled.runner.fx_graph).run


npu_fx_compiler._CompiledFxGraph.get_code = _on_cpu
