"""PyTorch's private names: each is where ``torch_private`` says, and no other module of sktune knows one."""

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.codecache import FxGraphCache

import sktune
from sktune.program.sktune_program import torch_private
from sktune.program.sktune_program.inductor.versions import NEWEST, number_of

PACKAGE = Path(sktune.__file__).parent
PRIVATE_FILE = PACKAGE / "program/sktune_program/torch_private.py"
ATTRIBUTES = {
    name
    for node in ast.walk(ast.parse(PRIVATE_FILE.read_text())) if isinstance(node, ast.Attribute | ast.Constant)
    for name in [node.attr if isinstance(node, ast.Attribute) else str(node.value).rpartition(".")[2]]
    if re.fullmatch(r"_[a-z]\w*", name)
}  # fmt: skip
"""Private attributes that the file knows: ``_cdata``, ``_load_library`` and so on."""
_PRIVATE = re.compile(r"(torch|torchgen)(\.\w+)*\.(_(?!_)\w*|experimental)(\.\w*)*|torchgen(\.\w+)*")


@pytest.mark.parametrize("name", sorted(torch_private.NAMES))
def test_the_installed_torch_has(name: str) -> None:
    """Each private name, or the error says which one is gone, and what it was for."""
    _, (first, last), _ = torch_private.NAMES[name]
    if number_of(torch.__version__) < first or last < min(number_of(torch.__version__), NEWEST):
        pytest.skip(f"needed from torch {first} to {last}")
    torch_private.resolve("compile_fx")  # some modules of Inductor can only be imported after it
    assert torch_private.resolve(name) is not None


def _add(values: torch.Tensor) -> Any:
    return values + 1


def _source() -> Any:
    found: list[Any] = []

    def receive(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        found.append(torch_private.source_of(next(iter(graph.graph.nodes))))
        return graph.forward

    torch.compile(_add, backend=receive)(torch.ones(3))
    return found[0]


def _marked() -> torch.Tensor:
    tensor = torch.ones(2)
    torch_private.mark_static_address(tensor)
    return tensor


_ONE = torch.ones(2)
_TREE = nn.Sequential(nn.Linear(1, 1))
SMALL: dict[str, Callable[[], Any]] = {
    "storage_id": lambda: len({torch_private.storage_id(each) for each in (_ONE, _ONE[1:], _TREE[0].weight)}) == 2,
    "schema_of": lambda: torch_private.schema_of(torch.ops.aten.add_.Tensor).arguments[0].alias_info.is_write,
    "version_counter": lambda: torch_private.version_counter(torch.ones(2).add_(1)) == 1,
    "sparse_parts": lambda: [part.numel() for part in torch_private.sparse_parts(torch.eye(3).to_sparse())] == [6, 3],
    "children": lambda: list(torch_private.children(_TREE)) == ["0"],
    "parameters": lambda: list(torch_private.parameters(_TREE[0])) == ["weight", "bias"],
    "is_static": lambda: torch_private.is_static(_marked()) and not torch_private.is_static(torch.ones(2)),
    "source_of": lambda: _source() is not None,
    "folder_of_entries": lambda: Path(torch_private.folder_of_entries(FxGraphCache, "key")).is_absolute(),
    "own_tracing": lambda: torch_private.own_tracing(),
    "DEVICE_FUNCTIONS": lambda: all(hasattr(torch.cuda, name) for name in torch_private.DEVICE_FUNCTIONS),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_installed_torch_has_the_attribute_behind(name: str) -> None:
    """Each function of the file, used on something small."""
    assert SMALL[name]()


def test_a_name_that_is_gone_is_told_with_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line."""
    monkeypatch.delattr("torch._inductor.codecache.write_atomic")
    with pytest.raises(ImportError, match=r"torch has no torch\._inductor\.codecache\.write_atomic \(writes a file"):
        torch_private.resolve("write_atomic")


def test_a_name_is_replaced_within_a_context_only() -> None:
    """Functions of modules and methods of classes."""
    for name in ("write", "CppCodeCache._load_library"):
        before = torch_private.resolve(name)
        with torch_private.replaced(name, nullcontext):
            assert torch_private.resolve(name) is nullcontext
        assert torch_private.resolve(name) == before


def test_no_other_module_knows_a_private_name() -> None:
    """Neither imports it, nor reaches it through torch, nor reads an attribute that the file reads."""
    known = {
        str(path): sorted(set(_private_names(path)))
        for path in PACKAGE.rglob("*.py") if path != PRIVATE_FILE
    }  # fmt: skip
    assert not {path: names for path, names in known.items() if names}


def _private_names(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.append(node.value)
        elif isinstance(node, ast.Attribute):
            names.append(ast.unparse(node))
            if node.attr in ATTRIBUTES and not ast.unparse(node.value).startswith(("self", "cls")):
                yield node.attr
    # An operator's name is public, whatever it begins with.
    yield from (name for name in names if _PRIVATE.fullmatch(name) and not name.startswith("torch.ops."))
