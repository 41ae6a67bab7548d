"""CUDA: what differs there from a CPU. Most tests need a GPU; the one on the meta device does not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor_config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.utils import fresh_cache
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import sktune
from sktune.backends.inductor.info import EXACT
from sktune.core.plan import Plan, Scope
from sktune.measure.bits import same_bits
from sktune.measure.devices import make_deterministic
from sktune.program.sktune_program.inductor.compiled_regions import MAX_AUTOTUNE
from sktune.program.sktune_program.inductor.numerics import kept_operators
from tests import warm

needs_gpu = [
    pytest.mark.cuda,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture(autouse=True)
def clean_compiler() -> Iterator[None]:
    """Compile without caches."""
    torch._dynamo.reset()
    with torch.no_grad(), fresh_cache():
        yield


@pytest.mark.parametrize("emulate", [False, True])
def test_products_of_one_row_are_not_decomposed(emulate: bool) -> None:
    """On all devices but CPUs max-autotune turns them into multiply-and-sum, which sums in another order."""

    def products(row: torch.Tensor, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return row @ matrix, torch.bmm(row[None], matrix[None])

    with inductor_config.patch({**MAX_AUTOTUNE, "emulate_precision_casts": emulate}):
        inputs = torch.empty(1, 64, device="meta"), torch.empty(64, 64, device="meta")
        with kept_operators(matmuls=True, reductions=True):
            kept = make_fx(products, select_decomp_table())(*inputs)
        decomposed = make_fx(products, select_decomp_table())(*inputs)
    assert {"aten.mm.default", "aten.bmm.default"} <= {str(node.target) for node in kept.graph.nodes}
    assert "aten.sum.dim_IntList" in {str(node.target) for node in decomposed.graph.nodes}


class Layer(nn.Module):
    """What kept its bits on CPUs and not on GPUs: products of one row or with a bias, negated zeros, means."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(64, 64, bias=False)
        self.biased = nn.Linear(64, 64)

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        normed = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6)
        projected = self.projection(normed)
        turned = torch.cat((-projected[:, 32:], projected[:, :32]), -1) * (hidden > 0)
        batched = torch.bmm(projected[:, None], self.projection.weight.expand(len(hidden), -1, -1))
        biased = self.biased(normed)
        return projected, turned, -turned, batched, functional.softmax(projected, -1), turned.sum(0), biased


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize("rows", [1, 16])
class TestOnGpu:
    pytestmark = needs_gpu

    def test_a_scope_keeps_the_bits(self, rows: int, cuda_graph: bool, dtype: torch.dtype) -> None:
        """With the options that keep them by construction."""
        make_deterministic("cuda")
        torch.manual_seed(0)
        model = nn.Module()
        model.layer = layer = Layer().to("cuda", dtype)
        sktune.apply(model, Plan((Scope("layer", "layer", tuple({**EXACT, "cuda_graph": cuda_graph}.items())),)))
        step = torch.compile(lambda hidden: layer(hidden), backend="sktune", fullgraph=True, dynamic=False)
        for _ in range(3):
            hidden = torch.randn(rows, 64, device="cuda", dtype=dtype)
            assert [same_bits(*pair) for pair in zip(layer.forward(hidden), step(hidden), strict=True)] == [True] * 7


@pytest.mark.parametrize("heads", [(32, 64), (32, 192)])
class TestAttention:
    pytestmark = needs_gpu

    def test_it_is_deterministic(self, heads: tuple[int, int]) -> None:
        """One query for each sequence; cuDNN's attention, the default on an H100, changed bits in most repetitions."""
        make_deterministic("cuda")
        number, size = heads
        query = torch.randn(16, number, 1, size, device="cuda", dtype=torch.bfloat16)
        key, value = (torch.randn(16, number, 576, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        mask = torch.ones(16, 1, 1, 576, device="cuda", dtype=torch.bool)
        results = [functional.scaled_dot_product_attention(query, key, value, attn_mask=mask) for _ in range(200)]
        assert all(same_bits(results[0], result) for result in results)


@pytest.mark.parametrize("cuda_graph", [False, True])
class TestSearch:
    pytestmark = needs_gpu

    def test_it_finds_identical_plans(self, cuda_graph: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With and without capturing scopes as CUDA graphs."""
        monkeypatch.delenv(warm.ADDRESS, raising=False)  # a forked process cannot use CUDA
        space = tmp_path / "space.yaml"
        space.write_text(
            "version: 1\nspace:\n  options: {inductor: {cuda: {emulate_precision_casts: [true], matmul: [aten], "
            f"reductions: [aten], cuda_graph: [{str(cuda_graph).lower()}]}}}}}}\n"
        )
        result = sktune.search("llama", trials=3, scale="tiny", device="cuda", space=space, runs=tmp_path / "runs")
        assert any(record.outcome and record.outcome.is_feasible for record in result.trials)
