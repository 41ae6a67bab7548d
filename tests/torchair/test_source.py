"""Plans written into source: the true TorchAir finds in the changed model the scopes that the plan asks for."""

import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from sktune.backends import backend_info
from sktune.backends.npu.backend import NpuBackend
from sktune.core.codec import encoded
from sktune.core.errors import PlanError
from sktune.core.layout import Layout
from sktune.core.plan import Plan
from sktune.core.plan_file import PlanFile
from sktune.core.space import SearchSpace, SpaceSpec, bind
from sktune.source.apply import source_change
from sktune.targets.base import Target, decode_inputs
from sktune.targets.tracing import trace_layout
from tests.projects import RANKS, TEMPLATE, ModelProject
from tests.torchair.frontend import newest_dump, watched_conversion
from tests.torchair.marked import Conversion, Marked, expected

OPTIONS: Any = {"stream-fusion": (0, 1), "split-mode": (4, 2)}


@dataclass
class Project:
    """The model as it is, its decode step's layout, and what TorchAir makes of the step without marks."""

    model: ModelProject
    layout: Layout
    folder: Path
    baseline: Conversion
    unmarked: list[Marked]
    applied: int = 0

    def space(self, *, per_layer: bool) -> SearchSpace:
        """Return a space with two options."""
        return bind(SpaceSpec(per_layer=per_layer), self.layout, OPTIONS, backend_info("npu").options.rules)

    def check(self, plan: Plan) -> None:
        """Compare the graph of the changed source with the marks that the plan asks for.

        Raises:
            PlanError: the source cannot say the plan.
        """
        self.applied += 1
        project = self.folder / str(self.applied)
        shutil.copytree(self.model.root, project)
        file = PlanFile.model_validate(
            {"version": 1, "backend": "npu", "layers": self.model.layers, "plan": encoded(plan)}
        )
        change = source_change(file, project / self.model.model)
        change.write()
        marks = expected(plan, self.baseline)
        asked = [Marked(each.name, each.type, *marks.get(each.name, ("", ""))) for each in self.unmarked]
        found = converted(self.model.target(project, scopes=True), self.layout)
        assert [(each.name, each.type) for each in found] == [(each.name, each.type) for each in asked]
        pairs = list(zip(found, asked, strict=True))
        wanted = {(own.label, own.options): (mark.label, mark.options) for own, mark in pairs if mark.label}
        assert len(wanted) == len(set(wanted.values())) == len(plan.scopes)
        differing = [
            mark for own, mark in pairs if wanted.get((own.label, own.options), ("", "")) != (mark.label, mark.options)
        ]
        # Only what the notes mention: operators around the units, in the same statements or in the loop.
        besides = [note for note in change.notes if "also contains" in note]
        assert bool(differing) == bool(besides)
        assert len(differing) <= len(besides)
        assert not any(mark.label for mark in differing)


def converted(target: Target, layout: Layout) -> list[Marked]:
    """Return the operators of a decode step, and the marks that its own source puts on them."""
    NpuBackend(target, layout, decode_inputs(target, 0, 1)[0]).compile(Plan())
    return newest_dump()


@pytest.fixture(scope="module", params=[TEMPLATE, RANKS], ids=["template", "ranks"])
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project, traced and converted."""
    torch.set_grad_enabled(False)
    model: ModelProject = request.param
    layout = trace_layout(model.target(model.root), SpaceSpec())
    folder = tmp_path_factory.mktemp("projects")
    with pytest.MonkeyPatch.context() as patch, watched_conversion() as baseline:
        patch.chdir(folder)
        unmarked = converted(model.target(model.root), layout)
    return Project(model, layout, folder, baseline, unmarked)


@pytest.mark.slow
def test_starting_points_in_source_mark_what_they_ask_for(project: Project) -> None:
    """Each of the guide's choices can be said in the template's form."""
    space = project.space(per_layer=False)
    assert len(space.starting_points) >= 5
    for point in space.starting_points:
        project.check(space.plan(point.values))


@pytest.mark.slow
@pytest.mark.parametrize("per_layer", [False, True])
def test_random_plans_in_source_mark_what_they_ask_for(project: Project, per_layer: bool) -> None:
    """What cannot be expressed in the source is refused with the reason."""
    space = project.space(per_layer=per_layer)
    chance = random.Random(0)
    checked = 0
    while checked < 5:
        plan = space.plan({name: chance.choice(values) for name, values in space.choices.items()})
        if not plan.scopes:
            continue
        try:
            project.check(plan)
            checked += 1
        except PlanError as failure:
            assert "cannot be expressed in this file" in str(failure)
