"""Figures for notebooks: ``sktune.visualization.plot_history(study)`` and others.

Each takes what ``sktune.search`` or ``sktune.load`` returned, or the name of a study, and returns a plotly figure.
"""

from pathlib import Path

import plotly.graph_objects as go

from sktune.reports import figures
from sktune.study.result import SearchResult, stored_result

__all__ = ["plot_effects", "plot_final_comparison", "plot_history", "plot_segments"]

Study = SearchResult | str


def plot_history(study: Study, runs: Path | str = "runs", storage: str | None = None) -> go.Figure:
    """Return every trial with its interval, by outcome, and the best so far.

    Args:
        study: a result, or the name of a study.
        runs: folder that holds the studies, for a name.
        storage: URL of its Optuna storage; None for the database in its folder.

    Raises:
        StudyError: there is no such study.
    """
    return figures.history(_result(study, runs, storage))


def plot_final_comparison(study: Study, runs: Path | str = "runs", storage: str | None = None) -> go.Figure:
    """Return finalists and references with their intervals; see ``plot_history``."""
    return figures.final_comparison(_result(study, runs, storage))


def plot_effects(study: Study, runs: Path | str = "runs", storage: str | None = None) -> go.Figure:
    """Return what units, borders and options save, with intervals; see ``plot_history``."""
    return figures.effects(_result(study, runs, storage))


def plot_segments(
    study: Study, kind: str | None = None, runs: Path | str = "runs", storage: str | None = None
) -> go.Figure:
    """Return what one scope saves by first and last unit of a layer of ``kind``; see ``plot_history``."""
    return figures.segments(_result(study, runs, storage), kind)


def _result(study: Study, runs: Path | str, storage: str | None) -> SearchResult:
    return study if isinstance(study, SearchResult) else stored_result(study, Path(runs), storage)
