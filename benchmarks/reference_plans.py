"""The models and plans of the reference, which ``benchmarks.reference_bits`` runs for many steps.

Ten plans of each model have an option value that may change bits, five have none. They are drawn with a fixed seed,
mostly with few units, as such plans differ rarely: a single norm, a feed-forward network with the norm before it, a run
of units, whole layers, and random points of the space.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from sktune.backends.inductor.backend import InductorBackend
from sktune.backends.inductor.info import EXACT, OPTIONS
from sktune.core.layout import Layout
from sktune.core.plan import Option, Plan, Scope
from sktune.core.space import JOIN, LAYERS_PER_SCOPE, NEW, OUT, SearchSpace, SpaceSpec, bind, is_feed_forward
from sktune.program.sktune_program.inductor.options import INDUCTOR
from sktune.targets import describe
from sktune.targets.base import Target, decode_inputs
from sktune.targets.loading import load
from sktune.targets.tracing import trace_layout

Choice = TypeVar("Choice")

DEVICE = "cpu"
BASELINE, INEXACT, EXACT_KIND, KNOWN = "baseline", "inexact", "exact", "known"
"""Kinds of plans: the baseline compiled again, with and without values that may change bits, and those of issue 26."""

MAY_CHANGE_BITS: dict[str, Option] = {
    "reductions": "fused",
    "matmul": "autotune",
    "freezing": True,
    "emulate_precision_casts": False,
}
FIRST_VALUE = {"reductions": 0.45, "matmul": 0.2, "freezing": 0.15, "emulate_precision_casts": 0.2}
"""Probabilities of the first of these values in a plan: fused sums differ rarely."""
NUMBER_OF_VALUES = {1: 0.6, 2: 0.25, 3: 0.1, 4: 0.05}
"""Probabilities of the number of these values in a plan."""
CPP_WRAPPER_SHARE = {INEXACT: 0.25, EXACT_KIND: 0.5}
SHAPES = {
    INEXACT: {"norm": 0.35, "feed-forward": 0.25, "run": 0.2, "layers": 0.1, "any": 0.1},
    EXACT_KIND: {"norm": 0.0, "feed-forward": 0.0, "run": 0.4, "layers": 0.3, "any": 0.3},
}
"""Probabilities of the kinds of scopes in a plan."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the reference.

    Attributes:
        name: short.
        source: for ``--model``.
        capacity: slots of its KV cache.
        context: number of slots that its prefill fills; None if the caller chooses it.
    """

    name: str
    source: str
    capacity: int
    context: int | None = None


MODELS = {
    model.name: model
    for model in (
        Model("own_model", "examples/own_model.py:target", 64, 16),
        Model("llama", "llama", 64),
        Model("qwen3-moe", "qwen3-moe", 64),
        Model("deepseek-v3", "deepseek-v3", 64),
    )
}


@dataclass(frozen=True)
class Opened:
    """A loaded model with its captured decode step."""

    target: Target
    layout: Layout
    backend: InductorBackend
    space: SearchSpace


def opened(model: Model) -> Opened:
    """Load ``model`` and capture its decode step, with the units of its preset."""
    spec, preset = describe(model.source, device=DEVICE)
    target = load(spec)
    wanted = preset.space if preset else SpaceSpec()
    layout = trace_layout(target, wanted)
    backend = InductorBackend(target, layout, decode_inputs(target, 0, 1)[0])
    return Opened(target, layout, backend, space_of(wanted, layout))


def space_of(wanted: SpaceSpec, layout: Layout) -> SearchSpace:
    """Return the space with every value of every option, not only those of a search's default space."""
    options = {name: option.values for name, option in INDUCTOR.items() if option.exists_on(DEVICE)}
    bare = wanted.model_copy(update={"starting_points": {}, "backend_starting_points": {}})
    return bind(bare, layout, options, OPTIONS.rules)


def known_plans(model: Model, layout: Layout) -> dict[str, Plan]:
    """Return the two plans of issue 26 that pass a check of few steps and differ on rare ones."""
    if model.name != "own_model":
        return {}
    options = (("emulate_precision_casts", True), ("matmul", "aten"), ("reductions", "fused"))
    layers = [layer.name for layer in layout.layers]
    ranges = {
        "attention_norm": ("attention_norm", "attention_norm"),
        "feed_forward_norm..feed_forward": ("feed_forward_norm", "feed_forward"),
    }
    rules = OPTIONS.rules
    differing = tuple((name, value) for name, value in options if value != rules.defaults[name])
    return {
        name: Plan(tuple(Scope(f"{layer}.{first}", f"{layer}.{last}", differing) for layer in layers))
        for name, (first, last) in ranges.items()
    }


def drawn(space: SearchSpace, kind: str, seed: str) -> Iterator[Plan]:
    """Yield an endless sequence of distinct plans of a kind, the same for the same ``seed``."""
    rng = random.Random(f"{seed} {kind}")
    seen: set[Plan] = set()
    while True:
        plan = space.plan({**_scopes(space, rng, kind), **_options(rng, kind)})
        if plan.scopes and plan not in seen:
            seen.add(plan)
            yield plan


def _options(rng: random.Random, kind: str) -> dict[str, Option]:
    options: dict[str, Option] = {**EXACT, "freezing": False, "cpp_wrapper": rng.random() < CPP_WRAPPER_SHARE[kind]}
    if kind == INEXACT:
        first, others = _chosen(rng, FIRST_VALUE), _chosen(rng, NUMBER_OF_VALUES) - 1
        names = [first, *rng.sample([name for name in MAY_CHANGE_BITS if name != first], others)]
        options |= {name: MAY_CHANGE_BITS[name] for name in names}
    return options


def _scopes(space: SearchSpace, rng: random.Random, kind: str) -> dict[str, Option]:
    """Return values of all parameters that are not options."""
    values: dict[str, Option] = {
        name: rng.choice(choices) if name == LAYERS_PER_SCOPE else OUT
        for name, choices in space.choices.items()
        if name not in space.option_names
    }
    units = [name for name in values if name != LAYERS_PER_SCOPE]
    shape = _chosen(rng, SHAPES[kind])
    if shape == "any":
        return values | {name: rng.choice((OUT, NEW, JOIN)) for name in units}
    if shape == "layers":
        outside = JOIN if rng.random() < 0.5 else OUT
        kinds = tuple(f"{layer_kind}." for layer_kind in space.layout.kinds)
        return values | {name: JOIN if name.startswith(kinds) else outside for name in units}
    kinds_chosen = list(space.layout.kinds.items())
    if rng.random() < 0.5:
        kinds_chosen = [rng.choice(kinds_chosen)]
    for layer_kind, keys in kinds_chosen:
        first, last = _run(rng, keys, shape)
        for index in range(first, last + 1):
            values[f"{layer_kind}.{keys[index]}"] = NEW if index == first else JOIN
    return values


def _run(rng: random.Random, keys: tuple[str, ...], shape: str) -> tuple[int, int]:
    """Return the first and last of the units of a layer that become one scope."""
    if shape == "norm":
        norm = rng.choice([index for index, key in enumerate(keys) if "norm" in key])
        return norm, norm
    if shape == "feed-forward":
        last = max(index for index, key in enumerate(keys) if is_feed_forward(key) or key == "feed_forward")
        return last - rng.randint(0, 1), last
    first, last = sorted(rng.choices(range(len(keys)), k=2))
    return first, last


def _chosen(rng: random.Random, shares: dict[Choice, float]) -> Choice:
    return rng.choices(list(shares), list(shares.values()))[0]
