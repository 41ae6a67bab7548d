"""Insert the ``with superkernel_scope(...)`` blocks of a plan into a model's source, without other changes."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from sktune.core import scope_options
from sktune.core.errors import PlanError
from sktune.core.plan import Plan
from sktune.source.call_flow import Turn
from sktune.source.classes import ModuleClass, calls_in, classes_of, last_name, parsed
from sktune.source.guards import Guards
from sktune.source.hand_scopes import HELPER, MAX_REINDENTED, switched_off, without_scopes
from sktune.source.layer_conditions import of_layers
from sktune.source.placement import Block, Placed, find_blocks
from sktune.source.values import Known, Reading

MAX_INLINE = 60
"""Characters of arguments that fit on the line of their ``with``."""
SAFE_LABEL = re.compile(r"[\w.\-]+")
"""Labels that are written into source as they are."""
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


def rewrite(text: str, plan: Plan, n_layers: int, helper_module: str, known: Known | None = None) -> Rewritten:
    """Return the source ``text`` with the scopes of ``plan`` in place of any existing ones.

    Args:
        text: of a file with the model's classes.
        plan: with SuperKernel options.
        n_layers: how many decoder layers the model has.
        helper_module: from which to import ``superkernel_scope``, if the file does not import it.
        known: what decides which branches the decode step takes.

    Raises:
        PlanError: a scope cannot be expressed in this source, or its condition cannot; one line with the fix.
    """
    known = known or Known()
    tree, removed, classes, placed = _placed(parsed(text), plan, n_layers, known)
    guards = Guards(classes, placed, n_layers, known)
    labeled = _label_all(placed.blocks, guards, n_layers)
    changed = tree.visit(_Inserter(labeled, guards.additions))
    if not _imports_helper(tree):
        changed = _with_import(changed, helper_module)
    notes = [*removed, *(note for label, header in labeled for note in _notes(label, header))]
    if guards.drafts:
        notes.append(f"draft layers get no scopes: {', '.join(guards.drafts)}")
    return Rewritten(changed.code, tuple(dict.fromkeys(notes)), tuple(guards.readings))


def _placed(
    source: cst.Module, plan: Plan, n_layers: int, known: Known
) -> tuple[cst.Module, tuple[str, ...], Mapping[str, ModuleClass], Placed]:
    """Return the file without its scopes, notes on these, its classes, and where the plan's scopes go.

    Large scopes are only switched off, so that few lines change, unless they are in the way of the plan's.
    """
    tree, removed = without_scopes(source, MAX_REINDENTED)
    if bodies := switched_off(tree):
        with suppress(PlanError):
            classes = classes_of(tree)
            placed = find_blocks(classes, plan, n_layers, known)
            if not any(block.surrounds(body) for block in placed.blocks for body in bodies):
                return tree, removed, classes, placed
        tree, removed = without_scopes(source)
    classes = classes_of(tree)
    return tree, removed, classes, find_blocks(classes, plan, n_layers, known)


@dataclass(frozen=True, eq=False)
class _Header:
    """A block and the header of its ``with``; whether its label is the plan's own."""

    block: Block
    header: str
    is_own_label: bool


def _label_all(blocks: Sequence[Block], guards: Guards, n_layers: int) -> list[tuple[str, _Header]]:
    """Return each block with a unique label and its header."""
    taken: set[str] = set()
    labeled = []
    for block in blocks:
        index = guards.index(block) if block.layers else ""
        own = _own_label(block, index)
        first, last = block.covers
        base = label = own or (first if first == last else f"{first}_to_{last}")
        number = 2
        while label in taken:
            label, number = f"{base}_{number}", number + 1
        taken.add(label)
        text = f'"{label}"'
        if index and (not own or "{" in label):
            text = f'f"{label}"' if own else f'f"{label}_{{{index}}}"'
        turn = _of_turn(block.turn)
        condition = " and ".join(filter(None, (guards.condition(block), of_layers(block, n_layers, index), turn)))
        options = scope_options.render(dict(block.options))
        labeled.append((label, _Header(block, _call(f'{condition}, {text}, "{options}"'), bool(own))))
    return labeled


