"""Terminal output: short, complete, and in correct English."""

import math
import time
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from sktune.backends import backend_info
from sktune.cli.views.findings import findings_table
from sktune.cli.views.inspection import inspection_view
from sktune.cli.views.live import LiveView
from sktune.cli.views.progress import PlainView, lines_of
from sktune.core.events.base import Event
from sktune.core.events.commands import Finding, State
from sktune.core.events.search import SearchStarted, TargetReady, TrialFinished, TrialStage, TrialStarted
from sktune.core.outcome import Reason
from sktune.core.plan import Plan, Scope
from sktune.core.space import SpaceSpec, bind
from sktune.reports.plan_names import plan_name, spans_and_options
from sktune.tuning.time_budget import TimeBudget
from sktune.worker.jobs import DurationEstimates
from tests.builders import decoder_layout

OPTIONS = backend_info("npu").options


def inspected(kinds: tuple[str, ...], **spec: Any) -> list[str]:
    """Return the lines that `sktune inspect` prints for a decoder with layers of ``kinds``."""
    space = bind(SpaceSpec(**spec), decoder_layout(kinds), OPTIONS.default_choices("npu"), OPTIONS.rules)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(inspection_view("a decoder", space, is_simulated=False))
    return captured.get().splitlines()


def test_findings_are_never_cut() -> None:
    """A path that is longer than a column is written on several lines."""
    path = "/data/" + "folder/" * 20
    console = Console(width=80)
    with console.capture() as captured:
        console.print(findings_table([Finding("recipe", "weights", State.MISSING, path, f"see {path}")]))
    cells = [line.split("│") for line in captured.get().splitlines()[3:-1]]
    found, fix = ("".join(cell[column].strip() for cell in cells) for column in (4, 5))
    assert (found, fix) == (path, f"see{path}")


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
        "trial": 3, "origin": "tpe", "scopes": 1, "shape": "whole step, 1 scope", "known": False, "probe": False,
        "simulated": False, "state": "complete", "reason": None, "detail": "", "blamed": "", "latency_ms": 2.0,
        "baseline_ms": 2.0, "speedup": 1.0, "ci95": (1.0, 1.0), "comparison": "same", "verified_steps": 16,
        "noise": "", "seconds": {"compile": 1.0}, "regions": 1, "reused": 0, "log": "", "expected_left_s": 1.0,
    }  # fmt: skip
    return TrialFinished(**defaults | values)


FAST = {"speedup": 1.12, "ci95": (1.1, 1.14)}


def started(**values: Any) -> SearchStarted:
    """Return the begin of a new search of 40 trials, except for ``values``."""
    defaults: dict[str, Any] = {"study": "s", "trials": 40, "time_budget_s": None, "done": 0, "folder": "runs/s"}
    return SearchStarted(**defaults | values)


def plain_lines(*events: Event, began_s: float | None = None) -> list[str]:
    """Return the lines that a log gets."""
    lines: list[str] = []
    view = PlainView(lines.append, began_s)
    for event in events:
        view(event)
    return lines


def test_a_trials_line_names_its_plan_by_its_shape() -> None:
    """And fits about 100 columns, however long the name."""
    (line,) = lines_of(trial(shape="self_attn of each layer, 61 scopes", **FAST))
    assert line.startswith("trial   3  self_attn of each layer, 61 scopes  ")
    assert "1.120x [1.100, 1.140]" in line
    (longer,) = lines_of(trial(shape="mostly input_layernorm to the next self_attn, 61 scopes", **FAST))
    assert len(line) < len(longer) <= 100


def test_the_first_gain_is_told_once_with_its_time_interval_and_bits() -> None:
    """By the first plan whose whole interval is above the baseline."""
    doubtful = trial(speedup=1.2, ci95=(0.9, 1.5))
    lines = plain_lines(started(), doubtful, trial(**FAST), trial(**FAST), began_s=time.monotonic() - 23)
    (line,) = [line for line in lines if line.startswith("first gain")]
    assert line == (
        "first gain after 23 s: 1.120x [1.100, 1.140], bits identical on 16 steps so far (whole step, 1 scope)"
    )
    assert lines.index(line) == 3


def test_a_simulated_first_gain_claims_no_bits() -> None:
    """They were not compared."""
    lines = plain_lines(trial(simulated=True, speedup=1.2, ci95=None, verified_steps=0))
    assert lines[-1].endswith(": 1.200x simulated (whole step, 1 scope)")


@pytest.mark.parametrize("values", [{"probe": True}, {"state": "pruned", "reason": Reason.MISMATCH}])
def test_what_cannot_win_is_no_gain(values: dict[str, Any]) -> None:
    """Probes, and plans that failed after they were measured."""
    assert not any("first gain" in line for line in plain_lines(trial(**FAST, **values)))


def test_a_search_that_continues_claims_no_first_gain() -> None:
    """An earlier call may have had it."""
    assert not any("first gain" in line for line in plain_lines(started(done=3), trial(**FAST)))


