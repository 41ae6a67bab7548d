"""The structure of the package: imports go one way, public names exist, the library does not print."""

import ast
import graphlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

import sktune
from sktune.cli.app import MODULE_OF, app, load

PACKAGE = Path(sktune.__file__).parent

ROAD = (
    {"program"},
    {"core"},
    {"ascend", "measure", "learning"},
    {"targets", "backends"},
    {"samplers", "study", "reports", "worker"},
    {"tuning", "visualization"},
    {"cli"},
)
"""Packages that a search passes, from the bottom up: each may import those of the layers below it."""
WITHIN_A_LAYER = {
    ("backends", "targets"), ("reports", "study"), ("reports", "samplers"),
    ("samplers", "study"),  # the study defines the interface of a strategy, but does not know the strategies
}  # fmt: skip
"""Packages in the same layer of which the first may import the second."""
WINGS: Mapping[str, set[str]] = {
    "source": set(),
    "profiling": set(),
    "recipes": {"source"},
    "sim": {"profiling"},
    "cluster": {"recipes"},
    "analysis": {"source", "recipes", "profiling"},
    "agents": {"analysis", "recipes"},
    "server": set(),
}
"""Packages that hang on the road, with the other wings that each may import. A wing may import all of the road but the
command line; the road imports a wing only where it is used: inside of a function, or by its address in a string."""
NOT_WITHIN_A_PACKAGE = {
    ("backends.inductor", "backends.npu"), ("backends.npu", "backends.inductor"),
    ("backends.npugraph_ex", "backends.inductor"), ("backends.npu", "backends.npugraph_ex"),
    ("backends.inductor", "backends.npugraph_ex"),
}  # fmt: skip
"""Subpackages of the same package of which the first may not import the second."""
STARTED = {("agents.jobs", "cli"), ("server.serve", "cli")}
"""Modules that start another as a program instead of importing it."""
AT_THE_TOP = {"__init__.py", "launch.py", "py.typed"}


def in_a_wing(name: str) -> bool:
    """Whether a module is in a wing."""
    return name.partition(".")[0] in WINGS


def module_name(path: Path) -> str:
    """Return the dotted name below ``sktune``; empty for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py")}


def imported_by(name: str, *, at_once: bool = False) -> set[str]:
    """Return the modules of sktune that a module imports, anywhere in it, or names in a string for a later import.

    ``at_once``: only those that are imported with it.
    """
    imports: set[str] = set()
    tree = ast.parse(MODULES[name].read_text())
    for node in statements(tree.body) if at_once else ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            is_in_program = name.startswith("program.sktune_program")
            assert not node.level or is_in_program, f"{name} has a relative import"
            package = MODULES[name].parents[node.level - 1].relative_to(PACKAGE.parent) if node.level else Path()
            module = ".".join(filter(None, (*package.parts, node.module)))
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value.partition(":")[0]]
        else:
            continue
        imports |= {full.removeprefix("sktune.") for full in names if full.startswith("sktune.")} & MODULES.keys()
    return {imported for imported in imports - {name, ""} if (name, imported) not in STARTED}


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the statements that run when a module is imported, without those that only type checkers read."""
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        if isinstance(node, ast.ClassDef | ast.If | ast.Try | ast.With):
            yield from statements(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))


def may_import(importer: str, imported: str) -> bool:
    """Whether the tables above allow an import."""
    for one, another in NOT_WITHIN_A_PACKAGE:
        if f"{importer}.".startswith(f"{one}.") and f"{imported}.".startswith(f"{another}."):
            return False
    package, other = importer.partition(".")[0], imported.partition(".")[0]
    if package == other:
        return True
    if package in WINGS:
        return other in WINGS[package] or other in set().union(*ROAD) - {"cli"}
    level, below = ([index for index, layer in enumerate(ROAD) if part in layer] for part in (package, other))
    return below < level or (package, other) in WITHIN_A_LAYER


@pytest.mark.parametrize("name", sorted(MODULES.keys() - {"", "launch"}))
def test_imports_point_down(name: str) -> None:
    """However they are written. ``launch`` starts a user's program, and any module that does so may import it."""
    is_wing = name.partition(".")[0] in WINGS
    imports = {imported for imported in imported_by(name) - {"launch"} if is_wing or not in_a_wing(imported)}
    upward = {imported for imported in imports if not may_import(name, imported)}
    assert not upward, f"sktune.{name} imports {', '.join(sorted(upward))}"


