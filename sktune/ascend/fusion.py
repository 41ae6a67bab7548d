"""How the scopes of a plan were fused: marking is not fusion.

GE fuses what it can of a scope and runs the rest as before. Each of four sources shows a part of the result: TorchAir's
dump what was marked, GE's ``AfterSkGraph`` dump and a profile what was fused, plog why. Any of them may be missing;
what they do not show is left open, never guessed.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import pandas as pd

from sktune.ascend.cann_log import Explanation
from sktune.ascend.ge_graph import GeGraph, GeOperator
from sktune.ascend.kernel_name import SUPERKERNEL, SuperKernelName, parse_superkernel_name
from sktune.ascend.superkernel_pass import PassCut, counts_text, cuts_text
from sktune.core.errors import SpaceError
from sktune.core.events.scopes import FormedSuperKernel, NamedOperator, ScopeFusion, Split
from sktune.core.fused_scopes import FusedPart, FusedScope, alike_together
from sktune.core.plan import Option
from sktune.core.printable import counted
from sktune.core.scope_options import normalise, parse, render


@dataclass(frozen=True, slots=True)
class RealisedFusion:
    """How all scopes of a plan were fused.

    Attributes:
        evidence: the sources given, out of ``marks``, ``graph``, ``profile`` and ``plog``.
        alone: digest of the names of all kernels of the step that are not SuperKernels.
        findings: what the logs say that names no scope.
    """

    scopes: tuple[ScopeFusion, ...]
    evidence: tuple[str, ...]
    alone: str = ""
    findings: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the evidence shows what was fused; marks and logs alone do not."""
        return "graph" in self.evidence or "profile" in self.evidence

    @property
    def digest(self) -> str:
        """64 hexadecimal digits, equal for plans that became the same kernels.

        It depends on which operators are in one SuperKernel, the options that it was compiled with, and the kernels
        outside; not on labels, nor on marks without effect. While fusion is not known, the marks stand in for it.
        Comparable between plans of one model with the same kinds of evidence.
        """
        if self.is_known:
            groups = [
                (
                    kernel.first,
                    kernel.last,
                    [each.name for each in kernel.operators],
                    _acting(scope.options, is_on_one_stream=kernel.is_on_one_stream),
                )
                for scope in self.scopes
                for kernel in scope.superkernels
            ]
        else:
            groups = [
                ("", "", sorted(each.name for each in scope.marked), _acting(scope.options))
                for scope in self.scopes
                if scope.marked
            ]
        return _hashed([self.is_known, self.alone, sorted(groups)])

    def digest_under(self, step_options: Mapping[str, Option]) -> str:
        """Return ``digest`` for a step that was compiled with exactly these options of the whole step.

        They affect every kernel and their order, which marks and kernel names do not show.
        """
        return _hashed([self.digest, sorted(step_options.items())])


def _hashed(content: list[Any]) -> str:
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


