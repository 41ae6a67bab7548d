"""The operators of TorchAir's own documentation: one scope over npu_quant_matmul and npu_dequant_swiglu_quant."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_npu
import torchair
from torchair.core import _torchair

import sktune
from sktune import Plan, Scope
from sktune.backends.npu.backend import NpuBackend
from sktune.core.layout import Layout
from sktune.core.space import SpaceSpec
from sktune.targets.base import Target, decode_inputs
from sktune.targets.tracing import trace_layout
from tests.torchair.frontend import newest_dump

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
import quant_matmul_swiglu as example

OPERATORS = ["QuantBatchMatmulV3", "DequantSwigluQuant"]


class ModelSuperKernel(torch.nn.Module):
    """The model of the documentation of ``super_kernel``: its operators, their arguments and its scope."""

    def forward(
        self, x1: Any, x2: Any, scale: Any, offset: Any, bias: Any, pertoken_scale: Any, weight_scale: Any
    ) -> tuple[Any, Any]:
        """Mark by hand."""
        with torchair.scope.super_kernel("sp1", ""):
            hidden = torch_npu.npu_quant_matmul(
                x1, x2, scale, offset=offset, bias=bias, pertoken_scale=pertoken_scale, output_dtype=torch.bfloat16
            )
            activated = torch_npu.npu_dequant_swiglu_quant(hidden, weight_scale=weight_scale)
        return activated, hidden


@pytest.fixture(autouse=True)
def an_atlas_a3_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two questions that the converters of these operators ask outside of TorchAir: device's name, CANN's support."""
    monkeypatch.setattr(torch_npu.npu, "get_device_name", lambda *arguments: "Ascend910_9391")
    monkeypatch.setattr(_torchair, "check_cann_compat", lambda *arguments: "")


@pytest.fixture
def backend() -> tuple[Target, Layout, NpuBackend]:
    """Return the example, as a search gets it."""
    torch.set_grad_enabled(False)
    target = example.target()
    layout = trace_layout(target, SpaceSpec())
    return target, layout, NpuBackend(target, layout, decode_inputs(target, 0, 1)[0])


def test_the_documented_scope_marks_its_two_operators(backend: tuple[Target, Layout, NpuBackend]) -> None:
    """Written by hand, ``sp1`` stands on exactly the two operators, each of which is one of the graph's."""
    (tokens, token_scale), model = decode_inputs(backend[0], 0, 1)[0], backend[0].module
    weight, scale, weight_scale = model.parameters()
    compiler = torchair.get_npu_backend(compiler_config=backend[2].configuration(Plan()))
    step: Callable[..., Any] = torch.compile(ModelSuperKernel(), backend=compiler, dynamic=False, fullgraph=True)
    step(tokens, weight, scale, None, None, token_scale, weight_scale)
    assert [(operator.type, operator.label, operator.options) for operator in newest_dump()] == [
        (name, "sp1", "") for name in OPERATORS
    ]


def test_the_examples_plan_carries_the_documented_label(backend: tuple[Target, Layout, NpuBackend]) -> None:
    """Applied from its file, the plan marks the example's graph as the documentation does."""
    target, _, npu = backend
    marks = sktune.apply(target.module, EXAMPLES / "quant_matmul_swiglu.yaml")
    compiler = torchair.get_npu_backend(compiler_config=npu.configuration(Plan()))
    step: Callable[..., Any] = torch.compile(target.decode_step, backend=compiler, dynamic=False, fullgraph=True)
    step(*decode_inputs(target, 0, 1)[0])
    marks.detach()
    assert [(operator.type, operator.label, operator.options) for operator in newest_dump()] == [
        (name, "sp1", "") for name in OPERATORS
    ]


def test_a_plan_marks_what_the_documented_scope_marks(backend: tuple[Target, Layout, NpuBackend]) -> None:
    """One scope over the example's two units; and one over the second, with an option, leaves the first alone."""
    _, layout, npu = backend
    assert [unit.name for unit in layout.units] == ["quant_matmul", "dequant_swiglu_quant"]
    both = Scope("quant_matmul", "dequant_swiglu_quant")
    npu.compile(Plan((both,)))
    assert [(operator.type, operator.label, operator.options) for operator in newest_dump()] == [
        (name, both.label, "") for name in OPERATORS
    ]
    second = Scope("dequant_swiglu_quant", "dequant_swiglu_quant", (("split-mode", 2),))
    compiled = npu.compile(Plan((second,)))
    assert [(operator.label, operator.options) for operator in newest_dump()] == [
        ("", ""),
        ("dequant_swiglu_quant", "split-mode=2"),
    ]
    assert compiled.fusion[0].startswith("dequant_swiglu_quant: 1 operator marked (1 DequantSwigluQuant)")
