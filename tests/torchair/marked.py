"""Which operators a scope should mark, worked out without marks, and which ones TorchAir has marked.

What should be marked comes from the baseline alone: Dynamo notes for each captured operator the module that ran it, a
scope reaches from its first unit's first operator to its last unit's last one, and the conversion was watched.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from sktune.core.plan import Plan, Scope
from sktune.core.scope_options import render

_OPERATOR = re.compile(r"^op \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_NAME, _TYPE = re.compile(r'^  name: "(.*)"', re.MULTILINE), re.compile(r'^  type: "(.*)"', re.MULTILINE)
_LABEL = re.compile(r'key: "_super_kernel_scope"\s+value \{\s+s: "(.*?)"')
_OPTIONS = re.compile(r'key: "_super_kernel_options"\s+value \{\s+s: "(.*?)"')


@dataclass(frozen=True)
class Marked:
    """A GE operator and its marks, as they stand in a dump."""

    name: str
    type: str
    label: str
    options: str


def read_dump(text: str) -> list[Marked]:
    """Return the operators of TorchAir's dump, inputs and output left out."""
    found = []
    for body in _OPERATOR.findall(text):
        name, kind = _first(_NAME, body), _first(_TYPE, body)
        if kind not in ("Data", "NetOutput"):
            found.append(Marked(name, kind, _first(_LABEL, body), _first(_OPTIONS, body)))
    return found


Conversion = Sequence[tuple[fx.Node, tuple[str, ...]]]
"""Captured operators in order, each with the names of the GE operators made of it."""


def expected(plan: Plan, baseline: Conversion) -> dict[str, tuple[str, str]]:
    """Return label and option string of every GE operator that ``plan`` should mark, by name."""
    marks: dict[str, tuple[str, str]] = {}
    for scope in plan.scopes:
        first, last = reach(scope, [node for node, _ in baseline])
        for _, names in baseline[first : last + 1]:
            marks |= dict.fromkeys(names, (scope.label, render(dict(scope.options))))
    return marks


def reach(scope: Scope, nodes: Sequence[fx.Node]) -> tuple[int, int]:
    """Return the places of the first and the last operator between the scope's boundaries."""
    of_first = [index for index, node in enumerate(nodes) if _runs_in(node, scope.first)]
    of_last = [index for index, node in enumerate(nodes) if _runs_in(node, scope.last)]
    return of_first[0], of_last[-1]


def _runs_in(node: fx.Node, unit: str) -> bool:
    stack = node.meta.get("nn_module_stack") or {}
    paths = (re.sub(r"\._modules\['(\w+)'\]", r".\1", path) for path, _ in stack.values())  # torch 2.8's form
    return any(path.endswith("." + unit) or f".{unit}." in path for path in paths)


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match.group(1) if match else ""
