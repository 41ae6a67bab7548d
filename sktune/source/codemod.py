"""Insert the scopes of a plan into a model's source, without other changes.

A scope is TorchAir's, a ``with`` of the recipes' helper, or npugraph_ex's, a begin and an end. The latter wants direct
calls: graph-autofusion's guide warns that marks made by helpers and context managers may not reach the captured graph.
Each way out of such a scope, a ``return`` for instance, gets its end.
"""

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import libcst as cst
import libcst.matchers as m

from sktune.core import scope_options
from sktune.core.errors import PlanError
from sktune.core.plan import Plan
from sktune.core.scope_flavour import ScopeFlavour
from sktune.source.captured_mode import without_refusals
from sktune.source.classes import calls_in, classes_of, last_name, parsed
from sktune.source.guards import Guards, of_layers
from sktune.source.hand_scopes import BEGIN, END, HELPER, without_scopes
from sktune.source.placement import Block, Placed, find_blocks
from sktune.source.values import Known, Reading

MAX_INLINE = 60
"""Characters of arguments that fit on the line of their ``with``."""
MAX_LINE = 96
"""Characters of arguments, or of a condition, that fit on a line of their own, which is indented."""
PLAIN = m.Name() | m.Attribute() | m.Tuple() | m.Integer() | m.Element() | m.Comma() | m.Dot()
"""What a ``return`` can contain without computing something, which belongs in the scope."""
RESULT = "result"

Statements = list[cst.BaseStatement]


@dataclass(frozen=True, slots=True)
class ScopeHeader:
    """What a scope is written with.

    Attributes:
        block: the statements.
        condition: expression; false where the scope does not apply.
        label: expression.
        begins, ends: whether it begins before the first of these statements, and ends after the last.
    """

    block: Block
    condition: str
    label: str
    begins: bool = True
    ends: bool = True


Write = Callable[[Sequence[cst.BaseStatement], Sequence[ScopeHeader]], Statements]
"""Returns a list of statements with its scopes."""


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
    users: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Rewritten:
    """Return the source ``text`` with the scopes of ``plan`` in place of any existing ones.

    Args:
        text: of a file with the model's classes.
        plan: with SuperKernel options, or without options of scopes for npugraph_ex.
        n_layers: how many decoder layers the model has.
        helper_module: from which to import ``superkernel_scope``, if the file does not import it.
        known: what decides which branches the decode step takes.
        flavour: of the scopes: TorchAir's, or npugraph_ex's.
        users: by class of the file, other files that use it.

    Raises:
        PlanError: a scope cannot be expressed in this source, or its condition cannot; one line with the fix.
    """
    known, is_captured = known or Known(), flavour is ScopeFlavour.CAPTURED
    source, unneeded = without_refusals(parsed(text)) if is_captured else (parsed(text), ())
    tree, removed = without_scopes(source)
    classes = classes_of(tree)
    placed = find_blocks(classes, plan, n_layers, known, in_calls=is_captured)
    guards = Guards(classes, placed, n_layers, known, users)
    labeled = _label_all(placed, guards, n_layers)
    headers = [header for header, _ in labeled]
    changed = tree.visit(_Inserter(headers, guards.additions, with_calls if is_captured else with_helper))
    if is_captured:
        is_torch = m.ImportAlias(name=m.Name("torch"), asname=None)
        line = m.SimpleStatementLine(body=[m.Import(names=[m.ZeroOrMore(), is_torch, m.ZeroOrMore()])])
        if not any(m.matches(each, line) for each in tree.body):
            changed = _with_import(changed, "import torch\n")
    elif not m.findall(tree, m.ImportAlias(name=m.Name(HELPER))) and not any(
        m.matches(each, m.FunctionDef(name=m.Name(HELPER))) for each in tree.body
    ):
        changed = _with_import(changed, f"from {helper_module} import {HELPER}\n")
    notes = [*unneeded, *removed, *(note for header, label in labeled for note in _notes(header.block, label))]
    if guards.drafts:
        notes.append(f"draft layers get no scopes: {', '.join(guards.drafts)}")
    if guards.users:
        notes.append(
            f"layers with number {n_layers} or more get no scopes, as draft layers have: check that those of "
            f"{', '.join(guards.users)} have such numbers"
        )
    return Rewritten(changed.code, tuple(dict.fromkeys(notes)), tuple(guards.readings))


