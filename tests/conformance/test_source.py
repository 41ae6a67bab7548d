"""Plans written into source: the true TorchAir finds in the changed model the scopes that the plan asks for."""

import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from sktune.backends.npu import NpuBackend
from sktune.backends.options import option_rules
from sktune.errors import PlanError
from sktune.layout import Layout
from sktune.plan import Plan
from sktune.plan_file import PlanFile
from sktune.source.applying import source_change
from sktune.space import SearchSpace, SpaceSpec, bind
from sktune.targets.base import decode_inputs
from sktune.tracing import trace_layout
from tests.conformance.frontend import newest_dump
from tests.conformance.marked import Marked
from tests.projects import RANKS, TEMPLATE, ModelProject

OPTIONS: Any = {"stream-fusion": (0, 1), "split-mode": (4, 2)}


@dataclass
class Project:
    """The model as it is, and its decode step's layout."""

    model: ModelProject
    layout: Layout
    folder: Path
    applied: int = 0

    def space(self, *, untied: bool) -> SearchSpace:
        """Return a space with two options."""
        return bind(SpaceSpec(untied=untied), self.layout, OPTIONS, option_rules("npu"))

    def operators(self, project: Path, plan: Plan, *, scopes: bool) -> list[Marked]:
        """Convert the decode step of the model in ``project`` with ``plan`` put on, and its own scopes on or off."""
        target = self.model.target(project, scopes=scopes)
        NpuBackend(target, self.layout, decode_inputs(target, 0, 1)[0]).compile(plan)
        return newest_dump()

    def check(self, plan: Plan) -> None:
        """Compare the graph of the changed source with that of the plan's marks.

        Raises:
            PlanError: the source cannot say the plan.
        """
        self.applied += 1
        project = self.folder / str(self.applied)
        shutil.copytree(self.model.root, project)
        file = PlanFile.model_validate(
            {"version": 1, "backend": "npu", "layers": self.model.layers, "plan": plan.to_dict()}
        )
        change = source_change(file, project / self.model.model)
        change.write()
        asked = self.operators(self.model.root, plan, scopes=False)
        found = self.operators(project, Plan(), scopes=True)
        assert [(each.name, each.type) for each in found] == [(each.name, each.type) for each in asked]
        pairs = list(zip(found, asked, strict=True))
        wanted = {(own.label, own.options): (mark.label, mark.options) for own, mark in pairs if mark.label}
        assert len(wanted) == len(set(wanted.values())) == len(plan.scopes)
        differing = [
            mark for own, mark in pairs if wanted.get((own.label, own.options), ("", "")) != (mark.label, mark.options)
        ]
        # Only what the user is told of: operators around the units, in the same statements or in the loop.
        assert bool(differing) == bool(change.notes)
        assert len(differing) <= len(change.notes)
        assert not any(mark.label for mark in differing)


@pytest.fixture(scope="module", params=[TEMPLATE, RANKS], ids=["template", "ranks"])
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project, traced."""
    torch.set_grad_enabled(False)
    model: ModelProject = request.param
    layout = trace_layout(model.target(model.root), SpaceSpec())
    return Project(model, layout, tmp_path_factory.mktemp("projects"))


@pytest.mark.slow
def test_starting_points_in_source_mark_what_they_ask_for(project: Project) -> None:
    """Each of the guide's choices can be said in the template's form."""
    space = project.space(untied=False)
    assert len(space.starting_points) >= 5
    for point in space.starting_points:
        project.check(space.plan(point.values))


@pytest.mark.slow
@pytest.mark.parametrize("untied", [False, True])
def test_random_plans_in_source_mark_what_they_ask_for(project: Project, untied: bool) -> None:
    """50 random plans for each; what the source cannot say is refused with the reason."""
    space = project.space(untied=untied)
    chance = random.Random(0)
    checked = 0
    while checked < 25:
        plan = space.plan({name: chance.choice(values) for name, values in space.choices.items()})
        if not plan.scopes:
            continue
        try:
            project.check(plan)
            checked += 1
        except PlanError as failure:
            assert "cannot be said in this source" in str(failure)
