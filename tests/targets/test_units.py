"""Any module tree gets units that do not overlap, and scopes that are entered where the plan says."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn

import sktune
from sktune.core.errors import PlanError, TargetError
from sktune.core.layout import Layout
from sktune.core.plan import Option, Plan, Scope
from sktune.core.space import OptionRules, SearchSpace, SpaceSpec, bind
from sktune.program.sktune_program.inductor.regions import Region, cut, strip_marks
from sktune.targets.base import decode_inputs
from sktune.targets.marks import attach
from sktune.targets.tracing import trace_layout
from tests.models.trees import TREES, Gate, Mix, tree

BLOCK = ("norm", "attention", "mlp")
PLANS = 20

UNITS: dict[str, list[str]] = {
    "flat": ["net.first", "net.second", "net.third"],
    "contained": ["parts.up", "parts.down", "heads.0", "heads.1"],
    "draft": [
        "embedding", *(f"layers.{i}.{key}" for i in range(3) for key in BLOCK), "norm", "draft.norm",
        *(f"drafted.{i}.{key}" for i in range(2) for key in BLOCK), "head",
    ],
    "encoder_decoder": [
        *(f"encoder.layers.{i}.{key}" for i in range(2) for key in BLOCK), "encoder.norm",
        *(f"decoder.layers.{i}.{key}" for i in range(3) for key in BLOCK), "decoder.norm",
    ],
    "shared": ["embedding", "norm", "head"],
    "partly_shared": [f"layers.{i}.{key}" for i in range(3) for key in BLOCK[:2]],
    "pairs": [f"layers.{i}.{key}" for i in range(3) for key in "01"],
    "two_passes": [f"layers.{i}.{key}" for key in BLOCK[1:] for i in range(3)],
    "sequence": ["0", *(f"{i}.{key}" for i in (1, 2) for key in BLOCK), "3"],
    "model_in_sequence": [
        "0", *(f"1.stack.layers.{i}.{key}" for i in range(3) for key in BLOCK), "1.stack.norm", "1.last", "2",
    ],
    "called_elsewhere": ["before", "mix", "after"],
    "wrapper": [*(f"layers.{i}.{key}" for i in range(3) for key in BLOCK), "model.norm"],
    "functional": [f"layers.{i}" for i in range(3)],
    "idle": [f"layers.{i}.{key}" for i in range(2) for key in BLOCK],
}  # fmt: skip
"""The units of each tree, in execution order."""
KINDS: dict[str, list[str]] = {
    "draft": ["dense"] * 5, "encoder_decoder": ["dense"] * 5, "partly_shared": ["dense"] * 3,
    "pairs": ["dense"] * 3, "sequence": ["dense"] * 2, "model_in_sequence": ["dense"] * 3, "wrapper": ["dense"] * 3,
    "functional": ["dense"] * 3, "idle": ["dense"] * 2,
}  # fmt: skip
"""The kinds of the layers of those trees that have layers."""


@pytest.fixture(params=TREES)
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of each tree."""
    return str(request.param)


@pytest.fixture
def target(name: str) -> sktune.Target:
    """Return each tree."""
    return tree(TREES[name])


def space_of(layout: Layout) -> SearchSpace:
    """Return the space of a layout, without options."""
    return bind(SpaceSpec(), layout, {}, OptionRules({}))


def random_plans(layout: Layout, count: int, seed: int) -> Iterator[Plan]:
    """Yield plans at random points of the space of a layout."""
    space, rng = space_of(layout), random.Random(seed)
    for _ in range(count):
        yield space.plan({name: rng.choice(choices) for name, choices in space.choices.items()})


def test_the_units_are_those_that_run_once_and_beside_each_other(name: str, target: sktune.Target) -> None:
    """And layers are found in each stack."""
    layout = trace_layout(target, SpaceSpec())
    assert [unit.name for unit in layout.units] == UNITS[name]
    assert [layer.kind for layer in layout.layers] == KINDS.get(name, [])
    assert len({space_of(layout).parameter(unit) for unit in layout.units}) >= len(set(map(str, layout.kinds.values())))


class _Recorded:
    """A scope that records when it is entered and left."""

    def __init__(self, label: str, events: list[tuple[str, str]]) -> None:
        self._label, self._events = label, events

    def __enter__(self) -> None:
        self._events.append(("enter", self._label))

    def __exit__(self, *error: object) -> None:
        self._events.append(("exit", self._label))


