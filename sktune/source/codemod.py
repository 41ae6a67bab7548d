"""Insert the scopes of a plan into a model's source, without other changes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from sktune.core.plan import Plan
from sktune.core.scope_flavour import ScopeFlavour
from sktune.source.captured_mode import without_refusals
from sktune.source.classes import calls_in, classes_of, last_name, parsed
from sktune.source.guards import Guards
from sktune.source.hand_scopes import HELPER, without_scopes
from sktune.source.layer_conditions import of_layers
from sktune.source.placement import Block, Placed, find_blocks
from sktune.source.runs import Turn
from sktune.source.scope_statements import ScopeHeader, Write, with_calls, with_helper
from sktune.source.values import Known, Reading

SAFE_LABEL = re.compile(r"[\w.\-]+")
"""Labels that are written into source as they are."""
NUMBER = "{}"
"""Where the layer's number is in a label; no label can contain it."""
SWITCHES = ("npu_stream_switch", "limit_core_num")
"""Beginnings of the recipes' names for what changes the stream or the cores within a block."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A file with a plan's scopes.

    Attributes:
        text: the new source.
        notes: remarks for the reader, one line each.
        readings: where the program reads the flag; None where that cannot be seen.
    """

    text: str
    notes: tuple[str, ...]
    readings: tuple[Reading | None, ...]


def rewrite(
    text: str,
    plan: Plan,
    n_layers: int,
    helper_module: str,
    known: Known | None = None,
    flavour: ScopeFlavour = ScopeFlavour.SUPERKERNEL,
) -> Rewritten:
    """Return the source ``text`` with the scopes of ``plan`` in place of any existing ones.

    Args:
        text: of a file with the model's classes.
        plan: with SuperKernel options, or without options of scopes for npugraph_ex.
        n_layers: how many decoder layers the model has.
        helper_module: from which to import ``superkernel_scope``, if the file does not import it.
        known: what decides which branches the decode step takes.
        flavour: of the scopes: TorchAir's, or npugraph_ex's.

    Raises:
        PlanError: a scope cannot be expressed in this source, or its condition cannot; one line with the fix.
    """
    known, is_captured = known or Known(), flavour is ScopeFlavour.CAPTURED
    source, unneeded = without_refusals(parsed(text)) if is_captured else (parsed(text), ())
    tree, removed = without_scopes(source)
    classes = classes_of(tree)
    placed = find_blocks(classes, plan, n_layers, known, in_calls=is_captured)
    guards = Guards(classes, placed, n_layers, known)
    labeled = _label_all(placed, guards, n_layers)
    changed = tree.visit(_Inserter(labeled, guards.additions, with_calls if is_captured else with_helper))
    if is_captured:
        changed = changed if _imports_torch(tree) else _with_import(changed, "import torch\n")
    elif not _imports_helper(tree):
        changed = _with_import(changed, f"from {helper_module} import {HELPER}\n")
    notes = [*unneeded, *removed, *(note for each in labeled for note in _notes(each))]
    if guards.drafts:
        notes.append(f"draft layers get no scopes: {', '.join(guards.drafts)}")
    return Rewritten(changed.code, tuple(dict.fromkeys(notes)), tuple(guards.readings))


@dataclass(frozen=True, eq=False)
class _Labeled:
    """The header of a scope, the label without the layer's number, and whether that is the plan's own."""

    header: ScopeHeader
    label: str
    is_own: bool


def _label_all(placed: Placed, guards: Guards, n_layers: int) -> list[_Labeled]:
    """Return the header of each block, with a unique label; those of a scope that is apart have the same."""
    taken: set[str] = set()
    labeled = []
    for block in placed.blocks:
        index = guards.index(block) if block.layers else ""
        label = _Label.of(block, index, taken)
        header = ScopeHeader(block, _condition(block, guards, n_layers, index), label.text(index))
        labeled.append(_Labeled(header, label.base, label.is_own))
    for apart in placed.apart:
        begin, end = apart.begin, apart.end
        begins_at, ends_at = (guards.index(each) if each.layers else "" for each in (begin, end))
        number = "" if apart.distance is None else begins_at
        label = _Label.of(begin, number, taken)
        condition = _condition(begin, guards, n_layers, begins_at)
        header = ScopeHeader(begin, condition, label.text(number), ends=False)
        labeled.append(_Labeled(header, label.base, label.is_own))
        same = f"{ends_at} - {apart.distance}" if apart.distance else ends_at if number else ""
        condition = _condition(end, guards, n_layers, ends_at)
        header = ScopeHeader(end, condition, label.text(same), begins=False)
        labeled.append(_Labeled(header, label.base, label.is_own))
    return labeled


