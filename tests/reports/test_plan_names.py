"""Names tell plans apart by their shape, and plans of one shape by the options in which they differ."""

from sktune.core.plan import Plan, Scope
from sktune.reports.plan_names import distinct_names, spans_and_options
from tests.builders import decoder_layout

LAYOUT = decoder_layout(("dense", "moe"))
EACH = Plan(tuple(Scope(f"{layer.name}.input_layernorm", f"{layer.name}.mlp") for layer in LAYOUT.layers))
WHOLE = Plan((Scope("model.embed_tokens", "lm_head"),))


def test_plans_of_one_shape_are_told_apart_by_the_options_that_differ() -> None:
    """What they have in common is left out, as are options of a plan whose shape no other has."""
    plans = [EACH.with_options((("a", 1), ("b", True)), ()), EACH.with_options((("a", 1),), ()), WHOLE]
    assert distinct_names(plans, LAYOUT) == [
        "each layer, 2 scopes; b=true", "each layer, 2 scopes", "whole step, 1 scope",
    ]  # fmt: skip


def test_equal_plans_have_equal_names() -> None:
    """Without a layout, too."""
    assert distinct_names([EACH, EACH], None) == ["2 scopes", "2 scopes"]


def test_spans_number_the_scopes_options() -> None:
    """Scopes with equal options share a number."""
    first, second = EACH.scopes
    plan = Plan((Scope("model.embed_tokens", "model.embed_tokens"), first, second))
    with_options = Plan((plan.scopes[0], Scope(first.first, first.last, (("a", 1),)), second))
    assert spans_and_options(plan, LAYOUT) == [(0, 0, 0), (1, 4, 0), (5, 8, 0)]
    assert spans_and_options(with_options, LAYOUT) == [(0, 0, 0), (1, 4, 1), (5, 8, 0)]
