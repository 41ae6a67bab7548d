"""What each scope of a plan became, as counts: which runs of its operators are in one SuperKernel."""

from collections.abc import Sequence
from itertools import groupby

from sktune.ascend.fusion import RealisedFusion
from sktune.ascend.kernel_name import SUPERKERNEL
from sktune.core.events.scopes import NamedOperator, ScopeFusion
from sktune.core.fused_scopes import FusedPart, FusedScope, alike_together


def fused_scopes(fusion: RealisedFusion) -> tuple[FusedScope, ...]:
    """Return what each scope became; empty where the sources do not show both what was marked and what was fused."""
    if not fusion.is_known:
        return ()
    return alike_together(_fused(scope) for scope in fusion.scopes if scope.marked)


def _fused(scope: ScopeFusion) -> FusedScope:
    """Return the marked operators in runs that are in the same SuperKernel, or in none; GE removed the others."""
    inside: dict[str, str] = {}
    names = [operator.name for operator in scope.marked]
    for kernel in scope.superkernels:
        members = [operator.name for operator in kernel.operators]
        if not members and kernel.first in names and kernel.last in names:
            members = names[names.index(kernel.first) : names.index(kernel.last) + 1]
        inside.update(dict.fromkeys(members, kernel.name))
    alone = {operator.name for operator in scope.left_out}
    left = [operator for operator in scope.marked if operator.name in alone or operator.name in inside]
    runs = groupby(left, key=lambda each: "" if each.name in alone else inside[each.name])
    # Only a list of a SuperKernel's operators shows them one by one; its ends do not.
    listed = {operator.name for kernel in scope.superkernels for operator in kernel.operators}
    types = sorted({operator.type for operator in left if operator.name in listed and operator.name not in alone})
    return FusedScope((scope.label,), tuple(_part(kernel, list(run)) for kernel, run in runs), tuple(types))


def _part(kernel: str, operators: Sequence[NamedOperator]) -> FusedPart:
    types = () if kernel else tuple(operator.type for operator in operators)
    return FusedPart(len(operators), SUPERKERNEL if kernel else "", types)
