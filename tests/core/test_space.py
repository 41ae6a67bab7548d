"""Search spaces: every point is a legal, canonical plan, and the size is exact."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sktune.backends import backend_info
from sktune.core.errors import PlanError, SpaceError
from sktune.core.layout import Layout, Unit
from sktune.core.plan import Plan, Scope
from sktune.core.space import JOIN, LAYERS_PER_SCOPE, NEW, OUT, OptionRules, SearchSpace, SpaceSpec, bind
from sktune.targets.presets import load_preset, preset_names
from sktune.tuning.inspect import inspect_model
from sktune.tuning.request import Request
from tests.builders import CHILDREN, ROOT, decoder_layout

OPTIONS = {"fast": (False, True)}
RULES = OptionRules({"fast": False})


def space_over(layout: Layout, **spec: Any) -> SearchSpace:
    """Bind a spec to a layout with one option."""
    return bind(SpaceSpec(**spec), layout, {key: tuple(values) for key, values in OPTIONS.items()}, RULES)


def values_of(space: SearchSpace, **chosen: Any) -> dict[str, Any]:
    """Return the point where everything is out except for ``chosen`` (dots written as two underscores)."""
    values: dict[str, Any] = {
        name: OUT if choices == (OUT, NEW, JOIN) else choices[0] for name, choices in space.choices.items()
    }
    return values | {name.replace("__", "."): value for name, value in chosen.items()}


def ranges(plan: Plan) -> list[tuple[str, str]]:
    """Return first and last unit of each scope, without the common prefix."""
    return [(scope.first.removeprefix("model."), scope.last.removeprefix("model.")) for scope in plan.scopes]


def test_join_after_out_is_new() -> None:
    """Two points with the same meaning are one plan."""
    space = space_over(decoder_layout(("dense",)))
    joined = space.plan(values_of(space, dense__self_attn=JOIN))
    assert joined == space.plan(values_of(space, dense__self_attn=NEW))
    assert ranges(joined) == [("layers.0.self_attn", "layers.0.self_attn")]


def test_starting_points_name_layer_kinds_in_per_layer_spaces_too() -> None:
    """The guide's points exist for layers with separate parameters."""
    space = space_over(decoder_layout(("dense", "moe", "moe")), per_layer=True)
    points = {point.name: space.plan(point.values) for point in space.starting_points}
    assert ranges(points["MoE only"]) == [("layers.1.mlp", "layers.1.mlp"), ("layers.2.mlp", "layers.2.mlp")]
    assert len(points["attention only"].scopes) == 3


def test_layers_per_scope_cuts_a_scope_that_crosses_layers() -> None:
    """A scope over whole layers spans as many as allowed."""
    space = space_over(decoder_layout(("dense",) * 4))
    inside = {f"dense__{child}": JOIN for child in CHILDREN}
    assert len(space.plan(values_of(space, **inside, layers_per_scope=1)).scopes) == 4
    pairs = space.plan(values_of(space, **inside, layers_per_scope=2))
    assert ranges(pairs) == [("layers.0.input_layernorm", "layers.1.mlp"), ("layers.2.input_layernorm", "layers.3.mlp")]
    assert len(space.plan(values_of(space, **inside, layers_per_scope="all")).scopes) == 1


def test_units_outside_of_layers_join_without_counting() -> None:
    """Embedding and head can be part of a layer's scope."""
    space = space_over(decoder_layout(("dense", "dense")))
    everything = {name.replace(".", "__"): JOIN for name in space.choices if "." in name}
    plan = space.plan(values_of(space, **everything, layers_per_scope="all"))
    assert ranges(plan) == [("embed_tokens", "lm_head")]


def test_a_plan_without_scopes_has_no_options_of_scopes() -> None:
    """The empty plan is one plan, whatever the options, and defaults are not listed."""
    space = space_over(decoder_layout(("dense",)))
    assert space.plan(values_of(space, fast=True)) == Plan()
    assert space.plan(values_of(space, dense__mlp=NEW)).scopes[0].options == ()
    assert space.plan(values_of(space, dense__mlp=NEW, fast=True)).scopes[0].options == (("fast", True),)


def on_streams(layout: Layout, moved: set[tuple[str, str]], outside: str) -> Layout:
    """Return the layout with the ``moved`` units on another stream, and units outside of layers at ``outside``."""

    def place(unit: Unit) -> str:
        if unit.layer is None:
            return outside
        return "side" if (layout.layers[unit.layer].kind, unit.key) in moved else ""

    return replace(layout, units=tuple(replace(unit, place=place(unit)) for unit in layout.units))


small_layouts = st.builds(
    on_streams,
    st.builds(
        decoder_layout,
        st.lists(st.sampled_from(["dense", "moe"]), min_size=1, max_size=4).map(tuple),
        st.sampled_from([("a",), ("a", "b")]),
        st.booleans(),
    ),
    st.sets(st.sampled_from([("dense", "a"), ("dense", "b"), ("moe", "a"), ("moe", "b")]), max_size=2),
    st.sampled_from(["", "side"]),
)


