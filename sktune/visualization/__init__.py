"""Figures for notebooks: ``sktune.visualization.plot_history(study)`` and others.

Each takes what ``sktune.search`` or ``sktune.load`` returned, or the name of a study, and returns a plotly figure.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sktune.reports.figures import FIGURES
from sktune.reports.plots import empty_plot
from sktune.reports.shown import Shown
from sktune.study.result import SearchResult, stored_result

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["plot_effects", "plot_final_comparison", "plot_history", "plot_segments"]

Study = SearchResult | str


def plot_history(study: Study, runs: Path | str = "runs", storage: str | None = None) -> "go.Figure":
    """Return every trial with its interval, by outcome, and the best so far.

    Args:
        study: a result, or the name of a study.
        runs: folder that holds the studies, for a name.
        storage: URL of its Optuna storage; None for the database in its folder.

    Raises:
        StudyError: there is no such study.
    """
    return _plot("history", study, runs, storage)


def plot_final_comparison(study: Study, runs: Path | str = "runs", storage: str | None = None) -> "go.Figure":
    """Return finalists and references with their intervals; see ``plot_history``."""
    return _plot("final", study, runs, storage)


def plot_effects(study: Study, runs: Path | str = "runs", storage: str | None = None) -> "go.Figure":
    """Return what units, borders and options save, with intervals; see ``plot_history``."""
    return _plot("effects", study, runs, storage)


def plot_segments(
    study: Study, kind: str | None = None, runs: Path | str = "runs", storage: str | None = None
) -> "go.Figure":
    """Return what one scope saves by first and last unit of a layer of ``kind``; see ``plot_history``."""
    return _plot("segments", study, runs, storage, kind=kind)


def _plot(key: str, study: Study, runs: Path | str, storage: str | None, **options: Any) -> "go.Figure":
    """Return the plot of a figure; one without content if there is nothing to show yet."""
    shown = Shown(study if isinstance(study, SearchResult) else stored_result(study, Path(runs), storage))
    figure = FIGURES[key](shown)
    return figure.plot(**options) if figure and figure.plot else empty_plot(shown, shown.say(f"{key}.title"))