@dataclass(frozen=True, slots=True)
class _Label:
    """A scope's label: ``base``, and in each layer its number after it, or in place of ``NUMBER``."""

    base: str
    is_own: bool

    @classmethod
    def of(cls, block: Block, index: str, taken: set[str]) -> "_Label":
        """Return the plan's own label, or one for the units, that is not yet ``taken``."""
        own = _own_label(block, index)
        first, last = block.covers
        base = label = own or (first if first == last else f"{first}_to_{last}")
        number = 2
        while label in taken:
            label, number = f"{base}_{number}", number + 1
        taken.add(label)
        return cls(label, bool(own))

    def text(self, index: str) -> str:
        """Return the expression of the label, where the layer's number is the expression ``index``."""
        if NUMBER in self.base:
            return f'f"{self.base.replace(NUMBER, f"{{{index}}}")}"'
        return f'f"{self.base}_{{{index}}}"' if index and not self.is_own else f'"{self.base}"'


def _condition(block: Block, guards: Guards, n_layers: int, index: str) -> str:
    layers = () if block.is_whole else block.layers  # a branch around the block may say it already
    parts = (guards.condition(block), of_layers(layers, n_layers, index), _of_turn(block.turn))
    return " and ".join(filter(None, parts))


def _own_label(block: Block, index: str) -> str:
    """Return the plan's own label, with ``NUMBER`` for that of the layer; empty if there is none.

    Each layer's label must be the same but for the number of the layer.
    """
    if not all(SAFE_LABEL.fullmatch(label) for label in block.own_labels):
        return ""
    if len(block.layers) < 2:
        return block.own_labels[0] if len(block.own_labels) == 1 else ""
    templates = {
        re.sub(rf"(?<!\d){layer}(?!\d)", NUMBER, label, count=1)
        for layer, label in zip(block.layers, block.own_labels, strict=True)
    }
    return templates.pop() if index and len(templates) == 1 and NUMBER in min(templates) else ""


def _of_turn(turn: Turn | None) -> str:
    """Return the condition that a loop inside the layer is in its pass ``turn``."""
    return f"{turn.index} == {turn.number}" if turn and turn.count > 1 else ""


def _notes(labeled: _Labeled) -> list[str]:
    """Return what a reader should know about a block, one line each."""
    block, label = labeled.header.block, labeled.label.replace(NUMBER, "N")
    notes = [f"the scope {label} also contains: {text}" for text in block.besides]
    if block.own_labels[0] and not labeled.is_own:
        notes.append(f"the plan's label {block.own_labels[0]!r} is replaced by {label!r}")
    called = (last_name(call.func) for node in block.inside for call in calls_in(node))
    for name in dict.fromkeys(name for name in called if name.startswith(SWITCHES)):
        notes.append(f"the scope {label} encloses {name}: a scope that changes its stream or cores may be split")
    return notes


class _Inserter(cst.CSTTransformer):
    """Inserts the blocks and the additions to ``__init__``."""

    def __init__(self, labeled: Sequence[_Labeled], additions: Mapping[str, Sequence[str]], write: Write) -> None:
        self._by_suite: dict[int, list[ScopeHeader]] = {}
        for each in labeled:
            self._by_suite.setdefault(id(each.header.block.suite), []).append(each.header)
        self._additions, self._write = additions, write
        self._classes: list[str] = []

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        """Enter a class."""
        self._classes.append(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        """Leave it."""
        self._classes.pop()
        return updated_node

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """Append to ``__init__`` what a condition needs."""
        additions = self._additions.get(self._classes[-1], ()) if self._classes else ()
        if original_node.name.value != "__init__" or not additions:
            return updated_node
        new = [cst.parse_statement(line) for line in additions]
        return updated_node.with_deep_changes(updated_node.body, body=[*updated_node.body.body, *new])

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """Put the statements of each block into its scope."""
        headers = self._by_suite.get(id(original_node))
        if not headers:
            return updated_node
        return updated_node.with_changes(body=self._write(updated_node.body, headers))


def _imports_helper(tree: cst.Module) -> bool:
    imported = bool(m.findall(tree, m.ImportAlias(name=m.Name(HELPER))))
    defined = any(isinstance(each, cst.FunctionDef) and each.name.value == HELPER for each in tree.body)
    return imported or defined


def _imports_torch(tree: cst.Module) -> bool:
    imported = m.Import(names=[m.ZeroOrMore(), m.ImportAlias(name=m.Name("torch"), asname=None), m.ZeroOrMore()])
    return any(m.matches(each, m.SimpleStatementLine(body=[imported])) for each in tree.body)


def _with_import(tree: cst.Module, text: str) -> cst.Module:
    body = list(tree.body)
    imports = m.SimpleStatementLine(body=[m.Import() | m.ImportFrom()])
    after = max((index for index, each in enumerate(body) if m.matches(each, imports)), default=-1)
    line = cst.parse_statement(text)
    return tree.with_changes(body=[*body[: after + 1], line, *body[after + 1 :]])