def events_of(target: sktune.Target, layout: Layout, plan: Plan) -> list[tuple[str, str]]:
    """Run a step with the plan's scopes; return when scopes and units begin and end."""
    events: list[tuple[str, str]] = []

    def make_scope(label: str, options: Mapping[str, Option]) -> Any:
        return _Recorded(label, events)

    marks = attach(target.module, plan, make_scope)
    modules = dict(target.module.named_modules())
    handles = []
    for unit in layout.units:
        begin, end = ("begin", unit.name), ("end", unit.name)
        handles += [
            modules[unit.name].register_forward_pre_hook(lambda *_, event=begin: events.append(event)),
            modules[unit.name].register_forward_hook(lambda *_, event=end: events.append(event), prepend=True),
        ]
    with torch.no_grad():
        target.decode_step(*decode_inputs(target, 0, 1)[0])
    marks.detach()
    for handle in handles:
        handle.remove()
    return events


def planned_events(layout: Layout, plan: Plan) -> list[tuple[str, str]]:
    """Return the events that a plan asks for."""
    starts = {scope.first: scope.label for scope in plan.scopes}
    ends = {scope.last: scope.label for scope in plan.scopes}
    events = []
    for unit in layout.units:
        events += [("enter", starts[unit.name])] if unit.name in starts else []
        events += [("begin", unit.name), ("end", unit.name)]
        events += [("exit", ends[unit.name])] if unit.name in ends else []
    return events


def test_the_scopes_of_any_plan_are_entered_where_it_says(target: sktune.Target) -> None:
    """One after the other, each before its first unit and until its last one."""
    layout = trace_layout(target, SpaceSpec())
    for plan in random_plans(layout, PLANS, seed=0):
        layout.check(plan)
        assert events_of(target, layout, plan) == planned_events(layout, plan)


def test_the_captured_graph_is_cut_where_the_plan_says(target: sktune.Target) -> None:
    """Each operator of a unit is inside the region of its scope; run in pieces, the graph gives the same bits."""
    layout = trace_layout(target, SpaceSpec())
    inputs = decode_inputs(target, 0, 1)[0]
    for plan in random_plans(layout, 2, seed=1):
        regions: dict[str, list[str]] = {}

        def receive(graph_module: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
            marked = strip_marks(graph_module)
            cutting = cut(marked.graph_module, list(marked.spans.values()), examples)
            for slot in cutting.slots:
                regions[slot.label] = units_of(slot.region, target, layout)  # noqa: B023
            return cutting.fill([slot.region.graph_module.forward for slot in cutting.slots])

        marks = attach(target.module, plan)
        torch._dynamo.reset()
        with torch.no_grad():
            got = torch.compile(target.decode_step, backend=receive, fullgraph=True, dynamic=False)(*inputs)
            marks.detach()
            assert torch.equal(got, target.decode_step(*inputs))
        names = [unit.name for unit in layout.units]
        planned = {s.label: names[names.index(s.first) : names.index(s.last) + 1] for s in plan.scopes}
        assert regions == planned


def units_of(region: Region, target: sktune.Target, layout: Layout) -> list[str]:
    """Return the units whose parameters a region has, in execution order."""
    known = {id(value) for value in region.inputs}
    modules = dict(target.module.named_modules())
    has = {unit.name: [id(value) in known for value in modules[unit.name].parameters()] for unit in layout.units}
    return [unit.name for unit in layout.units if any(has[unit.name])]


class Repeated(nn.Module):
    """A module whose only child runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = Mix()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mix(self.mix(x))
        return out


def test_a_step_of_repeated_modules_alone_is_refused() -> None:
    """By name and number: no scope can begin at a module that runs several times."""
    with pytest.raises(TargetError, match=r"every submodule runs more than once .*\(mix 2 times\)"):
        trace_layout(tree(Repeated), SpaceSpec())


class Forgiving(nn.Module):
    """Goes on where a child fails."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.failing, self.last = Mix(), nn.Linear(3, 3), Gate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        try:
            x = self.failing(x)
        except RuntimeError:
            x = x + 1
        out: torch.Tensor = self.last(x)
        return out


def test_a_module_that_fails_is_no_unit() -> None:
    """Its end is never seen; those after it are not inside it."""
    assert [unit.name for unit in trace_layout(tree(Forgiving), SpaceSpec()).units] == ["first", "last"]


def test_a_plan_for_one_of_two_stacks_is_not_put_on_the_other() -> None:
    """A prefix is added to its names only if one alone makes them fit."""
    target = tree(TREES["encoder_decoder"])
    ambiguous = Plan((Scope("layers.1.attention", "layers.1.mlp"),))
    with pytest.raises(PlanError, match="fits this model in 2 places, below 'encoder' and 'decoder'; apply it to one"):
        attach(target.module, ambiguous)
    attach(target.module, Plan((Scope("layers.2.attention", "layers.2.mlp"),))).detach()  # only the decoder has it
    attach(target.module.get_submodule("encoder"), ambiguous).detach()
