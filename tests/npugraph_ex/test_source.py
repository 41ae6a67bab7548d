"""Plans written into source: the true front end finds in the changed model the scopes that the plan asks for."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from sktune.backends import backend_info
from sktune.backends.npugraph_ex.backend import NpugraphExBackend
from sktune.core.codec import encoded
from sktune.core.errors import PlanError
from sktune.core.layout import Layout
from sktune.core.plan import Plan
from sktune.core.plan_file import PlanFile
from sktune.core.space import SpaceSpec, bind
from sktune.source.apply import source_change
from sktune.targets.base import decode_inputs
from sktune.targets.tracing import trace_layout
from tests.npugraph_ex.frontend import Captured
from tests.npugraph_ex.test_scopes import scopes_in
from tests.projects import RANKS, TEMPLATE, ModelProject
from tests.torchair.marked import reach

PLANS = 5


def captured(project: ModelProject, copy: Path, layout: Layout, *, scopes: bool) -> torch.fx.Graph:
    """Return the captured graph of a decode step, with the scopes of its own source on or off."""
    target = project.target(copy, scopes=scopes)
    backend = NpugraphExBackend(target, layout, decode_inputs(target, 0, 1)[0])
    backend.compile(Plan())
    return Captured.graphs[-1].graph


@pytest.mark.slow
@pytest.mark.parametrize("project", [TEMPLATE, RANKS], ids=["template", "ranks"])
def test_random_plans_in_source_are_captured_as_they_are(project: ModelProject, tmp_path: Path) -> None:
    """What cannot be expressed in the source is refused with the reason; operators besides are what the notes say."""
    torch.set_grad_enabled(False)
    layout = trace_layout(project.target(project.root), SpaceSpec())
    space = bind(SpaceSpec(per_layer=True), layout, {}, backend_info("npugraph-ex").options.rules)
    baseline = tuple(captured(project, project.root, layout, scopes=False).nodes)
    rng, checked = np.random.default_rng(0), 0
    while checked < PLANS:
        plan = space.plan({name: values[rng.integers(len(values))] for name, values in space.choices.items()})
        copy = tmp_path / f"{rng.integers(1 << 60)}"
        shutil.copytree(project.root, copy)
        for path in copy.rglob("*.yaml"):
            path.write_text(path.read_text().replace("ge_graph", "npugraph_ex"))
        file = {"version": 1, "backend": "npugraph-ex", "layers": project.layers, "plan": encoded(plan)}
        if not plan.scopes:
            continue
        try:
            change = source_change(PlanFile.model_validate(file), copy / project.model)
        except PlanError as failure:
            assert "cannot be expressed in this file" in str(failure)
            continue
        change.write()
        graph, checked = captured(project, copy, layout, scopes=True), checked + 1
        expected = []
        for scope in plan.scopes:
            first, last = reach(scope, baseline)
            expected.append({node.name for node in baseline[first : last + 1] if node.op == "call_function"})
        found = list(scopes_in(graph).values())
        assert len(found) == len(expected)
        assert all(asked <= own for asked, own in zip(expected, found, strict=True))
        besides = sum(len(own - asked) for asked, own in zip(expected, found, strict=True))
        notes = [note for note in change.notes if "also contains" in note]
        assert bool(besides) == bool(notes)
