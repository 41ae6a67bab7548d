"""A small model whose description is the number of page faults from allocating and freeing memory again and again."""

import resource

import torch
from torch import nn

import sktune

WARM_UPS, ROUNDS = 10, 20
"""In the first rounds one to five blocks get new memory; after that, none does."""
BLOCK_BYTES = 8 << 20


def target() -> sktune.Target:
    """Allocate and free three blocks again and again, as a step does, and count page faults."""
    for _ in range(WARM_UPS):
        _allocate_and_free()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(ROUNDS):
        _allocate_and_free()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    model = nn.Sequential(nn.Linear(16, 16)).requires_grad_(False)

    def prefill(seed: int, steps: int) -> list[tuple[torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        return [(torch.randn(2, 16, generator=generator),) for _ in range(steps)]

    return sktune.Target(model, model.forward, prefill, {}, f"{faults}")


def _allocate_and_free() -> None:
    _ = [torch.zeros(BLOCK_BYTES, dtype=torch.int8) for _ in range(3)]