@given(small_layouts, st.booleans(), st.lists(st.sampled_from([1, 2, 3, "all"]), min_size=1, max_size=3, unique=True))
@settings(max_examples=120)
def test_the_size_equals_enumeration(layout: Layout, per_layer: bool, limits: list[Any]) -> None:
    """The size is the number of distinct plans, and every point is a legal plan."""
    space = space_over(layout, per_layer=per_layer, layers_per_scope=limits)
    points = 1
    for choices in space.choices.values():
        points *= len(choices)
    if points > 60_000:
        return
    plans = set()
    for point in itertools.product(*space.choices.values()):
        plan = space.plan(dict(zip(space.choices, point, strict=True)))
        layout.check(plan)
        plans.add(plan)
    assert space.size == len(plans)


def test_the_size_of_a_large_per_layer_space_is_quick_to_count() -> None:
    """61 layers with 12 units each are counted, not enumerated."""
    layout = decoder_layout(("dense",) * 3 + ("moe",) * 58, tuple(f"unit{index}" for index in range(12)))
    assert space_over(layout, per_layer=True).size > 10**200


def test_the_guides_starting_points_are_found_by_name() -> None:
    """A space that lists none starts from the scope guide's choices."""
    space = space_over(decoder_layout(("dense", "moe")))
    names = [point.name for point in space.starting_points]
    assert names == ["attention only", "MoE only", "attention + MoE", "each layer", "all layers", "whole step"]
    moe_only = next(point for point in space.starting_points if point.name == "MoE only")
    assert ranges(space.plan(moe_only.values)) == [("layers.1.mlp", "layers.1.mlp")]


@pytest.mark.parametrize(("layers", "limit"), [(1, None), (2, "all"), (4, 3)])
def test_a_starting_points_limit_of_layers_fits_a_model_with_fewer(layers: int, limit: Any) -> None:
    """For example when a model is cut to a few layers of each kind."""
    points: Any = {"mine": {"layer.*": JOIN, LAYERS_PER_SCOPE: 3}}
    spec: dict[str, Any] = {"layers_per_scope": [1, 3, "all"], "starting_points": points}
    (point,) = space_over(decoder_layout(("dense",) * layers), **spec).starting_points
    assert point.values.get(LAYERS_PER_SCOPE) == limit


@pytest.mark.parametrize(
    ("limits", "of_two"), [([1, 2], (1, 2)), ([2, 4], (4,)), ([1, 3, "all"], (1, "all")), ([1], (1,))]
)
def test_limits_that_few_layers_make_equivalent_become_the_widest(limits: list[Any], of_two: tuple[Any, ...]) -> None:
    """So that a plan of a shortened model is also one of the whole model, and starting points keep their limit."""
    points: Any = {"mine": {"layer.*": JOIN, LAYERS_PER_SCOPE: limits[-1]}}
    small, whole = (
        space_over(decoder_layout(("dense",) * layers), layers_per_scope=limits, starting_points=points)
        for layers in (2, 5)
    )
    assert small.choices[LAYERS_PER_SCOPE] == of_two
    assert set(of_two) <= set(whole.choices[LAYERS_PER_SCOPE])
    (point,) = small.starting_points
    assert point.values[LAYERS_PER_SCOPE] == of_two[-1]
    assert len(ranges(small.plan(point.values))) == (2 if limits == [1] else 1)
    whole.plan({**whole.simplest, **point.values})


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_and_starts_from_legal_distinct_plans(name: str) -> None:
    """All files of search_spaces/ fit a model with their kinds of layers."""
    spec = load_preset(name).space
    kinds = ("dense", "moe") if name == "deepseek-v3" else ("moe",) if name.endswith("moe") else ("dense",)
    layout = decoder_layout(kinds * 2)
    options = {key: tuple(values) for key, values in spec.options["inductor"]["cpu"].items()}
    space = bind(spec, layout, options, backend_info("inductor").options.rules)
    plans = [space.plan(point.values) for point in space.starting_points]
    assert len(set(plans)) == len(plans) == len(spec.starting_points)
    for plan in plans:
        layout.check(plan)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"starting_points": {"x": {"dense.self_atn": NEW}}},
            r"'dense.self_atn', which the model lacks; did you mean 'dense.self_attn'",
        ),
        ({"starting_points": {"x": {"dense.self_attn": "nwe"}}}, r"must be one of .*'new'.*got 'nwe'"),
        ({"layers_per_scope": [0]}, "from 1 up"),
    ],
)
def test_a_space_that_does_not_fit_is_rejected(spec: dict[str, Any], message: str) -> None:
    """The message names the mistake and the closest valid name."""
    with pytest.raises(SpaceError, match=message):
        space_over(decoder_layout(("dense", "dense")), **spec)


