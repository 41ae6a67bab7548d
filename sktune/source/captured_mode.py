"""What a program in the mode npugraph_ex needs for its scopes besides the marks."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import libcst as cst
import libcst.matchers as m

from sktune.core import files
from sktune.core.errors import BadInputError
from sktune.core.plan import Plan
from sktune.program.sktune_program.npugraph_ex import optimize_options
from sktune.source.classes import code_of, last_name
from sktune.source.yaml_flag import CAPTURED_MODE

STATIC, OPTIMIZE, OPTIONS = "static_kernel_compile", "super_kernel_optimize", "super_kernel_optimize_options"
"""Options of ``torch.compile`` with npugraph_ex."""
DRAFTED = "next_n"
"""The recipes' name of how many tokens a draft model proposes."""
_IS_CAPTURED = m.Comparison(
    comparisons=[
        m.ComparisonTarget(m.Equal(), m.SimpleString(f'"{CAPTURED_MODE}"') | m.SimpleString(f"'{CAPTURED_MODE}'"))
    ]
)


def without_refusals(tree: cst.Module) -> tuple[cst.Module, tuple[str, ...]]:
    """Return a file without the checks that refuse SuperKernels in this mode, and a note on each of them."""
    remover = _Remover()
    return tree.visit(remover), tuple(remover.notes)


class _Remover(cst.CSTTransformer):
    """Removes ``if exe_mode == "npugraph_ex" and enable_superkernel: raise ...``."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If | cst.RemovalSentinel:
        """Remove such a check."""
        raises = m.IndentedBlock(body=[m.SimpleStatementLine(body=[m.Raise()])])
        if updated_node.orelse or not m.matches(updated_node.body, raises) or not _refuses(updated_node.test):
            return updated_node
        test = code_of(updated_node.test)
        self.notes.append(f"the check `if {test}: raise ...` is removed, as this plan is for npugraph_ex")
        return cst.RemoveFromParent()


def _refuses(test: cst.BaseExpression) -> bool:
    """Whether a condition is that of the mode and SuperKernels, and of nothing else."""
    if not isinstance(test, cst.BooleanOperation) or not isinstance(test.operator, cst.And):
        return False
    flags = [side for side in (test.left, test.right) if not m.matches(side, _IS_CAPTURED)]
    return len(flags) == 1 and "superkernel" in last_name(flags[0]).replace("_", "").lower()


def option_notes(plan: Plan, sources: Sequence[Path], root: Path) -> Iterator[str]:
    """Yield what to change where the program passes options to npugraph_ex; nothing if they are the plan's.

    Args:
        plan: with options of the whole step.
        sources: files in which the program may compile its step.
        root: what their names in the notes are relative to.
    """
    wanted = optimize_options(dict(plan.options))
    for path in sources:
        for line, options in _compile_options(files.read_text(path, BadInputError, "give a text file in UTF-8")):
            place = f"{path.relative_to(root)}:{line}"
            if options.get(OPTIMIZE, False) is False:
                yield (
                    f"{place} does not turn SuperKernels on: where it compiles the model's decode step, not a draft's, "
                    f'add "{OPTIMIZE}": True, "{OPTIONS}": {wanted}'
                )
            elif options.get(OPTIONS, {}) != wanted:
                yield f"{place} has other {OPTIONS} than the plan; write its own there: {wanted}"


def draft_notes(settings: Any) -> Iterator[str]:
    """Yield what the switch does to a draft model, if the settings have one at any depth: ``next_n`` tokens."""
    for key, value in settings.items() if isinstance(settings, Mapping) else ():
        if key == DRAFTED and isinstance(value, int) and value > 0:
            yield (
                f"{DRAFTED} is {value}: the draft model is compiled with the same switch, and without scopes all of it "
                "is fused, which was not measured; compare its tokens, or put its step into a scope named None"
            )
        yield from draft_notes(value)


def _compile_options(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the dictionaries of a file that are options of npugraph_ex, each with its line; unknown values are None."""
    if STATIC not in text:
        return
    try:
        tree = ast.parse(text)
    except (SyntaxError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            if STATIC in keys:
                yield node.lineno, {str(key): _literal(value) for key, value in zip(keys, node.values, strict=True)}


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, RecursionError):
        return None
