"""Studies of one target side by side: the best speedup of each by number of trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import accumulate
from pathlib import Path

import plotly.graph_objects as go

from sktune.core.errors import BadInputError, StudyError
from sktune.core.events.studies import StudyCompared
from sktune.core.files import write_text
from sktune.samplers import strategy_names
from sktune.study.records import TrialRecord
from sktune.study.result import SearchResult
from sktune.study.study import folder_name

FOLDER = "comparisons"
FIRST_CHECKPOINT = 5

_TARGET = ("backend", "device", "scale", "dtype", "batch", "context", "constants")
"""Entries of a fingerprint that identify the target, besides the model; the model's entry also contains the seed."""
_VERSIONS = ("sktune", "torch", "transformers", "python", "torch_npu", "cann", "memory", "space", "seed")
"""Entries that may differ, and are reported if they do."""


@dataclass(frozen=True)
class Curve:
    """The incumbent's speedup in the course of one study, by the figures of its trials.

    Attributes:
        result: of the study.
        differs: versions, environment variables, space or seed that differ from the first study's.
    """

    result: SearchResult
    differs: tuple[str, ...] = ()

    @cached_property
    def incumbents(self) -> tuple[float, ...]:
        """Speedup of the best complete trial after each trial; 1.0, that of the baseline, before the first."""
        return tuple(accumulate((_speedup(record) for record in self.result.trials), max, initial=1.0))[1:]

    def after(self, trials: int) -> float | None:
        """Return the incumbent's speedup after that many trials; None if the study has fewer."""
        return self.incumbents[trials - 1] if 0 < trials <= len(self.incumbents) else None

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies that proposed its trials, apart from starting points."""
        origins = dict.fromkeys(record.origin for record in self.result.trials)
        known = strategy_names()
        return tuple(origin for origin in origins if origin in known or ":" in origin)


@dataclass(frozen=True)
class ComparedStudies:
    """Studies of one target.

    Attributes:
        curves: in the order of the arguments.
        checkpoints: numbers of trials at which to compare them.
    """

    curves: tuple[Curve, ...]
    checkpoints: tuple[int, ...]

    @property
    def is_simulated(self) -> bool:
        """Whether the figures are simulated; as all studies have the same backend, either all are or none."""
        return any(curve.result.is_simulated for curve in self.curves)

    def events(self) -> list[StudyCompared]:
        """Return one event for each study; see docs/reference/events.md."""
        events = []
        for curve in self.curves:
            result = curve.result
            # Plans that cannot be used: they do not compile, crash or hang, or change bits.
            failed = sum(bool(record.outcome and not record.outcome.is_feasible) for record in result.trials)
            events.append(
                StudyCompared(
                    study=result.study,
                    strategies=curve.strategies,
                    trials=len(result.trials),
                    best_after={str(trials): curve.after(trials) for trials in self.checkpoints},
                    winner=result.winner.number if result.winner else None,
                    speedup=result.speedup,
                    ci95=result.ci95,
                    failed_share=failed / max(1, len(result.trials)),
                    seconds=result.facts.seconds,
                    simulated=result.is_simulated,
                    differs=curve.differs,
                )
            )
        return events


def compare(results: Sequence[SearchResult]) -> ComparedStudies:
    """Put studies side by side.

    Raises:
        BadInputError: two of them have different targets; the message has the first difference.
    """
    first = results[0]
    curves = []
    for result in results:
        if key := _other_target(_made_with(first), _made_with(result)):
            raise BadInputError(
                f"study {result.study!r} has {key} {_made_with(result).get(key)!r} and {first.study!r} "
                f"{_made_with(first).get(key)!r}; compare studies of the same target"
            )
        curves.append(Curve(result, _differences(_made_with(first), _made_with(result))))
    longest = max(len(result.trials) for result in results)
    checkpoints = [FIRST_CHECKPOINT]
    while checkpoints[-1] < longest:
        checkpoints.append(2 * checkpoints[-1])
    return ComparedStudies(tuple(curves), tuple(trials for trials in checkpoints if trials <= longest))


def picture(compared: Sequence[ComparedStudies]) -> str:
    """Return an HTML page that works offline: each study's incumbent by number of trials, a figure for each target."""
    figures = [
        _figure(each).to_html(full_html=False, include_plotlyjs=not number, config={"displaylogo": False})
        for number, each in enumerate(compared)
    ]
    return "\n".join(["<!doctype html>", '<html><head><meta charset="utf-8"></head><body>', *figures, "</body></html>"])


def _figure(compared: ComparedStudies) -> go.Figure:
    figure = go.Figure()
    for curve in compared.curves:
        trials = list(range(1, len(curve.incumbents) + 1))
        name = escape(f"{curve.result.study} ({', '.join(curve.strategies) or 'starting points'})")
        hover = [escape(f"trial {record.number}, {record.origin}") for record in curve.result.trials]
        figure.add_scatter(
            x=trials, y=list(curve.incumbents), text=hover, name=name, mode="lines+markers",
            line={"shape": "hv"}, marker={"size": 5}, hovertemplate="%{y:.3f}x after %{x} trials (%{text})",
        )  # fmt: skip
    title = escape(compared.curves[0].result.facts.description)
    speedup = "speedup of the best trial so far" + (", simulated" if compared.is_simulated else "")
    figure.update_layout(
        title=title, xaxis_title="trials", yaxis_title=speedup, template="plotly_white", showlegend=True
    )
    return figure


def write_picture(compared: Sequence[ComparedStudies], studies: Sequence[str], path: Path | None, runs: Path) -> Path:
    """Write the page, by default into the folder ``comparisons`` of ``runs``, named after the ``studies``.

    Raises:
        StudyError: the file cannot be written.
    """
    path = path or runs / FOLDER / f"{folder_name('-'.join(studies))}.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, picture(compared))
    except OSError as failure:
        raise StudyError(f"{path} cannot be written ({failure.strerror}); name another file with --html") from failure
    return path


def _speedup(record: TrialRecord) -> float:
    outcome = record.outcome
    return outcome.speedup.ratio if outcome and record.may_win and outcome.speedup else 1.0


def _made_with(result: SearchResult) -> Mapping[str, str]:
    return result.facts.fingerprint


def _differences(first: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, ...]:
    """Return which of the entries that may differ do: versions, and environment variables."""
    variables = sorted(key for key in {*first, *other} if key.isupper())
    return tuple(key for key in (*_VERSIONS, *variables) if first.get(key) != other.get(key))


def _other_target(first: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """Return the first entry in which the targets differ; another seed is not another target."""
    for key in _TARGET:
        if first.get(key) != other.get(key):
            return key
    names = [made_with.get("model", "") for made_with in (first, other)]
    if first.get("seed") != other.get("seed"):
        names = [name.rpartition(" ")[0] for name in names]
    return "model" if names[0] != names[1] else None
