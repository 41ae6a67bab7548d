"""What the side of programs may use: the standard library, torch once the program has it, and Python 3.9."""

import ast
import subprocess
import sys
from importlib.util import resolve_name
from pathlib import Path

import pytest

from sktune.launch import SITE
from tests.program.pythons import python, ran

FILES = sorted((SITE / "sktune_program").rglob("*.py"))
OF_TORCH = {"torch", "torch_npu", "torchair", "torchgen"}
NEEDS_TORCH = {
    "calls", "clock", "marks", "module_times", "module_tree", "object_graph", "rank", "reporter", "stand_ins",
    "tensors", "torch_private",
    "inductor.border", "inductor.build_cache", "inductor.compiled_regions", "inductor.cpp_wrapper",
    "inductor.cuda_graph", "inductor.generated_code", "inductor.marks", "inductor.numerics", "inductor.regions",
}  # fmt: skip
"""Modules that import torch when they or their names are imported: only ``rank``, and who runs after it, may do so."""
SINCE_3_10 = {
    "bit_count",
    "pairwise",
    "anext",
    "aiter",
    "StrEnum",
    "Self",
    "TypeAlias",
    "ParamSpec",
    "tomllib",
    "batched",
    "TypeGuard",
    "file_digest",
}


def name_of(file: Path) -> str:
    """Return a module's name below the package."""
    return ".".join(file.relative_to(SITE / "sktune_program").with_suffix("").parts)


def imports(node: ast.AST) -> list[str]:
    """Return the modules that are imported in a tree, relative ones with their dots."""
    found: list[str] = []
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            found += [alias.name for alias in each.names]
        elif isinstance(each, ast.ImportFrom):
            found += ["." * each.level + (each.module or alias.name) for alias in each.names]
    return found


@pytest.mark.parametrize("file", [*FILES, SITE / "sitecustomize.py"], ids=lambda file: file.name)
def test_only_the_standard_library_and_torch_are_imported(file: Path) -> None:
    """Whatever else a program has in its Python is its own."""
    allowed = sys.stdlib_module_names | OF_TORCH | {"sitecustomize", "sktune_program"}
    others = {name for name in imports(ast.parse(file.read_text())) if not name.startswith(".")}
    assert {name for name in others if name.partition(".")[0] not in allowed} == set()
    own = {name for name in others if name.partition(".")[0].startswith("sktune")}
    assert own == ({"sktune_program"} if file.name == "sitecustomize.py" else set())


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_torch_is_imported_only_after_the_program_has(file: Path) -> None:
    """A module that needs it is imported by those that need it, too, or inside a function."""
    top = ast.Module([each for each in ast.parse(file.read_text()).body if not isinstance(each, ast.FunctionDef)], [])
    names = imports(top)
    own = name_of(file)
    relative = {resolve_name(name, f"sktune_program.{own}".rpartition(".")[0]) for name in names if name[0] == "."}
    needs = any(name.partition(".")[0] in OF_TORCH for name in names)
    needs |= any(name.removeprefix("sktune_program.") in NEEDS_TORCH for name in relative)
    assert needs == (own in NEEDS_TORCH)


@pytest.mark.parametrize("file", [*FILES, SITE / "sitecustomize.py"], ids=lambda file: file.name)
def test_python_3_9_reads_every_file(file: Path) -> None:
    """No syntax, no name and no argument that came later."""
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    assert not any(isinstance(node, ast.Match) for node in ast.walk(tree))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert not used & SINCE_3_10
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    keywords = {(getattr(call.func, "id", ""), word.arg) for call in calls for word in call.keywords}
    assert not keywords & {("zip", "strict"), ("dataclass", "slots"), ("dataclass", "kw_only")}
    for call in calls:  # `int | str` as the second argument of isinstance() needs 3.10
        if getattr(call.func, "id", "") in ("isinstance", "issubclass"):
            assert not isinstance(call.args[1], ast.BinOp)


def test_it_runs_as_a_module_of_its_own(tmp_path: Path) -> None:
    """In a Python without sktune: ``python -m sktune_program -- script.py``."""
    (tmp_path / "plan.json").write_text('{"version": 1, "backend": "npu", "plan": {"scopes": []}}')
    (tmp_path / "program.py").write_text("import sys; print(sys.argv, 'sktune' in sys.modules, __name__)")
    command = [python("3.12"), "-m", "sktune_program", "--", str(tmp_path / "program.py"), "x"]
    done = ran(command, variables={"SKTUNE_PLAN": str(tmp_path / "plan.json")})
    assert done.stdout.strip() == f"[{str(tmp_path / 'program.py')!r}, 'x'] False __main__", done.stderr


def test_sktunes_own_command_starts_the_same_code() -> None:
    """``sktune.launch`` names the folder, and needs no dependency of sktune's to do so."""
    without = "import sys; sys.modules['pydantic'] = sys.modules['yaml'] = None"
    command = [sys.executable, "-c", f"{without}; from sktune.launch import main; main(['--site'])"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == SITE


def test_both_names_of_the_package_fit_into_one_process() -> None:
    """A program may be launched with a plan and import sktune: the marks of one are those of the other."""
    code = (
        "import sktune_program.inductor.marks as ours; import sktune.program.sktune_program.inductor.marks as theirs\n"
        "import torch; print(ours is theirs, ours.scope_enter is theirs.scope_enter)\n"
        "graph = torch.fx.Graph(); graph.call_function(ours.scope_enter, ('a', '{}'))\n"
        "print([theirs.read_mark(node).label for node in graph.nodes])"
    )
    done = ran([sys.executable, "-c", code], directory=SITE.parents[1])
    assert done.stdout.splitlines() == ["False True", "['a']"], done.stderr
