"""Where a SuperKernel is split because of SyncAll, by the check that newer versions of GE make.

Restated from ``ScopeCoreInfoCalculator`` and ``ScheModeKernelSplitPass`` in ``sk_scope_split.cpp`` of
hicann/graph-autofusion (27b63bef), which GE's pass calls through ``aclskScopeVerify`` since hicann/ge 758294ad2; no
release up to 9.2.0-beta.2 does. The check looks at a kernel's schedule mode; here that is taken to be on where the
kernel calls SyncAll. It does not know ``feed-sync-all``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from sktune.ascend.superkernel_parts import KernelType, SubKernel
from sktune.core.scope_options import MAX_AIC, MAX_AIV


@dataclass(frozen=True, slots=True)
class _Demand:
    """The cores that kernels demand of their SuperKernel: at least ``aic`` and ``aiv``, and exactly ``exact_*`` of
    those on which a SyncAll waits, if any does."""

    aic: int = 0
    aiv: int = 0
    is_mix_1_2: bool = False
    exact_aic: int | None = None
    exact_aiv: int | None = None

    def with_kernel(self, kernel: SubKernel) -> Self | None:
        """Return the demand with one more kernel; None if their SyncAlls contradict each other."""
        aic = 0 if kernel.kernel_type.core == "vector" else kernel.blocks
        aiv = kernel.blocks * kernel.kernel_type.vectors_per_block
        exact_aic, exact_aiv = self.exact_aic, self.exact_aiv
        if kernel.calls_sync_all:
            needed, known = (aic, exact_aic) if aic else (aiv, exact_aiv)
            if known not in (None, needed):
                return None
            exact_aic, exact_aiv = (aic, exact_aiv) if aic else (exact_aic, aiv)
        return replace(
            self, aic=max(self.aic, aic), aiv=max(self.aiv, aiv),
            is_mix_1_2=self.is_mix_1_2 or kernel.kernel_type is KernelType.MIX_AIC_1_2,
            exact_aic=exact_aic, exact_aiv=exact_aiv,
        )  # fmt: skip

    @property
    def can_be_met(self) -> bool:
        """Whether any SuperKernel has these cores."""
        return any(
            aic <= MAX_AIC and aiv <= MAX_AIV and self.exact_aic in (None, aic) and self.exact_aiv in (None, aiv)
            for aic, aiv in self._candidates()
        )

    def _candidates(self) -> Iterator[tuple[int, int]]:
        """Yield AIC and AIV of the SuperKernels that are considered."""
        blocks_1_2 = max(self.aic, (self.aiv + 1) // 2)
        if not self.is_mix_1_2 and not (self.aic and self.aiv):
            yield self.aic, self.aiv
            return
        yield blocks_1_2, 2 * blocks_1_2
        if not self.is_mix_1_2:
            yield max(self.aic, self.aiv), max(self.aic, self.aiv)


def sync_all_splits(kernels: Sequence[SubKernel]) -> tuple[int, ...]:
    """Return the positions of kernels before which a SuperKernel of ``kernels`` is split."""
    if _demand(kernels):
        return ()
    splits: list[int] = []
    first = 0
    for place in range(1, len(kernels)):
        if not _demand(kernels[first : place + 1]):
            splits.append(place)
            first = place
    return tuple(splits)


def _demand(kernels: Sequence[SubKernel]) -> _Demand | None:
    """Return what the kernels demand together; None if no SuperKernel can give it."""
    demand: _Demand | None = _Demand()
    for kernel in kernels:
        demand = demand.with_kernel(kernel) if demand else None
    return demand if demand and demand.can_be_met else None
