"""A small model that tells, in its description, how often the kernel had to give its process memory again."""

import resource

import torch
from torch import nn

import sktune

WARM_UPS, ROUNDS = 10, 20
"""Until blocks have found places between what else was allocated, one to five of them are new; then none."""
BLOCK_BYTES = 8 << 20


def target() -> sktune.Target:
    """Take and free three blocks again and again, as a step does, and count page faults."""
    for _ in range(WARM_UPS):
        _take_and_free()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(ROUNDS):
        _take_and_free()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    model = nn.Sequential(nn.Linear(16, 16)).requires_grad_(False)

    def prefill(seed: int, steps: int) -> list[tuple[torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        return [(torch.randn(2, 16, generator=generator),) for _ in range(steps)]

    return sktune.Target(model, model.forward, prefill, {}, f"{faults}")


def _take_and_free() -> None:
    _ = [torch.zeros(BLOCK_BYTES, dtype=torch.int8) for _ in range(3)]
