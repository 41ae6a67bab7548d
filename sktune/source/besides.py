"""What runs inside a scope besides its units, as the statements at its ends compute more than these."""

import libcst as cst

from sktune.source.runs import Statement


def around(statement: Statement, unit: str, side: int) -> list[str]:
    """Return the statements that run on one ``side`` of ``unit`` within ``statement``: -1 before it, 1 after it."""
    step = statement.steps[0 if side < 0 else -1]
    if not step.runs:
        return [] if _only_calls(statement) else [_code(statement.node)]
    found: list[str] = []
    runs = [run for run in step.runs if unit in (run.firsts if side < 0 else run.lasts)]
    for run in runs[:1] if side < 0 else runs[-1:]:
        with_steps = [index for index, each in enumerate(run.statements) if each.steps]
        at = with_steps[0 if side < 0 else -1]
        beyond = run.statements[:at] if side < 0 else run.statements[at + 1 :]
        found += [_code(each.node) for each in beyond if _computes(each.node)]
        found += around(run.statements[at], unit, side)
    return found


def _only_calls(statement: Statement) -> bool:
    """Whether a statement does nothing but call its steps and assign or return the result."""
    node = statement.node
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return False
    (only,) = node.body
    value = only.value if isinstance(only, cst.Assign | cst.AnnAssign | cst.Expr | cst.Return) else None
    return isinstance(value, cst.Call) and _operations(value) == len(statement.steps)


def _computes(node: cst.BaseStatement) -> bool:
    return not isinstance(node, cst.FunctionDef | cst.ClassDef) and _has_operation(node)


def _has_operation(node: cst.CSTNode) -> bool:
    return _operations(node) > 0


def _operations(node: cst.CSTNode) -> int:
    is_one = isinstance(node, cst.Call | cst.BinaryOperation | cst.UnaryOperation | cst.AugAssign)
    is_not = isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not)
    return int(is_one and not is_not) + sum(_operations(child) for child in node.children)


def _code(node: cst.BaseStatement) -> str:
    bare = node.with_changes(leading_lines=())
    return cst.Module([]).code_for_node(bare).strip().partition("\n")[0]