def realised_fusion(
    *,
    marked: GeGraph | None = None,
    fused: Iterable[GeGraph] = (),
    kernels: pd.DataFrame | None = None,
    explanations: Iterable[Explanation] = (),
    labels: Collection[str] = (),
) -> RealisedFusion:
    """Combine the evidence of how the scopes of a plan were fused.

    Args:
        marked: TorchAir's dump of the graph that GE was given.
        fused: GE's dumps after fusion: ``AfterSkGraph``, and each ``super_kernel_sub_graph<N>``.
        kernels: a profile's kernels with columns ``step``, ``device``, ``stream``, ``name``, ``type``, ``start_us``.
            Only one step on one device is used. Takes precedence over ``fused``, since it is later.
        explanations: of the logs.
        labels: of the plan's scopes. Scopes that are found but not listed are reported too.
    """
    marks = marked.by_scope() if marked else {}
    known = dict.fromkeys((*labels, *marks))
    names = frozenset(operator.name for operators in marks.values() for operator in operators)
    graphs = tuple(fused)
    rows, members = _graph_rows(graphs)
    step = _Step(rows if kernels is None else _profile_rows(kernels), known, names)
    reasons = tuple(explanations)
    evidence = (
        ("marks", marked is not None),
        ("graph", bool(graphs)),
        ("profile", kernels is not None),
        ("plog", bool(reasons)),
    )
    scopes = dict.fromkeys((*known, *step.labels, *(each.scope for each in reasons if each.scope)))
    return RealisedFusion(
        tuple(_scope(label, marks.get(label, ()), step, members, reasons) for label in scopes),
        tuple(name for name, seen in evidence if seen),
        step.alone,
        tuple(each.message for each in reasons if not each.scope),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One task of the device."""

    stream: str
    operator: NamedOperator


class _Step:
    """The tasks of one step in order, and which of them are SuperKernels of which scope."""

    def __init__(self, rows: Sequence[_Row], labels: Collection[str], operators: Collection[str]) -> None:
        self._rows = rows
        self._names: dict[int, SuperKernelName] = {}
        for place, row in enumerate(rows):
            if row.operator.type == SUPERKERNEL and (
                name := parse_superkernel_name(row.operator.name, labels, operators)
            ):
                self._names[place] = name
        self.labels = tuple(dict.fromkeys(name.scope for name in self._names.values()))

    @property
    def alone(self) -> str:
        names = sorted(row.operator.name for row in self._rows if row.operator.type != SUPERKERNEL)
        return hashlib.sha256("\n".join(names).encode()).hexdigest() if self._rows else ""

    def superkernels(self, label: str) -> list[tuple[_Row, SuperKernelName]]:
        return [(self._rows[place], name) for place, name in self._names.items() if name.scope == label]

    def between(self, label: str, members: Mapping[str, "_Members"]) -> Iterator[NamedOperator | None]:
        """Yield what runs between the SuperKernels of a scope on its streams, None where nothing does."""
        places = [place for place, name in self._names.items() if name.scope == label]
        for left, right in pairwise(places):
            # One operator cuts a scope on all its streams; a SuperKernel itself runs on one of them.
            rows = self._rows[left], self._rows[right]
            streams = {row.stream for row in rows}
            streams |= {
                stream for row in rows if row.operator.name in members for stream in members[row.operator.name].streams
            }
            inside = [row.operator for row in self._rows[left + 1 : right] if row.stream in streams]
            yield from inside or (None,)

    def ran(self, names: Collection[str]) -> list[NamedOperator]:
        return [row.operator for row in self._rows if row.operator.name in names and row.operator.type != SUPERKERNEL]


@dataclass(slots=True)
class _Members:
    """The operators inside a SuperKernel, and their streams."""

    operators: list[NamedOperator] = field(default_factory=list)
    streams: set[str] = field(default_factory=set)


def _scope(
    label: str,
    marks: Sequence[GeOperator],
    step: _Step,
    members: Mapping[str, _Members],
    explanations: Sequence[Explanation],
) -> ScopeFusion:
    findings = [each for each in explanations if each.scope == label]
    between = list(step.between(label, members))
    names = {operator.name for operator in marks}
    splits = [Split(each.name, each.type, _rule(each, names, findings)) if each else Split("", "") for each in between]
    if not splits:
        # Without a graph or profile of the step, the logs name the first operator of each type that cut it.
        cuts = [each for each in findings if each.kind in _LOGGED_RULES]
        splits = [Split(each.operator, each.operator_type, _LOGGED_RULES[each.kind]) for each in cuts]
    outside = [each for each in between if each and each.type != SUPERKERNEL] + step.ran(names)
    kernels = []
    for row, name in step.superkernels(label):
        inside = members.get(row.operator.name, _Members())
        operators, is_on_one_stream = tuple(inside.operators), len(inside.streams) == 1
        kernels.append(
            FormedSuperKernel(row.operator.name, name.first, name.last, operators, name.is_fragment, is_on_one_stream)
        )
    reasons = [each.message for each in findings]
    options = sorted({operator.options for operator in marks})
    if len(options) > 1:
        # GE uses the first operator's options for the SuperKernel, and each operator's own for its sub-kernel.
        listed = " and ".join(map(repr, options))
        reasons.insert(0, f"operators of scope {label} carry different options, {listed}; use one string per label")
    return ScopeFusion(
        label,
        tuple(NamedOperator(operator.name, operator.type) for operator in marks),
        marks[0].options if marks else "",
        tuple(kernels),
        tuple(splits),
        tuple(dict.fromkeys(outside)),
        tuple(reasons),
    )


_LOGGED_RULES = {
    "unfusable": PassCut.NOT_BUILT, "foreign": PassCut.NO_SCOPE, "deadlock": PassCut.DEADLOCK,
    "sync_all": PassCut.SYNC_ALL,
}  # fmt: skip


def _rule(cutting: NamedOperator, marked: Collection[str], findings: Iterable[Explanation]) -> str:
    """Return why an operator that ran between SuperKernels of a scope cuts it, as far as logs and marks show it."""
    if cutting.type == SUPERKERNEL:
        return PassCut.OTHER_SCOPE
    logged = (_LOGGED_RULES.get(each.kind) for each in findings if each.operator_type == cutting.type)
    if rule := next(filter(None, logged), None):
        return rule
    return (PassCut.LEFT_OUT if cutting.name in marked else PassCut.NO_SCOPE) if marked else ""


def _graph_rows(graphs: Iterable[GeGraph]) -> tuple[list[_Row], dict[str, _Members]]:
    """Return the tasks of fused graphs, and what is inside each SuperKernel, by its name."""
    rows: list[_Row] = []
    members: dict[str, _Members] = {}
    for graph in graphs:
        for task in graph.device_tasks:
            operator = NamedOperator(task.name, task.type)
            if task.superkernel:
                inside = members.setdefault(task.superkernel, _Members())
                inside.operators.append(operator)
                inside.streams.add(task.stream)
            else:
                rows.append(_Row(task.stream, operator))
    return rows, members


def _profile_rows(kernels: pd.DataFrame) -> list[_Row]:
    """Return the kernels of one step on one device, in order.

    With marked steps it is the first one that has as many SuperKernels as steps that have some do in the median: there
    may be a prefill or a warm-up before.
    """
    frame = kernels[kernels["device"] == kernels["device"].min()].sort_values("start_us", kind="stable")
    steps = frame.loc[frame["step"] >= 0, "step"]
    if not steps.empty:
        counts = frame.loc[(frame["step"] >= 0) & (frame["type"] == SUPERKERNEL), "step"].value_counts()
        usual = counts.index[counts == counts.quantile(interpolation="higher")]
        frame = frame[frame["step"] == min(usual, default=steps.min())]
    columns = zip(frame["stream"].astype(str), frame["name"].astype(str), frame["type"].astype(str), strict=True)
    rows = [_Row(stream, NamedOperator(name, kind)) for stream, name, kind in columns]
    # A SuperKernel is named after its operators, so a name repeats only in the next step.
    seen: set[str] = set()
    for place, row in enumerate(rows):
        if row.operator.type == SUPERKERNEL:
            if row.operator.name in seen:
                return rows[:place]
            seen.add(row.operator.name)
    return rows


def _acting(options: str, *, is_on_one_stream: bool = False) -> str:
    """Return the options that have an effect, so that scopes that compile to the same thing are equal.

    On one stream, ``early-start=2`` and ``stream-fusion=1`` give the same code (graph-autofusion 8d0b4fbc).
    """
    try:
        acting = normalise(parse(options))
        if is_on_one_stream and acting.get("early-start") == 2:
            acting = {name: value for name, value in acting.items() if name != "early-start"} | {"stream-fusion": 1}
        return render(acting)
    except SpaceError:
        return options


def describe(fusion: RealisedFusion) -> list[str]:
    """Return one line for each scope (marked, formed, split, left out) and what the logs say, about it and in all."""
    lines = []
    for scope in fusion.scopes:
        parts = []
        if scope.marked:
            parts.append(f"{counted(len(scope.marked), 'operator')} marked ({_types(scope.marked)})")
        if not fusion.is_known:
            parts.append("what was fused is not known; give GE's AfterSkGraph dump or a profile")
        elif not scope.superkernels:
            parts.append("no SuperKernel was formed")
        else:
            spans = [
                f"{kernel.first} to {kernel.last}"
                + (f", {counted(len(kernel.operators), 'operator')}" if kernel.operators else "")
                for kernel in scope.superkernels
            ]
            more = f", and {len(spans) - 3} more" if len(spans) > 3 else ""
            parts.append(f"{counted(len(spans), SUPERKERNEL)} ({'; '.join(spans[:3])}{more})")
        if scope.splits:
            cuts = [(split.operator_type or "no operator", split.rule) for split in scope.splits]
            parts.append(f"split at {cuts_text(cuts)}")
        if scope.left_out:
            parts.append(f"{len(scope.left_out)} ran outside ({_types(scope.left_out)})")
        lines.append(f"{scope.label}: " + "; ".join(parts))
        lines += [f"  {reason}" for reason in scope.reasons]
    return [*lines, *(f"logs: {finding}" for finding in fusion.findings)]


def _types(operators: Iterable[NamedOperator]) -> str:
    return counts_text(Counter(operator.type for operator in operators))


def fused_scopes(fusion: RealisedFusion) -> tuple[FusedScope, ...]:
    """Return what each scope became, as counts: which runs of its operators are in one SuperKernel.

    Empty where the sources do not show both what was marked and what was fused.
    """
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
    parts = []
    for name, run in groupby(left, key=lambda each: "" if each.name in alone else inside[each.name]):
        kinds = tuple(operator.type for operator in run)
        parts.append(FusedPart(len(kinds), SUPERKERNEL if name else "", () if name else kinds))
    # Only a list of a SuperKernel's operators shows them one by one; its ends do not.
    listed = {operator.name for kernel in scope.superkernels for operator in kernel.operators}
    types = sorted({operator.type for operator in left if operator.name in listed and operator.name not in alone})
    return FusedScope((scope.label,), tuple(parts), tuple(types))
