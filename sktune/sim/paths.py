"""The ways to SuperKernels: which operators of a plan's scopes become one, and with which options. Here is GE's.

GE's pass works on a graph whose operators have labels; graph-autofusion's splitter (``sktune.sim.captured``) works on
captured tasks between markers, with options of the whole step. A SuperKernel of the second way is assumed to cost what
one of the first does: the code that is generated there has not been read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sktune.ascend.superkernel_pass import GraphNode, Grouping, group
from sktune.core.plan import Option, Plan, Scope
from sktune.core.scope_options import check_options, render
from sktune.sim.constants import Constants
from sktune.sim.operators import Operator
from sktune.sim.superkernel import starts_by_sync_all


@dataclass(frozen=True, slots=True)
class ScopeRange:
    """The operators of a scope, or between two scopes: positions of the first and the last one."""

    first: int
    last: int
    scope: Scope | None


class SuperKernelPath(Protocol):
    """One of the ways, for the operators of one step."""

    def __init__(self, operators: Sequence[Operator], constants: Constants) -> None: ...

    def options(self, plan: Plan, scope: Scope) -> dict[str, Option]:
        """Return the options of a scope under GE's names."""

    def group(self, plan: Plan, ranges: Sequence[ScopeRange]) -> Grouping:
        """Return the SuperKernels of a plan whose scopes lie at these ranges."""


class GePath:
    """GE's pass (``sktune.ascend.superkernel_pass``)."""

    def __init__(self, operators: Sequence[Operator], constants: Constants) -> None:
        self._operators, self._constants = operators, constants
        self._nodes = tuple(map(_node, operators))
        # A collective that is not fused loses the label before the pass (GE, hcom_ops_kernel_builder.cc).
        self._loses_label = [op.core == "communication" and not op.can_fuse for op in operators]

    def options(self, plan: Plan, scope: Scope) -> dict[str, Option]:  # noqa: ARG002 - options of scopes
        """See ``SuperKernelPath``."""
        return dict(scope.options)

    def group(self, plan: Plan, ranges: Sequence[ScopeRange]) -> Grouping:
        """See ``SuperKernelPath``.

        Raises:
            SpaceError: GE would reject an option.
        """
        nodes = list(self._nodes)
        for each in ranges:
            if each.scope is None:
                continue
            options = self.options(plan, each.scope)
            check_options(options)
            text = render(options)
            for index in range(each.first, each.last + 1):
                if not self._loses_label[index]:
                    nodes[index] = replace(nodes[index], label=each.scope.label, options=text)

        def starts(inside: Sequence[int]) -> list[int]:
            places = starts_by_sync_all([self._operators[node] for node in inside], self._constants)
            return [inside[place] for place in places]

        return group(nodes, starts if self._constants.splits_at_sync_all.value else None)


def _node(operator: Operator) -> GraphNode:
    """Return what GE's pass sees of an operator."""
    is_collective = operator.core == "communication" and operator.can_fuse
    return GraphNode(
        operator.name, operator.type, stream=operator.stream, is_supported=operator.can_fuse and not is_collective,
        is_collective=is_collective, waits_for=operator.after,
    )  # fmt: skip