def test_a_missing_parameter_is_rejected() -> None:
    """A point has a value for every parameter."""
    space = space_over(decoder_layout(("dense", "dense")))
    values = values_of(space)
    del values[LAYERS_PER_SCOPE]
    with pytest.raises(SpaceError, match="has no value"):
        space.plan(values)


def npu_space(**spec: Any) -> SearchSpace:
    """Bind a spec to a layout with the options of the npu backend."""
    options = backend_info("npu").options
    return bind(SpaceSpec(**spec), decoder_layout(("moe",)), options.default_choices("npu"), options.rules)


def test_starting_points_take_options_as_torchair_does() -> None:
    """An option string from TorchAir's documentation can be copied into a space."""
    points = {"mine": {"moe.mlp": NEW, "options": "stream-fusion=1:split-mode=8"}}
    (point,) = npu_space(starting_points=points).starting_points
    assert (point.values["stream-fusion"], point.values["split-mode"]) == (1, 8)


def test_a_mistake_in_an_option_string_is_reported_before_anything_is_compiled() -> None:
    """The error that would come as EB0500 after minutes comes immediately, with its fix."""
    with pytest.raises(SpaceError, match="did you mean 'stream-fusion'"):
        npu_space(starting_points={"mine": {"moe.mlp": NEW, "options": "stream-funsion=1"}})


def test_options_without_effect_make_no_new_plan() -> None:
    """With stream-fusion, early-start 1 and 2 give the same code: they are one plan, and counted as one."""
    space = npu_space(options={})
    base: dict[str, Any] = {
        name: OUT if values == (OUT, NEW, JOIN) else values[0] for name, values in space.choices.items()
    }
    base |= {"moe.mlp": NEW, "stream-fusion": 1}
    assert space.plan({**base, "early-start": 1}) == space.plan({**base, "early-start": 2})
    few = bind(
        SpaceSpec(), decoder_layout(("moe",), ("mlp",), outside=False),
        {"stream-fusion": (0, 1), "early-start": (1, 0, 2), "topology_sorting_strategy": ("StableRDFS", "DFS")},
        backend_info("npu").options.rules,
    )  # fmt: skip
    points = [dict(zip(few.choices, values, strict=True)) for values in itertools.product(*few.choices.values())]
    assert few.size == len({few.plan(point) for point in points}) == 2 + 2 * 5


def test_no_scope_spans_a_change_of_stream() -> None:
    """Units that the model runs on another stream get a separate scope: a SuperKernel runs on one set of cores."""
    layout = on_streams(decoder_layout(("moe", "moe")), {("moe", "mlp")}, "")
    plan = space_over(layout).plan(values_of(space_over(layout), **dict.fromkeys(inside("moe"), JOIN)))
    assert all(scope.first == scope.last for scope in plan.scopes if scope.last.endswith("mlp"))
    with pytest.raises(PlanError, match="change of stream or cores"):
        layout.check(Plan((Scope("model.layers.0.self_attn", "model.layers.0.mlp"),)))


def inside(kind: str) -> list[str]:
    """Return the parameters of a kind's units, with dots written as two underscores."""
    return [f"{kind}__{child}" for child in CHILDREN]


@pytest.fixture
def documented_space(tmp_path: Path) -> Path:
    """Return a file with the example of docs/reference/space.md."""
    page = (ROOT / "docs" / "reference" / "space.md").read_text()
    file = tmp_path / "space.yaml"
    file.write_text(page.partition("<!-- example -->\n```yaml\n")[2].partition("```")[0])
    return file


@pytest.mark.parametrize(
    ("backend", "points", "options"),
    [
        (
            "inductor",
            {"attention": 4, "experts": 3, "whole step": 1, "whole step, C++ wrapper": 1},
            {"emulate_precision_casts", "reductions", "matmul", "cpp_wrapper"},
        ),
        (
            "sim",
            {"attention": 4, "experts": 3, "whole step": 1, "experts, streams fused": 3},
            {"stream-fusion", "split-mode", "dcci-before-kernel-start", "topology_sorting_strategy"},
        ),
    ],
)
def test_the_documented_space_fits_a_preset(
    documented_space: Path, backend: str, points: dict[str, int], options: set[str]
) -> None:
    """The example in the reference binds to DeepSeek-V3; its starting points have the scopes that their names say."""
    space = inspect_model(Request("deepseek-v3", space=documented_space, backend=backend)).space
    plans = {point.name: space.plan(point.values) for point in space.starting_points}
    assert {name: len(plan.scopes) for name, plan in plans.items()} == points
    assert set(space.option_names) == options
    assert ranges(plans["experts"])[0] == ("layers.1.mlp.gate", "layers.1.mlp.shared_experts")


def test_inspect_rejects_options_that_a_search_would_reject(documented_space: Path) -> None:
    """Also those of another backend."""
    documented_space.write_text(documented_space.read_text().replace("split-mode: [4", "split-mod: [4"))
    with pytest.raises(SpaceError, match="did you mean 'split-mode'"):
        inspect_model(Request("deepseek-v3", space=documented_space))
