"""Plans in vLLM-Ascend: its backend and captures are stand-ins, the operators that mark scopes are torch_npu's own."""

import os
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch_npu
from torch import fx, nn

from sktune.core.errors import PlanError
from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import write_plan
from sktune.program.sktune_program.rank import Rank, take_over
from sktune.program.sktune_program.reporter import Reporter
from sktune.program.sktune_program.task import RankTask
from tests.npugraph_ex import frontend  # noqa: F401 - what needs a device is replaced

PLAN = Plan(
    (Scope("model.layers.0", "model.layers.0"), Scope("model.layers.1", "model.layers.2")), (("split_mode", 2),)
)


class Layers(nn.Module):
    """What vLLM compiles of a model: all but embedding and head, so that names lack the prefix."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Run a step."""
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Record what would reach the device: marks, and the options with which a graph is fused."""
    seen: list[tuple[str, Any]] = []
    for name in ("begin", "end"):
        mark = partial(_mark, seen, name)
        monkeypatch.setattr(torch_npu.npu, f"super_kernel_scope_{name}", mark)

    def optimize(graph: Any, optimize_options: Any = None, debug_options: Any = None) -> None:
        seen.append(("optimize", optimize_options))

    monkeypatch.setattr(torch_npu.npu.NPUGraph, "super_kernel_optimize", optimize)
    return seen


def _mark(seen: list[tuple[str, Any]], kind: str, name: str | None = None) -> None:
    seen.append((kind, name))


class Run(fx.Interpreter):
    """Runs the operators of a graph as they are, as ``force_eager`` does, but for marks, which it records."""

    def __init__(self, graph: fx.GraphModule, seen: list[tuple[str, Any]]) -> None:
        super().__init__(graph)
        self._seen = seen

    def call_function(self, target: Any, arguments: Any, keywords: Any) -> Any:
        """Record a mark, or run another operator."""
        marks = torch.ops.npu.super_kernel_scope_begin, torch.ops.npu.super_kernel_scope_end
        for kind, mark in zip(("begin", "end"), marks, strict=True):
            if target in (mark, mark.default):
                return self._seen.append((kind, *arguments))
        return super().call_function(target, arguments, keywords)


@pytest.fixture
def backend(calls: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a stand-in for vLLM's backend."""
    module = ModuleType("vllm.compilation.backends")

    class VllmBackend:
        __module__ = module.__name__

        def __call__(self, graph: fx.GraphModule, inputs: Any, **_: Any) -> Any:
            return Run(graph, calls).run

    monkeypatch.setitem(sys.modules, module.__name__, module)
    return VllmBackend()


def compiled(model: nn.Module, plan: Plan, backend: Any) -> Any:
    """Compile as vLLM does when a model is built."""
    task = RankTask(False, "npugraph-ex", scopes=plan.marked, options=dict(plan.options))
    launched = Rank(torch.compile, [task], Reporter(None))
    return launched.compile(model.forward, fullgraph=True, dynamic=False, backend=backend, options={"own": 1})


def captured(step: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Capture a step as vLLM-Ascend does."""
    torch_npu.npu.super_kernel_scope_begin("full_model")
    output: torch.Tensor = step(inputs)
    torch_npu.npu.super_kernel_scope_end("full_model")
    torch_npu.npu.NPUGraph.super_kernel_optimize(None, optimize_options={"dcci_after_kernel_end": [".*"]})
    return output


def test_a_plans_scopes_replace_the_one_of_the_whole_graph(calls: list[tuple[str, Any]], backend: Any) -> None:
    """And its options come before vLLM-Ascend's."""
    model, inputs = Layers(), torch.randn(2, 8)
    with torch.no_grad():
        step = compiled(model, PLAN, backend)
        for _ in range(2):  # compiled with the first call
            calls.clear()
            assert torch.equal(captured(step, inputs), model(inputs))
            first, second = (scope.label for scope in PLAN.scopes)
            assert calls == [
                ("begin", first), ("end", first), ("begin", second), ("end", second),
                ("optimize", {"dcci_after_kernel_end": [".*"], "split_mode": 2}),
            ]  # fmt: skip


def test_a_draft_model_has_no_scopes(calls: list[tuple[str, Any]], backend: Any) -> None:
    """Names of the plan do not fit it; what is compiled of it later changes nothing."""
    draft, inputs = nn.Sequential(nn.Linear(8, 8)), torch.randn(2, 8)
    with torch.no_grad():
        compiled(Layers(), PLAN, backend)
        captured(compiled(draft, PLAN, backend), inputs)
    assert [name for name, _ in calls] == ["optimize"]


def test_vllm_cannot_be_searched(calls: list[tuple[str, Any]], backend: Any) -> None:
    """Its graphs are replayed without a call of the compiled step; the line says what to do."""
    with pytest.raises(PlanError, match="search with --backend npugraph-ex on the same model"):
        compiled(Layers(), Plan(), backend)
    assert calls == []


def test_graphs_of_earlier_runs_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's caches do not know the plan."""
    (tmp_path / "plan.yaml").write_text(write_plan(PLAN, {}, "npugraph-ex"))
    for name in ("VLLM_DISABLE_COMPILE_CACHE", "VLLM_USE_AOT_COMPILE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(torch, "compile", torch.compile)
    take_over(None, str(tmp_path / "plan.yaml"))
    assert (os.environ["VLLM_DISABLE_COMPILE_CACHE"], os.environ["VLLM_USE_AOT_COMPILE"]) == ("1", "0")
