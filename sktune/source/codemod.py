"""Insert the ``with superkernel_scope(...)`` blocks of a plan into a model's source, without other changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import libcst as cst
import libcst.matchers as m

from sktune.core import scope_options
from sktune.core.errors import PlanError
from sktune.core.plan import Plan
from sktune.source.call_flow import PREFILL, Function
from sktune.source.classes import LAYER_INDEX, ModuleClass, classes_of, last_name, parameters_of
from sktune.source.placement import Block, find_blocks
from sktune.source.yaml_flag import FLAG

HELPER = "superkernel_scope"
"""The recipes' context manager: ``superkernel_scope(enable, scope, options)``, positional."""
FLAG_OF = {
    "infer_config": f'infer_config.model_config.custom_params.get("{FLAG}", False)',
    "runner_settings": f'runner_settings.get("model_config").get("{FLAG}", False)',
}
"""How the recipes read the flag, by the parameter of ``__init__`` that provides it."""
MAX_INLINE = 60
"""Characters of arguments that fit on the line of their ``with``."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A file with a plan's scopes.

    Attributes:
        text: the new source.
        notes: remarks for the reader, one line each.
    """

    text: str
    notes: tuple[str, ...]


def rewrite(text: str, plan: Plan, n_layers: int, helper_module: str) -> Rewritten:
    """Return the source ``text`` with the scopes of ``plan`` in place of any existing ones.

    Args:
        text: of a file with the model's classes.
        plan: with SuperKernel options.
        n_layers: how many decoder layers the model has.
        helper_module: from which to import ``superkernel_scope``, if the file does not import it.

    Raises:
        PlanError: a scope cannot be expressed in this source, or its condition cannot; one line with the fix.
    """
    tree = cst.parse_module(text).visit(_Unwrapper())
    classes = classes_of(tree)
    blocks = find_blocks(classes, plan, n_layers)
    guards = _Guards(classes)
    labeled = _label_all(blocks, guards, n_layers)
    changed = tree.visit(_Inserter(labeled, guards.additions))
    if not _imports_helper(tree):
        changed = _with_import(changed, helper_module)
    notes = [f"the scope {label} also contains: {text}" for label, block in labeled for text in block.block.besides]
    return Rewritten(changed.code, tuple(dict.fromkeys(notes)))


@dataclass(frozen=True, eq=False)
class _Header:
    """A block and the header of its ``with``."""

    block: Block
    header: str


