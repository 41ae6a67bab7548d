"""The scope guide's decision tree, as data, and the walk through it. Knows neither studies nor files.

Source: "Scope 范围决策树" in scope-analysis-guide.md of the skill model-infer-superkernel (hicann/cannbot-skills).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sktune.core.events.analysis import ModuleShares
from sktune.core.layout import Layout
from sktune.core.space import is_attention, is_feed_forward

FIRST, BEST = "first", "best"
GOALS = (FIRST, BEST)
"""The user's goal: a first attempt that is safe and easy to debug, or the best performance."""
YES, NO, UNKNOWN = "yes", "no", "unknown"


class ScopeOption(StrEnum):
    """The options that the guide offers, the narrowest first; ``CUSTOM`` is any other plan that a search finds."""

    ATTENTION = "attention_only"
    MOE = "moe_only"
    ATTENTION_MOE = "attention_moe"
    LAYER = "whole_layer"
    ALL_LAYERS = "all_layers"
    CUSTOM = "custom"


class ModelType(StrEnum):
    """The answer to the tree's first question."""

    MOE = "moe"
    STANDARD = "standard"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Question:
    """A question of the tree; an answer that is not in ``leads`` does not lead to an option."""

    name: str
    leads: Mapping[str, ScopeOption]


TREE: Mapping[ModelType, tuple[Question, ...]] = {
    ModelType.MOE: (
        Question(
            "moe_bottleneck",
            {YES: ScopeOption.MOE, NO: ScopeOption.ATTENTION, UNKNOWN: ScopeOption.ATTENTION},
        ),
        Question("best_performance", {YES: ScopeOption.ALL_LAYERS}),
    ),
    ModelType.STANDARD: (
        Question("first_attempt", {YES: ScopeOption.ATTENTION}),
        Question("attention_passed", {YES: ScopeOption.ALL_LAYERS}),
        Question("best_performance", {YES: ScopeOption.CUSTOM}),
    ),
    ModelType.OTHER: (),
}
"""The questions for each type of model, in order. For other models the guide asks none: automatic, or custom."""


@dataclass(frozen=True, slots=True)
class TreeStep:
    """A question, its answer, and the option that the answer leads to, if any."""

    question: str
    answer: str
    leads_to: ScopeOption | None


@dataclass(frozen=True, slots=True)
class TreeWalk:
    """A path through the tree.

    Attributes:
        steps: in the order of the questions; the answer to the first is the model's type.
        choice: the option at its end: for a first attempt the first one on the path, else the last.
    """

    steps: tuple[TreeStep, ...]
    choice: ScopeOption


@dataclass(frozen=True, slots=True)
class Findings:
    """The facts that answer the tree's questions; ``attention_passed`` is None until it is known."""

    goal: str
    model_type: ModelType
    kinds: Mapping[str, int]
    shares: ModuleShares
    attention_passed: bool | None = None

    @classmethod
    def of(cls, layout: Layout, goal: str, source: str, attention_passed: bool | None = None) -> "Findings":
        """Read a model's layout; ``source`` says where its units' time shares come from."""
        kinds: dict[str, int] = {}
        for layer in layout.layers:
            kinds[layer.kind] = kinds.get(layer.kind, 0) + 1
        return cls(goal, model_type(layout), kinds, module_shares(layout, source), attention_passed)

    def answer(self, question: str) -> str:
        """Return the answer to one of the tree's questions."""
        if question == "first_attempt":
            return YES if self.goal == FIRST else NO
        if question == "best_performance":
            return YES if self.goal == BEST else NO
        if question == "attention_passed":
            return {None: UNKNOWN, True: YES, False: NO}[self.attention_passed]
        if not self.shares.largest:
            return UNKNOWN
        return YES if self.shares.largest == "moe" else NO


def model_type(layout: Layout) -> ModelType:
    """Infer the type of a model from the names of its layer kinds and units."""
    if any(is_moe(kind) for kind in layout.kinds):
        return ModelType.MOE
    has_attention = any(is_attention(key) for keys in layout.kinds.values() for key in keys)
    return ModelType.STANDARD if has_attention else ModelType.OTHER


def is_moe(kind: str) -> bool:
    """Whether layers of this kind route to experts."""
    return kind.startswith("moe")


def module_shares(layout: Layout, source: str) -> ModuleShares:
    """Return the sums of the units' time shares, by the type of module that their names suggest."""
    sums = {"attention": 0.0, "moe": 0.0, "ffn": 0.0, "other": 0.0}
    for unit in layout.units:
        if unit.layer is None:
            role = "other"
        elif is_attention(unit.key):
            role = "attention"
        elif is_feed_forward(unit.key):
            role = "moe" if is_moe(layout.layers[unit.layer].kind) else "ffn"
        else:
            role = "other"
        sums[role] += unit.time_share
    return ModuleShares(**sums, source=source)


def walk_tree(findings: Findings) -> TreeWalk:
    """Ask the tree's questions, and return the path that the answers take."""
    kind = findings.model_type
    steps = [TreeStep("model_type", kind, ScopeOption.CUSTOM if kind is ModelType.OTHER else None)]
    for question in TREE[kind]:
        answer = findings.answer(question.name)
        steps.append(TreeStep(question.name, answer, question.leads.get(answer)))
    options = [step.leads_to for step in steps if step.leads_to]
    return TreeWalk(tuple(steps), options[0] if findings.goal == FIRST else options[-1])