def _label_all(placed: Placed, guards: Guards, n_layers: int) -> list[tuple[ScopeHeader, "_Label"]]:
    """Return the header of each block, with a unique label; those of a scope that is apart have the same."""
    taken: set[str] = set()
    labeled = []
    for block in placed.blocks:
        index = guards.index(block) if block.layers else ""
        label = _Label.of(block, index, taken)
        labeled.append((ScopeHeader(block, _condition(block, guards, n_layers, index), label.text(index)), label))
    for apart in placed.apart:
        begins_at, ends_at = (guards.index(each) if each.layers else "" for each in (apart.begin, apart.end))
        number = "" if apart.distance is None else begins_at
        label = _Label.of(apart.begin, number, taken)
        condition = _condition(apart.begin, guards, n_layers, begins_at)
        labeled.append((ScopeHeader(apart.begin, condition, label.text(number), ends=False), label))
        same = f"{ends_at} - {apart.distance}" if apart.distance else ends_at if number else ""
        condition = _condition(apart.end, guards, n_layers, ends_at)
        labeled.append((ScopeHeader(apart.end, condition, label.text(same), begins=False), label))
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
    turn = block.turn  # the pass of a loop inside the layer
    of_turn = f"{turn.index} == {turn.number}" if turn and turn.count > 1 else ""
    return " and ".join(filter(None, (guards.condition(block), of_layers(layers, n_layers, index), of_turn)))


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


def _notes(block: Block, of_block: _Label) -> list[str]:
    """Return what a reader should know about a block, one line each."""
    label = of_block.base.replace(NUMBER, "N")
    notes = [f"the scope {label} also contains: {text}" for text in block.besides]
    if block.own_labels[0] and not of_block.is_own:
        notes.append(f"the plan's label {block.own_labels[0]!r} is replaced by {label!r}")
    called = (last_name(call.func) for node in block.inside for call in calls_in(node))
    for name in dict.fromkeys(name for name in called if name.startswith(SWITCHES)):
        notes.append(f"the scope {label} encloses {name}: a scope that changes its stream or cores may be split")
    return notes


class _Inserter(cst.CSTTransformer):
    """Inserts the blocks and the additions to ``__init__``."""

    def __init__(self, headers: Sequence[ScopeHeader], additions: Mapping[str, Sequence[str]], write: Write) -> None:
        self._by_suite: dict[int, list[ScopeHeader]] = {}
        for each in headers:
            self._by_suite.setdefault(id(each.block.suite), []).append(each)
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


def _with_import(tree: cst.Module, text: str) -> cst.Module:
    body = list(tree.body)
    imports = m.SimpleStatementLine(body=[m.Import() | m.ImportFrom()])
    after = max((index for index, each in enumerate(body) if m.matches(each, imports)), default=-1)
    line = cst.parse_statement(text)
    return tree.with_changes(body=[*body[: after + 1], line, *body[after + 1 :]])


def with_helper(
    statements: Sequence[cst.BaseStatement], headers: Sequence[ScopeHeader], first: int = 0, last: int | None = None
) -> Statements:
    """Put the statements of each scope, of those from ``first`` to ``last``, into a ``with``, the outermost first."""
    nested: Statements = []
    last = len(statements) - 1 if last is None else last
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
        nested += _in_helper(outer, with_helper(statements, others, position, end))
        headers = [each for each in others if each.block.first > end]
        position = end + 1
    return nested


