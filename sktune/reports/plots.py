"""Figures drawn with plotly, for notebooks and the Optuna dashboard; the page has its own drawings."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from sktune.core.printable import printable, shortened
from sktune.reports.drawing import Interval
from sktune.reports.shown import Shown

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_NAME, MAX_TITLE = 60, 120


def empty_plot(shown: Shown, title: str, across: str = "", up: str = "") -> "go.Figure":
    """Return a plot with titles of itself and its axes."""
    import plotly.graph_objects as go  # takes a third of a second

    figure = go.Figure()
    title = plain(f"{shown.result.study}: {title}", MAX_TITLE)
    return figure.update_layout(title=title, xaxis_title=across, yaxis_title=up, template="plotly_white")


def plain(text: str, limit: int = MAX_NAME) -> str:
    """Return text that plotly does not take for markup."""
    return escape(printable(shortened(text, limit)))


def errors(rows: Sequence[Interval]) -> dict[str, Any]:
    """Return the error bars of intervals."""
    return {
        "type": "data", "symmetric": False,
        "array": [0.0 if row.high is None else row.high - row.value for row in rows],
        "arrayminus": [0.0 if row.low is None else row.value - row.low for row in rows],
    }  # fmt: skip


def interval_plot(shown: Shown, title: str, label: str, series: Mapping[str, Sequence[Interval]]) -> "go.Figure":
    """Return rows of intervals beneath each other, each series in its colour; ``label`` is that of the axis."""
    figure = empty_plot(shown, title, label)
    for name, rows in series.items():
        values, names = [row.value for row in rows], [plain(row.name) for row in rows]
        figure.add_scatter(x=values, y=names, mode="markers", name=name, error_x=errors(rows),
                           hovertemplate="%{y}<br>%{x:.4f}")  # fmt: skip
    height = max(450, 160 + 20 * sum(map(len, series.values())))
    return figure.update_layout(margin={"l": 360}, height=height).update_yaxes(autorange="reversed")
