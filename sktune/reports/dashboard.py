"""What ``optuna-dashboard`` shows of a study: names, notes and our figures, stored in the study as it expects them."""

import importlib.util
import logging
import warnings
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import RandomSampler

from sktune.core.outcome import bracketed
from sktune.core.printable import shortened
from sktune.reports.application import how_to_apply
from sktune.reports.figure import table_cell
from sktune.reports.figures import FIGURES
from sktune.reports.plan_names import plan_options, trial_name
from sktune.reports.shown import Shown
from sktune.reports.study import verdict_line
from sktune.study.records import TrialRecord, incumbent_first
from sktune.study.result import SearchResult

logger = logging.getLogger(__name__)

OBJECTIVE = "decode step latency, ms"
MAX_NOTES = 30
"""Trials with a note: the best ones, and those that failed last. Each note takes some milliseconds to store."""
MARK = "*Written by sktune; what you write below this line stays.*"


def is_installed() -> bool:
    """Whether ``optuna-dashboard`` is installed."""
    return importlib.util.find_spec("optuna_dashboard") is not None


def publish(study: optuna.Study, result: SearchResult) -> None:
    """Store notes, names and figures in ``study``; a failure is logged, as the study itself has everything already."""
    try:
        from optuna_dashboard import save_plotly_graph_object

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names([OBJECTIVE])
        _save_note(study, _note(result))
        shown = Shown(result)
        for key, make in FIGURES.items():
            if (figure := make(shown)) and figure.plot:
                # By an identifier, so that it is replaced.
                save_plotly_graph_object(study, figure.plot(), graph_object_id=f"sktune-{key}")
        for record in _noted(result):
            _save_note(_trial(study, record.number), _trial_note(result, record))
    except Exception as failure:  # noqa: BLE001 - another program's format must not cost a search its end
        logger.warning("the study was not prepared for optuna-dashboard: %s", failure)


def _trial(study: optuna.Study, number: int) -> optuna.Trial:
    """Return an ended trial, for which Optuna has no public way."""
    storage = study._storage  # noqa: SLF001
    # Optuna tells the sampler that a trial begins: some, as its grid's, then store something in it, and it has ended.
    quiet = optuna.load_study(study_name=study.study_name, storage=storage, sampler=RandomSampler())
    return optuna.Trial(quiet, storage.get_trial_id_from_study_id_trial_number(study._study_id, number))  # noqa: SLF001


def _save_note(noted: optuna.Study | optuna.Trial, text: str) -> None:
    """Store a note above what people have written into it."""
    from optuna_dashboard import get_note, save_note

    stored = get_note(noted)
    _, mark, below = stored.partition(MARK)
    save_note(noted, f"{text}\n\n{MARK}" + (below if mark else f"\n\n{stored}" if stored else ""))


def _note(result: SearchResult) -> str:
    apply = how_to_apply(result, result.winner.plan) if result.winner else ""
    page = f"The study in pictures: `{table_cell(str(Path(result.folder.name) / 'report.html'))}`"
    return f"# {table_cell(verdict_line(result))}\n\n{table_cell(result.facts.description)}\n{apply}\n\n{page}\n"


def _noted(result: SearchResult) -> list[TrialRecord]:
    failed = [record for record in result.trials if record.outcome and not record.outcome.is_feasible]
    best = incumbent_first(result.trials)[: MAX_NOTES // 2]
    return [*best, *failed[-(MAX_NOTES - len(best)) :]]


def _trial_note(result: SearchResult, record: TrialRecord) -> str:
    outcome = record.outcome
    assert outcome is not None
    lines = [f"**{table_cell(trial_name(record.number, record.judged_plan, result.facts.layout))}**"]
    if options := plan_options(record.judged_plan):
        lines.append(f"options: {table_cell(options)}")
    if outcome.speedup:
        interval = bracketed(outcome.speedup.ratio, outcome.speedup.ci95)
        lines.append(f"{outcome.speedup.ratio:.3f} times as fast as the baseline, {interval}")
    if outcome.reason:
        lines.append(f"{outcome.reason}: {table_cell(shortened(outcome.detail, 1000))}")
    if outcome.log:
        lines.append(f"log: `{table_cell(outcome.log)}`")
    return "\n\n".join(lines)
