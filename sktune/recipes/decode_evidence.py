"""Decides whether a Python program has a decode step, from its sources; nothing is executed."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sktune.core.files import source_text

_LIBRARIES = frozenset({"torch", "torch_npu", "transformers", "vllm", "sglang"})
"""A ``generate`` in a file that imports none of these generates something else."""
_GENERATES = frozenset({"generate", "model_generate"})
_DECODES = re.compile(r"(^|_)decode(_|$)")
_TESTING = frozenset({"pytest", "unittest"})
_WITH_THE_CLASS = frozenset({"__init__", "__call__", "forward"})
"""Methods that run without being named."""

Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class _Source:
    """A parsed file.

    Attributes:
        tree: its module.
        packages: names of packages that it imports anywhere.
        torches, compiles: its names for torch and for ``torch.compile``.
        named: its functions and classes by name, methods as well.
    """

    tree: ast.Module
    packages: set[str] = field(default_factory=set)
    torches: set[str] = field(default_factory=lambda: {"torch"})
    compiles: set[str] = field(default_factory=lambda: {"get_npu_backend"})
    named: dict[str, list[Scope]] = field(default_factory=dict)


def decode_evidence(program: Path, folder: Path) -> str:
    """Return the place that shows that ``program`` has a decode step, ``FILE:LINE CALL``; empty if nothing shows it.

    That is ``torch.compile`` or ``get_npu_backend``, a call of ``generate`` in a file that imports torch or a library
    of models, or a loop that calls a decode function of the program's own. It counts if the program reaches it: in its
    own code, or in functions and classes, of it or of modules of ``folder`` that it imports, that are named in code
    that is reached. Tests are no programs.
    """
    reading = _Reading(program, folder)
    return "" if program.name.startswith("test_") else reading.evidence()


class _Reading:
    """Follows what a program reaches by name."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._sources: dict[Path, _Source] = {}
        self._names: set[str] = set()
        self._done: set[int] = set()
        self._waiting: list[tuple[Path, Scope]] = []

    def evidence(self) -> str:
        """See ``decode_evidence``."""
        self._add(self._program)
        if any(source.packages & _TESTING for source in self._sources.values()):
            return ""
        while self._waiting:
            file, scope = self._waiting.pop(0)
            if id(scope) in self._done:
                continue
            self._done.add(id(scope))
            nodes = list(_own_nodes(scope))
            if found := self._shown(file, nodes):
                return f"{file.relative_to(self._folder)}:{found}"
            for node in nodes:
                self._follow(file, node)
        return ""

    def _add(self, file: Path) -> None:
        if file in self._sources:
            return
        try:
            source = self._sources[file] = _Source(ast.parse(source_text(file)))
        except (SyntaxError, ValueError, RecursionError):
            return  # not a source of this Python's
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Import):
                source.packages |= {alias.name.partition(".")[0] for alias in node.names}
                source.torches |= {alias.asname for alias in node.names if alias.name == "torch" and alias.asname}
            elif isinstance(node, ast.ImportFrom):
                source.packages |= {(node.module or "").partition(".")[0]} if not node.level else set()
                if node.module == "torch":
                    source.compiles |= {each.asname or each.name for each in node.names if each.name == "compile"}
            elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                source.named.setdefault(node.name, []).append(node)
        self._waiting.append((file, source.tree))
        for name in self._names & source.named.keys():
            self._waiting += [(file, scope) for scope in source.named[name]]

    def _follow(self, file: Path, node: ast.AST) -> None:
        """Add what a node imports or names."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._add_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = self._base_of(node, file)
            for alias in node.names:
                self._add_module(f"{base}.{alias.name}".strip("."))
                if alias.asname:  # named otherwise from here on
                    self._name(alias.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            self._name(node.id if isinstance(node, ast.Name) else node.attr)

    def _name(self, name: str) -> None:
        """Reach the functions and classes of a name."""
        if name in self._names:
            return
        self._names.add(name)
        for file, source in self._sources.items():
            self._waiting += [(file, scope) for scope in source.named.get(name, ())]

    def _add_module(self, module: str) -> None:
        parts = module.split(".")
        for home in (self._program.parent, self._folder):
            for count in range(1, len(parts) + 1):
                base = home.joinpath(*parts[:count])
                for path in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
                    if path.is_file():
                        self._add(path)

    def _base_of(self, node: ast.ImportFrom, file: Path) -> str:
        """Return the dotted name, from the folder, of the module that names are imported from."""
        if not node.level:
            return node.module or ""
        home = file.parents[min(node.level, len(file.parents)) - 1]
        inside = home.relative_to(self._folder).parts if home.is_relative_to(self._folder) else ()
        return ".".join((*inside, *filter(None, [node.module])))

    def _shown(self, file: Path, nodes: list[ast.AST]) -> str:
        """Return the line and the call that shows a decode step; empty if there is none."""
        source = self._sources[file]
        uses_models = bool(source.packages & _LIBRARIES)
        for node in nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                is_torch = isinstance(node.value, ast.Name) and node.value.id in source.torches
                if node.attr == "get_npu_backend" or (node.attr == "compile" and is_torch):
                    return f"{node.lineno} {node.attr}"
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in source.compiles:
                return f"{node.lineno} {node.id}"
            elif isinstance(node, ast.Call) and uses_models and _last_name(node.func) in _GENERATES:
                return f"{node.lineno} {_last_name(node.func)}"
            elif isinstance(node, ast.For | ast.While) and uses_models:
                calls = (_last_name(each.func) for each in ast.walk(node) if isinstance(each, ast.Call))
                own = {name for each in self._sources.values() for name in each.named}
                if name := next((name for name in calls if _DECODES.search(name) and name in own), ""):
                    return f"{node.lineno} {name}"
        return ""


def _own_nodes(scope: Scope) -> Iterator[ast.AST]:
    """Yield the nodes of a scope without those of functions and classes in it, which have scopes of their own.

    A class has its methods that run without being named, and decorators belong to what they decorate.
    """
    waiting: list[ast.AST] = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_part = isinstance(scope, ast.ClassDef) and node.name in _WITH_THE_CLASS
            is_inner = isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef)
            if not (is_part or is_inner):
                continue
        yield node
        waiting += ast.iter_child_nodes(node)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
