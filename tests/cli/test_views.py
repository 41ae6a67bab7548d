"""Terminal output: short, complete, and in correct English."""

import math
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from sktune.backends import backend_info
from sktune.cli.views.search import LiveView, PlainView, inspection_view, lines_of
from sktune.core.events.search import SearchStarted, TrialFinished
from sktune.core.outcome import Reason
from sktune.core.space import SpaceSpec, bind
from sktune.runners.base import DurationEstimates
from sktune.tuning.time_budget import TimeBudget
from tests.builders import decoder_layout

OPTIONS = backend_info("npu").options


def inspected(kinds: tuple[str, ...], **spec: Any) -> list[str]:
    """Return the lines that `sktune inspect` prints for a decoder with layers of ``kinds``."""
    space = bind(SpaceSpec(**spec), decoder_layout(kinds), OPTIONS.default_choices("npu"), OPTIONS.rules)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(inspection_view("a decoder", space, is_simulated=False))
    return captured.get().splitlines()


@pytest.mark.parametrize("per_layer", [False, True])
def test_inspect_has_one_block_for_each_layer_kind(per_layer: bool) -> None:
    """61 layers are as easy to read as two."""
    few, many = (
        inspected(("dense", "moe"), per_layer=per_layer),
        inspected(("dense",) * 3 + ("moe",) * 58, per_layer=per_layer),
    )
    assert len(many) - len(few) < 10
    text = "\n".join(many)
    assert "layer kind dense: 3 layers (model.layers.0 to model.layers.2)" in text
    assert "layer kind moe: 58 layers (model.layers.3 to model.layers.60)" in text


def test_inspect_shows_every_parameter_with_its_values() -> None:
    """Parameters of units, ``layers_per_scope``, and options."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in inspected(("dense", "moe"))]
    assert ["moe.self_attn", "out, new, join"] in rows
    assert ["layers_per_scope", "1, all"] in rows
    assert ["preload-code", "per-func, max, none"] in rows


def test_inspect_shows_layers_with_their_own_parameters_once() -> None:
    """``layers.N`` stands for each of them."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in inspected(("dense", "moe"), per_layer=True)]
    assert rows.count(["layers.N.self_attn", "out, new, join"]) == 1


def test_shares_of_one_layer_and_of_all_are_shown() -> None:
    """The median is one layer's share, the sum that of the kind."""
    layout = decoder_layout(("dense", "dense", "dense"), ("mlp",), outside=False)
    shares = (0.1, 0.2, 0.6)
    units = tuple(replace(unit, time_share=share) for unit, share in zip(layout.units, shares, strict=True))
    space = bind(SpaceSpec(), replace(layout, units=units), {}, OPTIONS.rules)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(inspection_view("a decoder", space, is_simulated=False))
    (row,) = [line for line in captured.get().splitlines() if line.startswith("│ mlp ")]
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["mlp", "20.0%", "90.0%"]


def trial(**values: Any) -> TrialFinished:
    """Return a trial that was as fast as the baseline, except for ``values``."""
    defaults: dict[str, Any] = {
        "trial": 3, "origin": "tpe", "scopes": 1, "known": False, "probe": False, "simulated": False,
        "state": "complete", "reason": None, "detail": "", "blamed": "", "latency_ms": 2.0, "baseline_ms": 2.0,
        "speedup": 1.0, "ci95": (1.0, 1.0), "comparison": "same", "noise": "", "seconds": {"compile": 1.0},
        "regions": 1, "reused": 0, "log": "", "expected_left_s": 1.0,
    }  # fmt: skip
    return TrialFinished(**defaults | values)


@pytest.mark.parametrize(("scopes", "text"), [(0, "0 scopes"), (1, "1 scope "), (61, "61 scopes")])
def test_a_trials_line_has_the_correct_plural(scopes: int, text: str) -> None:
    """One scope, but several scopes."""
    (line,) = lines_of(trial(scopes=scopes))
    assert text in line


@pytest.mark.parametrize(
    ("trials", "left_s", "shown"),
    [(40, 42.0, "1/40 trials"), (None, 42.0, "1 trial "), (40, 300.0, "about 5 min left")],
)
def test_the_live_view_shows_what_is_done_and_left(trials: int | None, left_s: float, shown: str) -> None:
    """With a number of trials, or without a limit."""
    console = Console(width=120, force_terminal=True)
    with console.capture() as captured, LiveView(console) as live:
        live(SearchStarted(study="s", trials=trials, time_budget_s=None, done=0, folder="runs/s"))
        live(trial(state="pruned", reason=Reason.SLOWER, expected_left_s=left_s))
    text = captured.get()
    assert shown in text
    assert "left" in text


def test_the_live_view_does_not_guess_an_end_that_nothing_sets() -> None:
    """Where only convergence ends a search."""
    budget = TimeBudget(math.inf, 0.0, lambda: 0.0)
    left_s = budget.expected_left_s(math.inf, DurationEstimates(1, 1, 1, 5, 3))
    assert left_s is None
    console = Console(width=120, force_terminal=True)
    with console.capture() as captured, LiveView(console) as live:
        live(SearchStarted(study="s", trials=None, time_budget_s=None, done=0, folder="runs/s"))
        live(trial(state="pruned", reason=Reason.SLOWER, expected_left_s=left_s))
    assert "left" not in captured.get()


@pytest.mark.parametrize(("is_probe", "is_best"), [(False, True), (True, False)])
def test_a_probe_is_never_shown_as_the_best(is_probe: bool, is_best: bool) -> None:
    """It is only run to learn from: it is not a plan of the space."""
    lines: list[str] = []
    PlainView(lines.append)(trial(probe=is_probe, speedup=2.0, ci95=(1.9, 2.1)))
    assert ("<- best" in lines[0]) is is_best