class _Unwrapper(cst.CSTTransformer):
    """Removes the existing scopes: their bodies move out by one level."""

    def leave_With(
        self, original_node: cst.With, updated_node: cst.With
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        """Replace a scope by its body."""
        calls = [item.item for item in original_node.items]
        is_scope = len(calls) == 1 and isinstance(calls[0], cst.Call) and last_name(calls[0].func) == HELPER
        if not is_scope or not isinstance(updated_node.body, cst.IndentedBlock):
            return updated_node
        first, *others = updated_node.body.body
        assert isinstance(first, cst.SimpleStatementLine | cst.BaseCompoundStatement)
        first = first.with_changes(leading_lines=(*updated_node.leading_lines, *first.leading_lines))
        return cst.FlattenSentinel([first, *others])


class _Guards:
    """Builds the condition of a scope: the flag, the prefill flag, the layer's number.

    Attributes:
        additions: statements to add to ``__init__`` of a class, by class.
    """

    def __init__(self, classes: Mapping[str, ModuleClass]) -> None:
        self._classes = classes
        self.additions: dict[str, list[str]] = {}

    def condition(self, function: Function) -> str:
        """Return the condition for a scope in ``function``, without that on layers."""
        flag = f"self.{self._flag(function.owner)}"
        prefill = self._prefill(function)
        return f"{flag} and not {prefill}" if prefill else flag

    def index(self, block: Block) -> str:
        """Return the expression for the layer's number."""
        if block.index:
            return block.index
        owner = block.function.owner
        for name in LAYER_INDEX:
            if name in owner.assigned:
                return f"self.{name}"
        parameter = next((name for name in LAYER_INDEX if name in owner.parameters), None)
        if parameter is None:
            raise PlanError(
                f"{owner.name} has no attribute for its layer's number, and labels must differ from layer to layer; "
                f"add one: self.{LAYER_INDEX[0]} = {LAYER_INDEX[0]} in its __init__"
            )
        return f"self.{self._add(owner, parameter, parameter)}"

    def _flag(self, owner: ModuleClass) -> str:
        names = [name for name in owner.assigned if "super" in name and "kernel" in name]
        if names:
            return names[0]
        for other in self._classes.values():
            for value in other.assigned.get(FLAG, ()):
                if _root(value) in owner.parameters:
                    return self._add(owner, FLAG, cst.Module([]).code_for_node(value))
        for parameter, read in FLAG_OF.items():
            if parameter in owner.parameters:
                return self._add(owner, FLAG, read)
        raise PlanError(
            f"{owner.name} has no flag that enables scopes; add one: self.{FLAG} = config.{FLAG} in its __init__"
        )

    def _add(self, owner: ModuleClass, name: str, value: str) -> str:
        line = f"self.{name} = {value}"
        if line not in self.additions.setdefault(owner.name, []):
            self.additions[owner.name].append(line)
        return name

    def _prefill(self, function: Function) -> str:
        parameters = parameters_of(function.node)
        if PREFILL in parameters:
            return PREFILL
        for node in m.findall(function.node.body, m.Attribute(attr=m.Name(PREFILL))):
            # A local name may not be bound yet where the scope begins.
            if _root(node) in parameters and not _is_assigned(node, function.node):
                return cst.Module([]).code_for_node(node)
        if PREFILL in function.owner.assigned:
            return f"self.{PREFILL}"
        if carrier := next((name for name in parameters if name in self._carriers), None):
            return f"{carrier}.{PREFILL}"
        if "decode" in function.node.name.value:
            return ""
        where = f"{function.owner.name}.{function.node.name.value}"
        raise PlanError(
            f"{where} cannot distinguish prefill from decode, and prefill must not change; "
            f"add the parameter {PREFILL} to it"
        )

    @cached_property
    def _carriers(self) -> frozenset[str]:
        """Names of objects that have the prefill flag as an attribute anywhere in the file."""
        carried = m.Attribute(value=m.Name(), attr=m.Name(PREFILL))
        nodes = (node for owner in self._classes.values() for node in m.findall(owner.node, carried))
        return frozenset({"forward_metadata"} | {_root(node) for node in nodes}) - {"self"}


def _root(node: cst.CSTNode) -> str:
    """Return ``a`` of ``a.b.get("c")``."""
    while isinstance(node, cst.Attribute | cst.Call | cst.Subscript):
        node = node.func if isinstance(node, cst.Call) else node.value
    return node.value if isinstance(node, cst.Name) else ""


def _is_assigned(node: cst.CSTNode, function: cst.FunctionDef) -> bool:
    targets = [target.target for each in m.findall(function, m.Assign()) for target in each.targets]  # type: ignore[attr-defined]
    return any(target is node for target in targets)


def _label_all(blocks: Sequence[Block], guards: _Guards, n_layers: int) -> list[tuple[str, _Header]]:
    """Return each block with a unique label and its header."""
    taken: set[str] = set()
    labeled = []
    for block in blocks:
        first, last = block.covers
        base = label = first if first == last else f"{first}_to_{last}"
        number = 2
        while label in taken:
            label, number = f"{base}_{number}", number + 1
        taken.add(label)
        condition = guards.condition(block.function)
        text = f'"{label}"'
        if block.layers:
            index = guards.index(block)
            text = f'f"{label}_{{{index}}}"'
            condition = " and ".join(filter(None, (condition, _of_layers(block.layers, n_layers, index))))
        options = scope_options.render(dict(block.options))
        labeled.append((label, _Header(block, _call(f'{condition}, {text}, "{options}"'))))
    return labeled


def _call(arguments: str) -> str:
    if len(arguments) <= MAX_INLINE:
        return f"{HELPER}({arguments})"
    return f"{HELPER}(\n    {arguments}\n)"


def _of_layers(layers: Sequence[int], n_layers: int, index: str) -> str:
    """Return the condition that the layer's number is one of ``layers``; empty if it always is."""
    first, last = layers[0], layers[-1]
    if len(layers) < last - first + 1:
        return f"{index} in ({', '.join(map(str, layers))})"
    if len(layers) == n_layers:
        return ""
    if first == last:
        return f"{index} == {first}"
    if first == 0:
        return f"{index} <= {last}"
    return f"{index} >= {first}" if last == n_layers - 1 else f"{first} <= {index} <= {last}"


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
