"""The scopes that a source already has: taken out, with the names that only they used."""

from collections.abc import Sequence
from functools import lru_cache

import libcst as cst
import libcst.matchers as m

from sktune.source.classes import code_of, last_name
from sktune.source.values import locals_of

HELPER = "superkernel_scope"
"""The recipes' context manager: ``superkernel_scope(enable, scope, options)``, positional."""
BEGIN, END = "super_kernel_scope_begin", "super_kernel_scope_end"
"""What begins and ends a scope of npugraph_ex, in ``torch.npu``."""

_FUNCTION = m.Name(BEGIN) | m.Name(END)
CALL = m.SimpleStatementLine(body=[m.Expr(m.Call(func=_FUNCTION | m.Attribute(attr=_FUNCTION)))])


@lru_cache(maxsize=4)
def without_scopes(tree: cst.Module) -> tuple[cst.Module, tuple[str, ...]]:
    """Return a file without its scopes, and a note on each of them."""
    remover = _Remover()
    changed = tree.visit(remover)
    return changed, tuple(remover.notes)


class _Remover(cst.CSTTransformer):
    """Moves the bodies of scopes out by one level, and drops what only their headers used."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._functions: list[cst.FunctionDef] = []
        self._names: list[set[str]] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        """Enter a function."""
        self._functions.append(node)
        self._names.append(set())

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """Drop the names that are dead now."""
        self._functions.pop()
        names = self._names.pop()
        if not names:
            return updated_node
        stored = {id(target.target) for each in m.findall(updated_node, m.Assign()) for target in each.targets}  # type: ignore[attr-defined]
        loaded = {last_name(node) for node in m.findall(updated_node.body, m.Name()) if id(node) not in stored}
        dead = frozenset(names - loaded)
        return cst.ensure_type(updated_node.visit(_Pruner(dead)), cst.FunctionDef) if dead else updated_node

    def leave_With(
        self, original_node: cst.With, updated_node: cst.With
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        """Replace a scope by its body."""
        calls = [item.item for item in original_node.items]
        call = calls[0] if len(calls) == 1 else None
        is_scope = isinstance(call, cst.Call) and last_name(call.func) == HELPER
        if not is_scope or not isinstance(updated_node.body, cst.IndentedBlock):
            return updated_node
        assert isinstance(call, cst.Call)
        if self._functions:
            self._note(call, self._functions[-1])
        first, *others = updated_node.body.body
        assert isinstance(first, cst.SimpleStatementLine | cst.BaseCompoundStatement)
        first = first.with_changes(leading_lines=(*updated_node.leading_lines, *first.leading_lines))
        return cst.FlattenSentinel([first, *others])

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.RemovalSentinel:
        """Remove the begin and the end of a scope of npugraph_ex."""
        if not m.matches(updated_node, CALL):
            return updated_node
        call = cst.ensure_type(cst.ensure_type(updated_node.body[0], cst.Expr).value, cst.Call)
        if last_name(call.func) == BEGIN and self._functions:
            self._note(call, self._functions[-1])
        return cst.RemoveFromParent()

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If | cst.RemovalSentinel:
        """Remove a condition with nothing else in it."""
        is_empty = not updated_node.body.body and bool(original_node.body.body)
        return cst.RemoveFromParent() if is_empty and updated_node.orelse is None else updated_node

    def _note(self, call: cst.Call, function: cst.FunctionDef) -> None:
        values = locals_of(function)
        self._names[-1] |= {last_name(node) for node in m.findall(call, m.Name())} & values.keys()
        arguments = call.args if last_name(call.func) == BEGIN else call.args[1:]
        shown = [code_of(argument.value) for argument in arguments]
        for argument in arguments:
            if m.matches(argument.value, m.Name()) and (given := values.get(last_name(argument.value))):
                known = " or ".join(code_of(value) for value in given if value is not None)
                shown = [known if text == last_name(argument.value) and known else text for text in shown]
        self.notes.append(
            f"a scope written by hand in {function.name.value} is replaced: {', '.join(shown)}; --undo restores it"
        )


class _Pruner(cst.CSTTransformer):
    """Removes the statements that only assign names that nothing reads."""

    def __init__(self, dead: frozenset[str]) -> None:
        self._dead = dead

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """Remove them, but not the only statement of a block."""
        kept: list[cst.BaseStatement] = []
        blank: Sequence[cst.EmptyLine] = ()
        for node in updated_node.body:
            assert isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement)
            if _only_sets(node, self._dead):
                blank = blank or [line for line in node.leading_lines if line.comment is None]
                continue
            own = [line for line in node.leading_lines if line.comment is None]
            kept.append(node.with_changes(leading_lines=(*blank, *node.leading_lines)) if blank and not own else node)
            blank = ()
        return updated_node.with_changes(body=kept) if kept else updated_node


def _only_sets(node: cst.CSTNode | None, names: frozenset[str]) -> bool:
    """Whether a statement does nothing but set local ``names`` to values that need no call."""
    if node is None:
        return True
    if isinstance(node, cst.If):
        inside = all(_only_sets(each, names) for each in node.body.body)
        return inside and not m.findall(node.test, m.Call()) and _only_sets(node.orelse, names)
    if isinstance(node, cst.Else):
        return all(_only_sets(each, names) for each in node.body.body)
    only = node.body[0] if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1 else None
    if not isinstance(only, cst.Assign) or m.findall(only.value, m.Call()):
        return False
    return all(isinstance(each.target, cst.Name) and each.target.value in names for each in only.targets)