def test_a_search_that_continues_knows_its_best_trial() -> None:
    """A slower one is not called the best because this call has seen no other."""
    _, slower, better = plain_lines(started(done=3, best_speedup=1.2), trial(**FAST), trial(speedup=1.3))
    assert "<- best" not in slower and better.endswith("<- best")
    assert "best  1.200x, of a trial before this call" in screen(80, started(done=3, best_speedup=1.2), trial(**FAST))


def screen(width: int, *events: Event, **console: Any) -> str:
    """Return what the live view shows after ``events``."""
    terminal = Console(width=width, force_terminal=True, **console)
    with terminal.capture(), LiveView(terminal) as live:
        for event in events:
            live(event)
        with (shown := Console(width=width, **console)).capture() as captured:
            shown.print(live.picture(width))
    return captured.get()


LAYOUT = decoder_layout(("dense",) * 61)


def running(number: int, plan: Plan) -> list[Event]:
    """Return the events of a trial that has begun to compile."""
    values: dict[str, Any] = {"trial": number, "origin": "partition", "scopes": len(plan.scopes)}
    shape, spans = plan_name(plan, LAYOUT), spans_and_options(plan, LAYOUT)
    return [TrialStarted(**values, shape=shape, spans=spans), TrialStage(trial=number, stage="compile")]


ATTENTION = Plan(tuple(Scope(name, name) for name in (f"model.layers.{index}.self_attn" for index in range(61))))
READY = TargetReady(description="a decoder", space_size=7, units=len(LAYOUT.units), model_difference="", seconds={})
WHOLE = Plan((Scope(LAYOUT.units[0].name, LAYOUT.units[-1].name),))


@pytest.mark.parametrize("width", [20, 40, 80, 120])
@pytest.mark.parametrize("no_color", [False, True])
def test_the_live_view_draws_both_plans_and_the_course_at_any_width(width: int, no_color: bool) -> None:
    """The running plan, the incumbent, and the best speedup so far; each on one line."""
    events = [started(), READY, *running(0, WHOLE), trial(trial=0, **FAST), *running(1, ATTENTION)]
    lines = screen(width, *events, no_color=no_color).splitlines()
    assert max(map(len, lines)) <= width
    assert "█" * (width - 6) in lines[lines.index(next(line for line in lines if line.startswith("best"))) + 1]
    now = lines.index(next(line for line in lines if line.startswith("now")))
    assert set(lines[now + 1].strip()) <= set("▄·█▓")
    assert any("▁█" in line for line in lines)


def test_the_live_view_fits_a_small_terminal() -> None:
    """24 lines with all that it ever shows."""
    trials = [event for number in range(20) for event in (*running(number, ATTENTION), trial(trial=number, **FAST))]
    shown = screen(80, started(), READY, *trials)
    assert len(shown.splitlines()) <= 20
    assert "self_attn of each layer, 61 scopes" in shown


def test_what_stays_after_the_search_has_no_time_left() -> None:
    """Nor a running plan."""
    console = Console(width=80, force_terminal=True)
    with console.capture() as captured, LiveView(console) as live:
        for event in (started(), READY, *running(0, WHOLE), trial(**FAST)):
            live(event)
    last = captured.get().rpartition("a decoder")[2]
    assert "left" not in last
    assert "now" not in last
    assert "best  trial 3" in last
    assert "first gain after" in captured.get()


def test_time_left_is_not_guessed_before_a_trial_has_ended() -> None:
    """A time budget limits it, though."""
    assert "time left known after a trial" in screen(80, started())
    assert "at most" in screen(80, started(time_budget_s=600.0))


@pytest.mark.parametrize(
    ("trials", "left_s", "shown"),
    [(40, 42.0, "1/40 trials"), (None, 42.0, "1 trial "), (40, 300.0, "about 5 min left")],
)
def test_the_live_view_shows_what_is_done_and_left(trials: int | None, left_s: float, shown: str) -> None:
    """With a number of trials, or without a limit."""
    text = screen(120, started(trials=trials), trial(state="pruned", reason=Reason.SLOWER, expected_left_s=left_s))
    assert shown in text
    assert "left" in text


def test_the_live_view_does_not_guess_an_end_that_nothing_sets() -> None:
    """Where only convergence ends a search."""
    budget = TimeBudget(math.inf, 0.0, lambda: 0.0)
    left_s = budget.expected_left_s(math.inf, DurationEstimates(1, 1, 1, 5, 3))
    assert left_s is None
    events = started(trials=None), trial(state="pruned", reason=Reason.SLOWER, expected_left_s=left_s)
    text = screen(120, *events)
    assert "left" not in text
    assert "until it converges" in text


@pytest.mark.parametrize(("is_probe", "is_best"), [(False, True), (True, False)])
def test_a_probe_is_never_shown_as_the_best(is_probe: bool, is_best: bool) -> None:
    """It is only run to learn from: it is not a plan of the space."""
    line, *_ = plain_lines(trial(probe=is_probe, speedup=2.0, ci95=(1.9, 2.1)))
    assert ("<- best" in line) is is_best
