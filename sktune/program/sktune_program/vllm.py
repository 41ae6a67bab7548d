"""Plans in vLLM-Ascend, which compiles with vLLM's backend and captures the graphs itself.

With ``enable_super_kernel`` it captures each graph inside one scope, ``full_model``, and has it fused afterwards. A
plan's scopes take the place of that one, and its options come before those that vLLM-Ascend passes on.

From vllm-ascend's sources as of October 2026: ``compilation/breakable_aclgraph.py``, ``worker/v2/utils.py`` and
``compilation/compiler_interface.py``. Nothing of it has run on a device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .errors import PlanError
from .npugraph_ex import optimize_options
from .plan import Option

OWN_SCOPE = "full_model"
ENVIRONMENT: Mapping[str, str] = {"VLLM_DISABLE_COMPILE_CACHE": "1", "VLLM_USE_AOT_COMPILE": "0"}
"""Without them vLLM may load a graph that it compiled without the plan's scopes."""


def compiles(keywords: Mapping[str, Any]) -> bool:
    """Return whether vLLM compiles with these keywords of ``torch.compile``."""
    return str(getattr(keywords.get("backend"), "__module__", "")).partition(".")[0] == "vllm"


def prepare(options: Mapping[str, Option], *, has_scopes: bool) -> None:
    """Leave out vLLM-Ascend's own scope in this process, and have graphs fused with the plan's options.

    Raises:
        PlanError: the plan has no scopes: it is a search's baseline, or there is nothing to launch.
    """
    if not has_scopes:
        raise PlanError(
            "vLLM replays its graphs without calling the compiled step, so that no step can be compared or timed; "
            "search with --backend npugraph-ex on the same model, and launch vLLM with the plan"
        )
    npu: Any = import_module("torch_npu").npu
    if hasattr(npu.super_kernel_scope_begin, "__wrapped__"):
        return
    npu.super_kernel_scope_begin = _but_for_own(npu.super_kernel_scope_begin)
    npu.super_kernel_scope_end = _but_for_own(npu.super_kernel_scope_end)
    optimize, of_plan = npu.NPUGraph.super_kernel_optimize, optimize_options(options)

    @functools.wraps(optimize)
    def optimized(graph: Any, optimize_options: Mapping[str, Any] | None = None, debug_options: Any = None) -> Any:
        return optimize(graph, {**(optimize_options or {}), **of_plan}, debug_options)

    npu.NPUGraph.super_kernel_optimize = optimized


def _but_for_own(mark: Callable[[str | None], Any]) -> Callable[[str | None], Any]:
    @functools.wraps(mark)
    def marked(scope_name: str | None = None) -> Any:
        return None if scope_name == OWN_SCOPE else mark(scope_name)

    return marked