def _in_helper(header: ScopeHeader, body: Statements) -> Statements:
    """Return ``with superkernel_scope(condition, label, options):`` around the body."""
    options = scope_options.render(dict(header.block.options))
    arguments = f'{header.condition}, {header.label}, "{options}"'
    if len(arguments) > MAX_LINE:
        arguments = f'{_wrapped(header.condition)},\n    {header.label},\n    "{options}",'
    call = f"{HELPER}({arguments})" if len(arguments) <= MAX_INLINE else f"{HELPER}(\n    {arguments}\n)"
    blank, body = _blank_lines_out(body)
    block = cst.parse_statement(f"with {call}:\n    pass\n")
    assert isinstance(block, cst.With)
    return [block.with_changes(leading_lines=blank, body=block.body.with_changes(body=body))]


def with_calls(statements: Sequence[cst.BaseStatement], headers: Sequence[ScopeHeader]) -> Statements:
    """Put each scope between ``torch.npu.super_kernel_scope_begin(label)`` and ``_end(label)``, under its condition.

    Scopes of different layers may overlap in the source.

    Raises:
        PlanError: a scope's statements assign what its condition or its label depends on.
    """
    for header in headers:
        _refuse_changed_names(header, statements)
    inner_first = sorted(headers, key=lambda each: each.block.last - each.block.first)
    written: Statements = []
    for place, statement in enumerate(statements):
        lines: Statements = [statement]
        begins = [_guarded(each, BEGIN) for each in reversed(inner_first) if each.begins and each.block.first == place]
        if begins:
            blank, lines = _blank_lines_out(lines)
            begins[0] = begins[0].with_changes(leading_lines=blank)
        for each in inner_first:
            if each.ends and each.block.first <= place <= each.block.last:
                lines = [new for line in lines for new in _flat(line.visit(_EndBeforeExits(each)))]
        ends = [_guarded(each, END) for each in inner_first if each.ends and each.block.last == place]
        written += [*begins, *lines, *([] if _leaves(lines[-1]) else ends)]
    return written


def _wrapped(condition: str) -> str:
    """Return a condition in lines of at most ``MAX_LINE`` characters, broken before an ``and`` where that is enough."""
    if len(condition) <= MAX_LINE:
        return condition
    lines = condition.replace(" and ", "\nand ").splitlines()
    return "\n".join(textwrap.fill(line, MAX_LINE, break_on_hyphens=False) for line in lines).replace("\n", "\n    ")


def _guarded(header: ScopeHeader, call: str) -> cst.If:
    condition = header.condition
    if len(condition) > MAX_LINE:
        condition = f"(\n    {_wrapped(condition)}\n)"
    called = f"torch.npu.{call}({header.label})"
    if len(called) > MAX_LINE:
        called = f"torch.npu.{call}(\n        {header.label}\n    )"
    statement = cst.parse_statement(f"if {condition}:\n    {called}\n")
    assert isinstance(statement, cst.If)
    return statement


def _refuse_changed_names(header: ScopeHeader, statements: Sequence[cst.BaseStatement]) -> None:
    """Refuse a scope whose end would be decided by other values than its begin, in the same function."""
    block = header.block
    body = statements[block.first : block.last + 1] if header.ends else ()
    used = [cst.parse_expression(text) for text in (header.condition, header.label)]
    names = {node.value for each in used for node in m.findall(each, m.Name()) if isinstance(node, cst.Name)}
    targets = m.AssignTarget() | m.AnnAssign() | m.AugAssign() | m.For() | m.NamedExpr()
    assigned = {
        name
        for statement in body
        for each in m.findall(statement, targets)
        for name in _bound(each.target)  # type: ignore[attr-defined]
    }
    if changed := sorted(names & assigned - {"self"}):
        function = header.block.function
        raise PlanError(
            f"{function.name} assigns {changed[0]!r} within the scope "
            f"{header.label}, whose condition or label depends on it; assign another name there"
        )


def _bound(target: cst.CSTNode) -> Iterator[str]:
    """Yield the names that an assignment binds; an attribute or an element of an object is none."""
    if isinstance(target, cst.Name):
        yield target.value
    elif isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            yield from _bound(element.value)


