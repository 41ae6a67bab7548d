"""How a scope is written: TorchAir's as a ``with`` of the recipes' helper, npugraph_ex's as a begin and an end.

npugraph_ex wants direct calls: graph-autofusion's guide warns that marks made by helpers and context managers may not
reach the captured graph. Each way out of the scope, such as a ``return``, gets its end.
"""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from sktune.core import scope_options
from sktune.core.errors import PlanError
from sktune.source.hand_scopes import BEGIN, END, HELPER
from sktune.source.placement import Block

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


def with_helper(statements: Sequence[cst.BaseStatement], headers: Sequence[ScopeHeader]) -> Statements:
    """Put each scope's statements into a ``with``, nested from the outermost inwards."""
    return _nested(statements, 0, len(statements) - 1, headers)


def _nested(
    statements: Sequence[cst.BaseStatement], first: int, last: int, headers: Sequence[ScopeHeader]
) -> Statements:
    """Return the statements ``first`` to ``last`` with their scopes."""
    nested: Statements = []
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
        nested += _in_helper(outer, _nested(statements, position, end, others))
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
        self._result = next(name for name in _numbered(RESULT) if name not in names)

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


def _leaves(statement: cst.BaseStatement) -> bool:
    """Whether nothing after the statement runs, as far as can be seen from itself."""
    if isinstance(statement, cst.SimpleStatementLine):
        return isinstance(statement.body[-1], cst.Return | cst.Break | cst.Continue | cst.Raise)
    if isinstance(statement, cst.With):
        return _leaves_suite(statement.body)
    if isinstance(statement, cst.If) and isinstance(statement.orelse, cst.Else | cst.If):
        other = statement.orelse if isinstance(statement.orelse, cst.If) else statement.orelse.body.body[-1]
        return _leaves_suite(statement.body) and isinstance(other, cst.BaseStatement) and _leaves(other)
    return False


def _leaves_suite(suite: cst.BaseSuite) -> bool:
    last = suite.body[-1]
    return isinstance(last, cst.BaseStatement) and _leaves(last)


def _flat(node: object) -> Statements:
    nodes = list(node.nodes) if isinstance(node, cst.FlattenSentinel) else [node]
    return [each for each in nodes if isinstance(each, cst.BaseStatement)]


def _numbered(name: str) -> Sequence[str]:
    return [name, *(f"{name}_{number}" for number in range(2, 100))]
