"""Two operators of a quantised feed-forward block on Ascend as two units: are they faster in one scope?

    sktune search --model examples/quant_matmul_swiglu.py:target --device npu --trials 8

`npu_quant_matmul` and `npu_dequant_swiglu_quant` run on an NPU only. Without one, tensors are on the meta device,
which is enough for tracing, for TorchAir's graph and for `--backend sim`. Either way torch_npu is needed.
"""

import torch
from torch import nn

import sktune

TOKENS, HIDDEN, INTERMEDIATE = 864, 7168, 4096
FRACTAL_NZ = 29  # the layout in which the cube core reads a weight


class QuantMatmul(nn.Module):
    """An int8 matmul with a scale for each output channel and each token."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randint(-10, 10, (HIDDEN, INTERMEDIATE), dtype=torch.int8)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(torch.randn(INTERMEDIATE), requires_grad=False)

    def forward(self, tokens: torch.Tensor, token_scale: torch.Tensor) -> torch.Tensor:
        """Map int8 (tokens, hidden) and a scale for each token to bf16 (tokens, intermediate)."""
        output: torch.Tensor = torch.ops.npu.npu_quant_matmul(
            tokens, self.weight, self.scale, pertoken_scale=token_scale, output_dtype=torch.bfloat16
        )
        return output


class DequantSwigluQuant(nn.Module):
    """SwiGLU between two quantisations."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_scale = nn.Parameter(torch.randn(TOKENS, INTERMEDIATE), requires_grad=False)

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map (tokens, intermediate) to int8 of half the width, and a scale for each token."""
        output, scale = torch.ops.npu.npu_dequant_swiglu_quant(hidden, weight_scale=self.weight_scale)
        return output, scale


class QuantMatmulSwiglu(nn.Module):
    """The two, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.quant_matmul = QuantMatmul()
        self.dequant_swiglu_quant = DequantSwigluQuant()

    def forward(self, tokens: torch.Tensor, token_scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the quantised activation, its scales, and the matmul's result."""
        hidden = self.quant_matmul(tokens, token_scale)
        return (*self.dequant_swiglu_quant(hidden), hidden)


def target() -> sktune.Target:
    """Return the target to tune."""
    import torch_npu  # registers the two operators

    has_npu = torch_npu.npu.is_available()
    device = "npu" if has_npu else "meta"
    torch.manual_seed(0)
    model = QuantMatmulSwiglu().to(device)
    if has_npu:
        weight = model.quant_matmul.weight
        weight.data = torch_npu.npu_format_cast(weight.data, FRACTAL_NZ)

    def inputs(seed: int, steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        tokens = [torch.randint(-10, 10, (TOKENS, HIDDEN), generator=generator, dtype=torch.int8) for _ in range(steps)]
        return [(step.to(device), torch.randn(TOKENS, generator=generator).to(device)) for step in tokens]

    description = f"npu_quant_matmul and npu_dequant_swiglu_quant, {TOKENS} x {HIDDEN} x {INTERMEDIATE}, int8"
    return sktune.Target(model, model.forward, inputs, description=description)
