"""Figures of a study for notebooks and dashboards, with plotly; ``report.html`` has its own."""

from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from sktune.core.language import Sentences
from sktune.core.outcome import Speedup
from sktune.core.printable import printable, shortened
from sktune.reports.page.pictures.effects import by_size
from sktune.reports.page.shown import Shown
from sktune.reports.texts import TEXTS
from sktune.reports.why import learned_from
from sktune.study.records import TrialRecord
from sktune.study.result import SearchResult

MAX_NAME = 60
MAX_EFFECTS = 30


def history(result: SearchResult) -> go.Figure:
    """Return every trial with its interval, by outcome, and the best so far as a step line."""
    shown = _shown(result)
    figure = _figure(shown, "Course of the search", "trial", _speedup_axis(shown))
    by_outcome: dict[str, list[TrialRecord]] = {}
    for record in result.trials:
        if record.outcome and record.outcome.speedup:
            by_outcome.setdefault(shown.ended(record.outcome), []).append(record)
    for name, records in by_outcome.items():
        speedups = [record.outcome.speedup for record in records if record.outcome and record.outcome.speedup]
        figure.add_scatter(
            x=[record.number for record in records], y=[speedup.ratio for speedup in speedups], mode="markers",
            error_y=_errors(speedups), text=[_text(shown.named(record)) for record in records],
            hovertemplate="%{text}<br>%{y:.3f}x", name=name,
        )  # fmt: skip
    best, incumbents = 1.0, list[tuple[int, float]]()
    for record in result.trials:
        outcome = record.outcome
        if record.may_win and outcome and outcome.speedup:
            best = max(best, outcome.speedup.ratio)
        incumbents.append((record.number, best))
    figure.add_scatter(x=[number for number, _ in incumbents], y=[ratio for _, ratio in incumbents], mode="lines",
                       line={"shape": "hv"}, name="best so far", hoverinfo="skip")  # fmt: skip
    return figure


def final_comparison(result: SearchResult) -> go.Figure:
    """Return the final comparison: finalists and references with their intervals; empty before it."""
    shown = _shown(result)
    figure = _figure(shown, "Final comparison", _speedup_axis(shown), "")
    names, speedups = [], []
    for row in reversed(result.final):
        if speedup := result.final_speedup(row):
            record = shown.records.get(int(row.name)) if row.name.isdigit() else None
            names.append(_text(shown.named(record) if record else row.name))
            speedups.append(speedup)
    figure.add_scatter(x=[speedup.ratio for speedup in speedups], y=names, mode="markers", error_x=_errors(speedups),
                       hovertemplate="%{y}<br>%{x:.3f}x", showlegend=False)  # fmt: skip
    if result.comparison and not result.is_simulated:
        floor = result.comparison.noise_floor
        figure.add_vrect(x0=1 - floor, x1=1 + floor, fillcolor="gray", opacity=0.25, line_width=0)
    figure.update_layout(margin={"l": 360})
    return figure


def effects(result: SearchResult) -> go.Figure:
    """Return what units, borders and options save, with intervals; empty before anything was measured."""
    shown = _shown(result, learns=True)
    figure = _figure(shown, "Effects of units, borders and options", f"saves, {_ms(shown)} per step", "")
    for name in ("units", "borders", "options") if shown.why else ():
        found = list(reversed(by_size(getattr(shown.why, name))[:MAX_EFFECTS]))
        errors = {
            "type": "data", "symmetric": False,
            "array": [effect.ci95[1] - effect.saving_ms for effect in found],
            "arrayminus": [effect.saving_ms - effect.ci95[0] for effect in found],
        }  # fmt: skip
        figure.add_scatter(x=[effect.saving_ms for effect in found], y=[_text(effect.name) for effect in found],
                           mode="markers", error_x=errors, name=name,
                           customdata=[effect.trials for effect in found],
                           hovertemplate="%{y}<br>%{x:.4f}, in %{customdata} trials")  # fmt: skip
    figure.update_layout(margin={"l": 360}, height=700)
    return figure


def segments(result: SearchResult, kind: str | None = None) -> go.Figure:
    """Return what one scope saves in a layer by first and last unit; of the first layer kind unless one is named."""
    shown = _shown(result, learns=True)
    figure = _figure(shown, "What one scope saves", "last unit", "first unit")
    kinds = {savings.kind: savings for savings in (shown.why.segments if shown.why else ())}
    chosen = kinds.get(kind) if kind else next(iter(kinds.values()), None)
    if chosen:
        units = [_text(unit) for unit in chosen.units]
        figure.add_heatmap(
            z=chosen.saving_ms, x=units, y=units, customdata=1.96 * chosen.sd_ms, colorscale="RdBu", zmid=0,
            hovertemplate="%{y} to %{x}: %{z:.4f} ± %{customdata:.4f}<extra></extra>",
        )  # fmt: skip
        figure.update_layout(title=_text(f"{chosen.kind}: what one scope saves, {_ms(shown)} per step"))
        figure.update_yaxes(autorange="reversed")
    return figure


def _shown(result: SearchResult, *, learns: bool = False) -> Shown:
    return Shown(result, learned_from(result) if learns else None, Sentences(TEXTS, "en"))


def _figure(shown: Shown, title: str, across: str, up: str) -> go.Figure:
    head = _text(shortened(f"{shown.result.study}: {title}", 120))
    figure = go.Figure()
    figure.update_layout(title=head, xaxis_title=across, yaxis_title=up, template="plotly_white")
    return figure


def _speedup_axis(shown: Shown) -> str:
    return shown.say("speedup_simulated" if shown.result.is_simulated else "speedup")


def _ms(shown: Shown) -> str:
    return shown.say("simulated_ms" if shown.result.is_simulated else "ms")


def _text(text: str) -> str:
    """Return text that plotly does not take for markup."""
    return escape(printable(shortened(text, MAX_NAME)))


def _errors(speedups: Sequence[Speedup]) -> dict[str, Any]:
    return {
        "type": "data", "symmetric": False,
        "array": [speedup.bounds[1] - speedup.ratio for speedup in speedups],
        "arrayminus": [speedup.ratio - speedup.bounds[0] for speedup in speedups],
    }  # fmt: skip
