"""Options and plans of npugraph_ex, as far as they need no torch_npu; tests/torchair has its front end."""

import re
import signal
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import fx

from sktune.backends.npugraph_ex.backend import _signals_kept
from sktune.backends.npugraph_ex.captured import captured_operators, checked_scopes
from sktune.backends.npugraph_ex.options import KERNELS, OPTIONS, SUPERKERNEL
from sktune.core.errors import PlanError, SpaceError
from sktune.core.plan import Option, Plan, Scope
from sktune.core.plan_file import read_plan_file, write_plan
from sktune.core.scope_flavour import ScopeFlavour
from sktune.core.scope_options import option_defaults
from sktune.core.space import SpaceSpec, bind
from sktune.program.sktune_program.npugraph_ex import compile_options, program_keywords
from sktune.reports.application import apply_code
from tests.builders import TESTS, decoder_layout

DOCUMENT = TESTS.parent / "docs" / "reference" / "superkernel_options.md"
SCOPED = Plan((Scope("a", "b"),), (("dcci_disable_on_kernel", "MatMul.*,Cast"), ("split_mode", 2)))


def test_the_document_has_both_paths_side_by_side() -> None:
    """Names, values and defaults are those of the code."""
    rows = DOCUMENT.read_text().partition("## GE and npugraph_ex")[2].splitlines()
    table = [row.split("|")[1:-1] for row in rows if row.startswith("|")]
    cells = [[cell.strip(" `") for cell in row] for row in table[2:]]
    of_ge = {row[0]: row[1] for row in cells if row[0] != "-"}
    defaults = {name: "not given" if value == "" else str(value) for name, value in option_defaults().items()}
    assert of_ge.items() <= defaults.items()
    of_graph = {row[2]: row[3] for row in cells if row[2] != "-"}
    assert of_graph == {
        **{name: ", ".join(map(str, spec.values)) for name, spec in SUPERKERNEL.items()},
        **dict.fromkeys(KERNELS, "not given"),
    }
    assert all(spec.default == spec.values[0] for spec in SUPERKERNEL.values())


def test_options_change_nothing_without_scopes() -> None:
    """All plans without scopes are the baseline, and the space counts them once."""
    choices: dict[str, tuple[Option, ...]] = {"split_mode": (4, 2), "stream_fusion": (1, 0)}
    space = bind(SpaceSpec(), decoder_layout(("dense", "dense"), ("a", "b"), outside=False), choices, OPTIONS.rules)
    points = [dict(zip(space.choices, values, strict=True)) for values in product(*space.choices.values())]
    plans = {space.plan(point) for point in points}
    assert [plan for plan in plans if not plan.scopes] == [Plan()]
    assert len(plans) == space.size


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("stream-fusion", 1, "did you mean 'stream_fusion'"),
        ("split_mode", 8, r"must be one of \[4, 1, 2, 3\], got 8"),
        ("split_mode", "2", "must be one of"),
        ("dcci_disable_on_kernel", "*", r"none of which begins with \*"),
        ("dcci_disable_on_kernel", "MatMul+", "must be patterns of letters"),
        ("aggressive_opt_strategies", 1, "has no option"),
    ],
)
def test_a_wrong_option_gets_one_line(name: str, value: Option, line: str) -> None:
    """In a space and in a plan."""
    with pytest.raises(SpaceError, match=line):
        OPTIONS.check_searched("npu", name, value)
    with pytest.raises(PlanError, match=line):
        OPTIONS.check_step(Plan((), ((name, value),)))


def test_a_plan_becomes_the_options_of_the_compiler() -> None:
    """The program's own are kept, but for those of SuperKernels."""
    own = {"clone_input": False, "super_kernel_optimize": True, "super_kernel_debug_options": {"debug_sync_all": 1}}
    options = dict(SCOPED.options)
    assert compile_options(options, own, has_scopes=True) == {
        "clone_input": False, "static_kernel_compile": True, "super_kernel_optimize": True,
        "super_kernel_optimize_options": {"dcci_disable_on_kernel": ["MatMul.*", "Cast"], "split_mode": 2},
    }  # fmt: skip
    assert compile_options({}, own, has_scopes=False) == {"clone_input": False, "static_kernel_compile": True}
    kept = program_keywords(options, {"backend": "npugraph_ex", "dynamic": False}, has_scopes=True)
    assert kept["dynamic"] is False


def test_a_scope_with_options_of_its_own_is_refused(tmp_path: Path) -> None:
    """Where the file is read."""
    file = tmp_path / "plan.yaml"
    file.write_text(write_plan(Plan((Scope("a", "b", (("split_mode", 2),)),)), {}, "npugraph-ex"))
    with pytest.raises(PlanError, match="npugraph-ex has no options of single scopes"):
        read_plan_file(file)


def test_the_code_of_the_report_names_the_compiler() -> None:
    """With its options."""
    code = apply_code(SCOPED, ScopeFlavour.CAPTURED, "best_plan.yaml")
    assert re.search(r'backend="npugraph_ex", options=\{.*static_kernel_compile.*split_mode', code)


def marked(*steps: tuple[str, str | None]) -> fx.Graph:
    """Return a graph of markers and, for an empty name of a marker, operators."""
    marks = {name: _Mark(f"npu.super_kernel_scope_{name}.default") for name in ("begin", "end")}
    graph = fx.Graph()
    value = graph.placeholder("value")
    for mark, name in steps:
        if mark:
            graph.create_node("call_function", marks[mark], (name,))
        else:
            value = graph.call_function(torch.ops.aten.relu.default, (value,))
    return graph


def test_operators_are_in_the_scopes_that_are_open_around_them() -> None:
    """None wins over every name, as nothing is fused in it."""
    graph = marked(
        ("begin", "s"), ("", ""), ("begin", None), ("", ""), ("end", None), ("end", "s"), ("", "")
    )  # fmt: skip
    assert [set(each.scopes) for each in captured_operators(graph)] == [{"s"}, set(), set()]


def test_scopes_are_checked_by_the_rules_of_the_splitter() -> None:
    """A scope inside another one cuts it: three SuperKernels, of which the inner scope has one."""
    graph = marked(
        ("begin", "s"), ("", ""), ("begin", "t"), ("", ""), ("end", "t"), ("", ""), ("end", "s"), ("", "")
    )  # fmt: skip
    outer, inner = checked_scopes(graph, ["s", "t"])
    assert (outer.operators, outer.superkernels) == (3, 3)
    assert (inner.operators, inner.superkernels) == (1, 1)


def test_an_import_that_handles_signals_does_not_keep_them() -> None:
    """Else a process would outlive the signal that should end it."""
    before = signal.getsignal(signal.SIGTERM)
    with _signals_kept():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) == before


class _Mark:
    """Stands for an operator of torch_npu."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __call__(self) -> None: ...

    def __str__(self) -> str:
        return self.__name__