def _own_label(block: Block, index: str) -> str:
    """Return the plan's own label, with the layer's number replaced by its expression; empty if there is none.

    Each layer's label must be the same but for the number of the layer.
    """
    if not all(SAFE_LABEL.fullmatch(label) for label in block.own_labels):
        return ""
    if len(block.layers) < 2:
        return block.own_labels[0] if len(block.own_labels) == 1 else ""
    templates = {
        re.sub(rf"(?<!\d){layer}(?!\d)", f"{{{index}}}", label, count=1)
        for layer, label in zip(block.layers, block.own_labels, strict=True)
    }
    return templates.pop() if len(templates) == 1 and "{" in min(templates) else ""


def _of_turn(turn: Turn | None) -> str:
    """Return the condition that a loop inside the layer is in its pass ``turn``."""
    return f"{turn.index} == {turn.number}" if turn and turn.count > 1 else ""


def _notes(label: str, header: _Header) -> list[str]:
    """Return what a reader should know about a block, one line each."""
    block = header.block
    notes = [f"the scope {label} also contains: {text}" for text in block.besides]
    if block.own_labels[0] and not header.is_own_label:
        notes.append(f"the plan's label {block.own_labels[0]!r} is replaced by {label!r}")
    called = (last_name(call.func) for node in block.inside for call in calls_in(node))
    for name in dict.fromkeys(name for name in called if name.startswith(SWITCHES)):
        notes.append(f"the scope {label} encloses {name}: a scope that changes its stream or cores may be split")
    return notes


def _call(arguments: str) -> str:
    if len(arguments) <= MAX_INLINE:
        return f"{HELPER}({arguments})"
    return f"{HELPER}(\n    {arguments}\n)"


class _Inserter(cst.CSTTransformer):
    """Inserts the blocks and the additions to ``__init__``."""

    def __init__(self, labeled: Sequence[tuple[str, _Header]], additions: Mapping[str, Sequence[str]]) -> None:
        self._by_suite: dict[int, list[_Header]] = {}
        for _, each in labeled:
            self._by_suite.setdefault(id(each.block.suite), []).append(each)
        self._additions = additions
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
        """Put the statements of each block into its ``with``."""
        headers = self._by_suite.get(id(original_node))
        if not headers:
            return updated_node
        statements = list(updated_node.body)
        return updated_node.with_changes(body=_nest(statements, 0, len(statements) - 1, headers))


def _nest(
    statements: Sequence[cst.BaseStatement], first: int, last: int, headers: Sequence[_Header]
) -> list[cst.BaseStatement]:
    """Return the statements ``first`` to ``last`` with their blocks, nested from the outermost inwards."""
    nested: list[cst.BaseStatement] = []
    position = first
    while position <= last:
        here = [each for each in headers if each.block.first == position and each.block.last <= last]
        if not here:
            nested.append(statements[position])
            position += 1
            continue
        outer = max(here, key=lambda each: each.block.last)
        others = [each for each in headers if each is not outer]
        end = outer.block.last
        nested.append(_with(outer.header, _nest(statements, position, end, others)))
        headers = [each for each in others if each.block.first > end]
        position = end + 1
    return nested


def _with(header: str, body: list[cst.BaseStatement]) -> cst.With:
    first = body[0]
    assert isinstance(first, cst.SimpleStatementLine | cst.BaseCompoundStatement)
    lines = list(first.leading_lines)
    # Blank lines stay before the block; comments stay with the statement that they describe.
    blank = next((index for index, line in enumerate(lines) if line.comment), len(lines))
    body = [first.with_changes(leading_lines=lines[blank:]), *body[1:]]
    block = cst.parse_statement(f"with {header}:\n    pass\n")
    assert isinstance(block, cst.With)
    return block.with_changes(leading_lines=lines[:blank], body=block.body.with_changes(body=body))


def _imports_helper(tree: cst.Module) -> bool:
    imported = bool(m.findall(tree, m.ImportAlias(name=m.Name(HELPER))))
    defined = any(isinstance(each, cst.FunctionDef) and each.name.value == HELPER for each in tree.body)
    return imported or defined


def _with_import(tree: cst.Module, module: str) -> cst.Module:
    body = list(tree.body)
    imports = m.SimpleStatementLine(body=[m.Import() | m.ImportFrom()])
    after = max((index for index, each in enumerate(body) if m.matches(each, imports)), default=-1)
    line = cst.parse_statement(f"from {module} import {HELPER}\n")
    return tree.with_changes(body=[*body[: after + 1], line, *body[after + 1 :]])
