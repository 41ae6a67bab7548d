"""Programs that compile with npugraph_ex themselves: a plan's scopes and options reach its true front end."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sktune
from sktune.core.errors import PlanError
from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import read_plan_file, write_plan
from sktune.program.sktune_program.rank import Rank
from sktune.program.sktune_program.reporter import Reporter
from sktune.program.sktune_program.task import RankTask
from tests.npugraph_ex.frontend import Captured
from tests.npugraph_ex.test_scopes import scopes_in

OWN = {"frozen_parameter": True, "clone_input": False, "super_kernel_optimize": True,
       "super_kernel_optimize_options": {"dcci_disable_on_kernel": [".*"]}}  # fmt: skip
PLAN = Plan((Scope("layers.0", "layers.1"),), (("split_mode", 2),))


class Model(nn.Module):
    """Three layers, and a program's own way to run them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3))

    def decode(self, hidden: torch.Tensor) -> torch.Tensor:
        """Run a step."""
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def compiled_by_program(model: Model, plan: Plan, made_for: str, **keywords: Any) -> Any:
    """Compile as a program does whose ``torch.compile`` is replaced."""
    task = RankTask(False, made_for, scopes=plan.marked, options=dict(plan.options))
    rank = Rank(torch.compile, [task], Reporter(None))
    return rank.compile(model.decode, dynamic=False, fullgraph=True, **keywords)


def test_a_plan_replaces_the_programs_own_superkernels() -> None:
    """Scopes, static kernels and options are the plan's, everything else is the program's."""
    model, inputs = Model(), torch.randn(2, 8)
    with torch.no_grad():
        step = compiled_by_program(model, PLAN, "npugraph-ex", backend="npugraph_ex", options=OWN)
        assert torch.equal(step(inputs), model.decode(inputs))
    (operators,) = scopes_in(Captured.graphs[-1].graph).values()
    assert sum("addmm" in name for name in operators) == 2
    settings = Captured.settings[-1]
    assert settings["super_kernel_optimize_options"] == {"split_mode": 2}
    assert settings["static_kernel_compile"] and settings["clone_input"] is False


def test_a_baseline_has_static_kernels_and_no_superkernels() -> None:
    """Else the gain of static kernels would be taken for that of scopes."""
    model = Model()
    with torch.no_grad():
        compiled_by_program(model, Plan(), "npugraph-ex", backend="npugraph_ex", options=OWN)(torch.randn(2, 8))
    settings = Captured.settings[-1]
    assert settings["static_kernel_compile"] and "super_kernel_optimize" not in settings
    assert scopes_in(Captured.graphs[-1].graph) == {}


def test_the_two_paths_do_not_mix() -> None:
    """A plan of one is refused by a program of the other."""
    with pytest.raises(PlanError, match="for GE graphs, but the program compiles its decode step with npugraph_ex"):
        compiled_by_program(Model(), PLAN, "npu", backend="npugraph_ex")
    with pytest.raises(PlanError, match="for npugraph_ex, but the program compiles its decode step with 'inductor'"):
        compiled_by_program(Model(), PLAN, "npugraph-ex", backend="inductor")


def test_a_plan_file_is_applied(tmp_path: Path) -> None:
    """As its first lines say."""
    file = tmp_path / "plan.yaml"
    file.write_text(write_plan(PLAN, {}, "npugraph-ex"))
    assert read_plan_file(file).backend == "npugraph-ex"
    model = Model()
    sktune.apply(model, file)
    with torch.no_grad():
        torch.compile(model.decode, backend="npugraph_ex", dynamic=False, fullgraph=True)(torch.randn(2, 8))
    assert list(scopes_in(Captured.graphs[-1].graph)) == [PLAN.scopes[0].label]