@pytest.mark.parametrize("name", sorted(name for name in MODULES if not in_a_wing(name)))
def test_the_road_imports_no_wing_at_once(name: str) -> None:
    """Only where it is used. The commands' views are those of the commands, which are imported one by one."""
    wings = {imported for imported in imported_by(name, at_once=True) if in_a_wing(imported)}
    assert not wings or name.startswith("cli."), f"sktune.{name} imports {', '.join(sorted(wings))}"


@pytest.mark.slow
def test_a_search_needs_no_wing(tmp_path: Path, compile_cache: Path) -> None:
    """With all of them hidden, a model is searched on the CPU, and its study is shown, reported and applied."""
    code = f"""
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:1] == ["sktune"] and name.split(".")[1:2] and name.split(".")[1] in {sorted(WINGS)}:
            raise ModuleNotFoundError(f"{{name}} is hidden", name=name)

sys.meta_path.insert(0, Hidden())
import torch, sktune
from sktune.cli import main
result = sktune.search("examples/own_model.py:target", trials=1, verify_steps=16, study="s", runs={str(tmp_path)!r})
assert sktune.load("s", {str(tmp_path)!r}).trials == result.trials and result.is_compared
for words in (["show", "s"], ["report", "s"]):
    sys.argv = ["sktune", *words, "--runs", {str(tmp_path)!r}]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
sys.path.insert(0, "examples")
from own_model import target
plan = next(record.plan for record in sktune.load("s", {str(tmp_path)!r}).trials if record.plan.scopes)
sktune.apply(target().module, plan).detach()
"""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(compile_cache)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "s" / "report.html").exists()


def test_no_modules_import_each_other() -> None:
    """The graph of imports has no cycle."""
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    graph = {name: imported_by(name) - {"launch"} for name in MODULES.keys() - {"", "launch"}}
    graph = {name: {one for one in imports if not (one in packages and f"{name}.".startswith(f"{one}."))}
             for name, imports in graph.items()}  # fmt: skip
    list(graphlib.TopologicalSorter(graph).static_order())


def test_every_package_says_what_belongs_in_it() -> None:
    """And every module says what it is for."""
    for name, path in MODULES.items():
        assert ast.get_docstring(ast.parse(path.read_text())), f"{name} has no docstring"


def test_only_packages_are_at_the_top() -> None:
    """Except for the module that users import, and the one that starts their programs."""
    assert {path.name for path in PACKAGE.iterdir() if path.is_file()} == AT_THE_TOP


def test_only_the_command_and_the_agent_print() -> None:
    """The library logs instead."""
    for path in PACKAGE.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        prints = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
        assert not prints or module_name(path) in ("cli.app", "cli.plans", "core.events.lines")


def test_a_public_class_has_a_name_of_its_own() -> None:
    """A name means one thing."""
    named: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named.setdefault(node.name, []).append(module)
    assert not {name: modules for name, modules in named.items() if len(modules) > 1}


def test_the_public_names_exist() -> None:
    """All names in ``__all__`` can be imported."""
    for name in sktune.__all__:
        assert getattr(sktune, name) is not None


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["serach"]])
def test_help_and_mistakes_need_no_library(arguments: list[str]) -> None:
    """So they come at once."""
    heavy = {"torch", "pandas", "libcst", "sqlalchemy", "plotly", "optuna", "numpy", "scipy"}
    if arguments[0].startswith("--"):  # of a mistake, typer asks pydantic
        heavy.add("pydantic")
    code = (
        f"import sys, sktune.cli; sys.argv[1:] = {arguments!r}\n"
        f"try: sktune.cli.main()\nfinally: assert not {heavy!r} & sys.modules.keys(), sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "AssertionError" not in done.stderr


def test_the_list_of_commands_is_theirs() -> None:
    """It is shown without importing them."""
    listed, commands = get_command(app), load().commands
    assert isinstance(listed, TyperGroup)
    assert list(MODULE_OF) == list(listed.commands) == list(commands)
    assert {name: command.help for name, command in listed.commands.items()} == {
        name: command.help for name, command in commands.items()
    }


def test_no_command_is_imported_with_torch() -> None:
    """It takes seconds, and results of finished studies need none."""
    code = "import sys; from sktune.cli.app import load; load(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_worker_starts_without_optuna() -> None:
    """A worker proposes no plans, and the import would slow down each start."""
    code = "import sys, sktune.worker.server; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