def _blank_lines_out(body: Statements) -> tuple[Sequence[cst.EmptyLine], Statements]:
    """Return the blank lines before the body, which stay before its scope, and the body without them.

    Comments stay with the statement that they describe.
    """
    first = body[0]
    assert isinstance(first, cst.SimpleStatementLine | cst.BaseCompoundStatement)
    lines = list(first.leading_lines)
    blank = next((index for index, line in enumerate(lines) if line.comment), len(lines))
    return lines[:blank], [first.with_changes(leading_lines=lines[blank:]), *body[1:]]


class _EndBeforeExits(cst.CSTTransformer):
    """Puts the end of a scope before each statement that leaves it; what a ``return`` computes stays inside."""

    def __init__(self, header: ScopeHeader) -> None:
        function = header.block.function.node
        names = {node.value for node in m.findall(function, m.Name()) if isinstance(node, cst.Name)}
        self._end, self._loops = _guarded(header, END), 0
        numbered = (RESULT, *(f"{RESULT}_{number}" for number in range(2, 100)))
        self._result = next(name for name in numbered if name not in names)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        """Skip a function, whose exits leave only itself."""
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        """Skip a class."""
        return False

    def visit_For_body(self, node: cst.For) -> None:
        """Enter a loop within the scope."""
        self._loops += 1

    def leave_For_body(self, node: cst.For) -> None:
        """Leave it."""
        self._loops -= 1

    def visit_While_body(self, node: cst.While) -> None:
        """Enter a loop within the scope."""
        self._loops += 1

    def leave_While_body(self, node: cst.While) -> None:
        """Leave it."""
        self._loops -= 1

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.BaseSuite:
        """Write ``if a: return b`` as a block, if it leaves the scope."""
        if not self._is_exit(original_node.body[-1]):
            return updated_node
        line = cst.SimpleStatementLine(updated_node.body)
        return cst.IndentedBlock(self._ended(line), header=updated_node.trailing_whitespace)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.BaseStatement]:
        """Put the end before the last statement of a line, if that leaves the scope."""
        if not self._is_exit(original_node.body[-1]):
            return updated_node
        return cst.FlattenSentinel(self._ended(updated_node))

    def _is_exit(self, node: cst.BaseSmallStatement) -> bool:
        return isinstance(node, cst.Return) or (isinstance(node, cst.Break | cst.Continue) and not self._loops)

    def _ended(self, line: cst.SimpleStatementLine) -> Statements:
        *before, leaving = line.body
        if isinstance(leaving, cst.Return) and leaving.value and not _is_plain(leaving.value):
            before.append(cst.Assign([cst.AssignTarget(cst.Name(self._result))], leaving.value))
            leaving = leaving.with_changes(value=cst.Name(self._result))
        first = [line.with_changes(body=before, trailing_whitespace=cst.TrailingWhitespace())] if before else []
        end = self._end if first else self._end.with_changes(leading_lines=line.leading_lines)
        return [*first, end, line.with_changes(body=[leaving], leading_lines=())]


def _is_plain(node: cst.CSTNode) -> bool:
    parts = [child for child in node.children if isinstance(child, cst.BaseExpression | cst.Element)]
    return m.matches(node, PLAIN) and all(map(_is_plain, parts))


def _leaves(statement: cst.CSTNode) -> bool:
    """Whether nothing after a statement, or a suite, runs, as far as can be seen from itself."""
    if isinstance(statement, cst.IndentedBlock):
        return _leaves(statement.body[-1])
    if isinstance(statement, cst.SimpleStatementLine):
        return isinstance(statement.body[-1], cst.Return | cst.Break | cst.Continue | cst.Raise)
    if isinstance(statement, cst.With):
        return _leaves(statement.body)
    if isinstance(statement, cst.If) and isinstance(statement.orelse, cst.Else | cst.If):
        other = statement.orelse if isinstance(statement.orelse, cst.If) else statement.orelse.body
        return _leaves(statement.body) and _leaves(other)
    return False


def _flat(node: object) -> Statements:
    nodes = list(node.nodes) if isinstance(node, cst.FlattenSentinel) else [node]
    return [each for each in nodes if isinstance(each, cst.BaseStatement)]
