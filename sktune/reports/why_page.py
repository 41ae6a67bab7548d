"""The output of `show --why`: tables, and a page with each layer kind's units and a matrix of savings."""

from html import escape
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from plotly.colors import qualitative
from plotly.subplots import make_subplots
from rich.console import Group, RenderableType
from rich.markup import escape as escape_markup
from rich.table import Table

from sktune.core.errors import StudyError
from sktune.core.files import write_text
from sktune.reports.why import Effect, SegmentSavings, Why

PAGE = "why.html"
OUTSIDE_COLOUR = "#e5e7eb"


def why_tables(why: Why, is_simulated: bool) -> RenderableType:
    """Return what was learned as tables for a console."""
    unit = "simulated ms" if is_simulated else "ms"
    tables: list[RenderableType] = [
        _effects("units: saving inside a scope", why.units, unit),
        _effects("borders: saving inside a scope", why.borders, unit),
    ]
    if why.options:
        tables.append(_effects("options: saving in the best plan so far", why.options, unit))
    if why.blamed:
        blamed = Table("scope", "options", "trials", "reason", title="known to fail", title_justify="left")
        for blame in why.blamed:
            options = ", ".join(f"{name}={value}" for name, value in blame.options.items())
            blamed.add_row(*map(escape_markup, (blame.segment, options, _numbers(blame.trials), blame.reason)))
        tables.append(blamed)
    return Group(*tables, *_sentences(why, unit))


def _sentences(why: Why, unit: str) -> list[str]:
    lines = []
    if why.experiment:
        low, high = why.experiment.ci95
        scopes = ", ".join(scope.label for scope in why.experiment.plan.scopes[:6])
        more = f" and {len(why.experiment.plan.scopes) - 6} more" if len(why.experiment.plan.scopes) > 6 else ""
        lines.append(
            f"The most informative plan to try next: {escape_markup(scopes)}{more}; it is expected to save "
            f"{why.experiment.expected_saving_ms:.3f} {unit} [{low:.3f}, {high:.3f}]."
        )
    lines.append(f"Expected gain left: {why.expected_gain_left:.2%} of the baseline's {why.baseline_ms:.3f} {unit}.")
    lines.append(
        f"Steps deviate from the model's predictions by {why.model_misfit:.1f} times their noise"
        + (": treat the figures above with caution." if why.model_misfit > 5 else ".")
    )
    return lines


def _effects(title: str, effects: tuple[Effect, ...], unit: str) -> Table:
    table = Table("", f"saves, {unit}", "95%", "trials", title=title, title_justify="left")
    # Sorted by the printed digits: the last bits depend on the processor.
    for effect in sorted(effects, key=lambda effect: (-round(effect.saving_ms, 4), effect.name)):
        low, high = effect.ci95
        table.add_row(
            escape_markup(effect.name), f"{effect.saving_ms:.4f}", f"[{low:.4f}, {high:.4f}]", str(effect.trials)
        )
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _numbers(trials: tuple[int, ...]) -> str:
    return ", ".join(map(str, trials)) or "by exclusion"


def why_page(why: Why, study: str, is_simulated: bool) -> str:
    """Return an HTML page that works offline: for each layer kind its units and a matrix of savings."""
    kinds = why.segments
    titles = [
        text
        for savings in kinds
        for text in (
            f"{savings.kind}: scopes of the best plan",
            f"{savings.kind}: what one scope saves, first unit down, last unit across",
        )
    ]
    figure = make_subplots(
        rows=2 * len(kinds), cols=1, subplot_titles=[escape(title) for title in titles],
        row_heights=[share for _ in kinds for share in (1.0, 4.0)], vertical_spacing=0.25 / (2 * len(kinds)),
    )  # fmt: skip
    unit = "simulated ms" if is_simulated else "ms"
    for index, savings in enumerate(kinds):
        _add_strip(figure, savings, 2 * index + 1)
        _add_matrix(figure, savings, 2 * index + 2, unit)
    figure.update_layout(
        title=escape(f"{study}: what scopes save, by first and last unit ({unit} per decode step)"),
        template="plotly_white", showlegend=False, barmode="overlay", height=150 + 420 * len(kinds), margin={"l": 220},
    )  # fmt: skip
    page: str = figure.to_html(include_plotlyjs=True, config={"displaylogo": False})
    return page


def _add_strip(figure: go.Figure, savings: SegmentSavings, row: int) -> None:
    colours = qualitative.Set2
    numbers = [number for number in dict.fromkeys(savings.in_scope) if number]
    for position, (key, number) in enumerate(zip(savings.units, savings.in_scope, strict=True)):
        colour = colours[numbers.index(number) % len(colours)] if number else OUTSIDE_COLOUR
        hover = f"{key}: scope {number}" if number else f"{key}: in no scope"
        figure.add_bar(
            x=[1], y=[""], base=[position], orientation="h", marker={"color": colour, "line": {"color": "white"}},
            text=[escape(key)], textposition="inside", insidetextanchor="middle",
            hovertext=[escape(hover)], hoverinfo="text", row=row, col=1,
        )  # fmt: skip
    figure.update_xaxes(visible=False, range=[0, len(savings.units)], row=row, col=1)


def _add_matrix(figure: go.Figure, savings: SegmentSavings, row: int, unit: str) -> None:
    names = [escape(key) for key in savings.units]
    largest = float(np.nanmax(np.abs(savings.saving_ms))) if np.isfinite(savings.saving_ms).any() else 1.0
    text = [["" if np.isnan(value) else f"{value:.3f}" for value in line] for line in savings.saving_ms]
    figure.add_heatmap(
        z=savings.saving_ms, x=names, y=names, text=text, texttemplate="%{text}", colorscale="RdBu",
        zmid=0.0, zmin=-largest, zmax=largest, showscale=False,
        hovertemplate="%{y} .. %{x}: %{z:.4f} " + unit + "<extra></extra>", row=row, col=1,
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed", row=row, col=1)


def write_page(why: Why, study: str, is_simulated: bool, folder: Path) -> Path:
    """Write the page into the study's folder.

    Raises:
        StudyError: the folder cannot be written.
    """
    path = folder / PAGE
    try:
        write_text(path, why_page(why, study, is_simulated))
    except OSError as failure:
        raise StudyError(f"{path} cannot be written ({failure.strerror}); fix that and run again") from failure
    return path
