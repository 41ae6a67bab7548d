"""Where a study's time went: every stage of every trial by worker, and the final comparison; also as a trace."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sktune.reports.plan_names import trial_name
from sktune.study.records import TrialRecord
from sktune.study.result import SearchResult

STAGES = ("compile", "verify", "measure", "observe")
OTHER, FINAL = "other", "final"
"""Time of a trial outside of its stages, and what begins the stages of the final comparison."""
FINAL_STAGES = tuple(f"{FINAL}-{stage}" for stage in ("open", *STAGES[:3]))
PAUSE_S = 60.0
"""Longest time without a trial that is not cut out: nobody searched meanwhile."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time of one worker.

    Attributes:
        worker: the die if the search had several, otherwise host and process.
        trial: its number; None for the final comparison.
        stage: one of ``STAGES``, ``OTHER`` or ``FINAL_STAGES``.
        begin_s, end_s: from the start of the study, pauses between searches cut out.
    """

    worker: str
    trial: int | None
    stage: str
    begin_s: float
    end_s: float


def stretches(result: SearchResult) -> tuple[Stretch, ...]:
    """Return all stretches, by start; stages follow each other in the order of ``STAGES``.

    The time of the final comparison is not recorded, only the duration of its stages: they are put after the last trial
    that it judged.
    """
    timed = sorted((record for record in result.trials if record.began and record.ended), key=_began)
    found: list[Stretch] = []
    origin_s, cut_s, reached_s = (_began(timed[0]) if timed else 0.0), 0.0, 0.0
    for record in timed:
        begin_s = _began(record) - origin_s - cut_s
        if begin_s - reached_s > PAUSE_S:
            cut_s += begin_s - reached_s
            begin_s = reached_s
        end_s = max(begin_s, _seconds(record.ended) - origin_s - cut_s)
        found += _of_trial(record, result.workers.name_of(record), begin_s, end_s)
        reached_s = max(reached_s, end_s)
    if timed and result.facts.final_s:
        return (*_with_final(found, result, timed),)
    return tuple(found)


def _with_final(found: Sequence[Stretch], result: SearchResult, timed: Sequence[TrialRecord]) -> list[Stretch]:
    judged = [each for each in found if each.trial is not None and each.trial < (result.facts.final_trials or 10**9)]
    begin_s = max((each.end_s for each in judged), default=0.0)
    took_s = result.facts.final_s
    worker = ", ".join(result.dies) or timed[-1].worker
    final, at_s = [], begin_s
    for stage, seconds in result.facts.final_seconds.items():
        final.append(Stretch(worker, None, f"{FINAL}-{stage}", at_s, at_s + seconds))
        at_s += seconds
    later = (
        replace(each, begin_s=each.begin_s + took_s, end_s=each.end_s + took_s) if each.begin_s >= begin_s else each
        for each in found
    )
    return sorted((*later, *final), key=lambda each: each.begin_s)


def _of_trial(record: TrialRecord, worker: str, begin_s: float, end_s: float) -> list[Stretch]:
    seconds = record.outcome.seconds if record.outcome else {}
    found, at_s = [], begin_s
    for stage in STAGES:
        if took_s := seconds.get(stage, 0.0):
            found.append(Stretch(worker, record.number, stage, at_s, min(end_s, at_s + took_s)))
            at_s = found[-1].end_s
    if at_s < end_s:
        found.append(Stretch(worker, record.number, OTHER, at_s, end_s))
    return found


def _began(record: TrialRecord) -> float:
    return _seconds(record.began)


def _seconds(moment: datetime | None) -> float:
    # Naive local times: their differences are what counts.
    return moment.timestamp() if moment else 0.0


def totals(result: SearchResult) -> dict[str, float]:
    """Return the seconds spent in each stage, over all workers."""
    spent: dict[str, float] = {}
    for each in stretches(result):
        spent[each.stage] = spent.get(each.stage, 0.0) + each.end_s - each.begin_s
    return spent


def trace_json(result: SearchResult) -> str:
    """Return a trace in Chrome's format, for Perfetto: a process for the study, and a thread for each worker."""
    found = stretches(result)
    records = {record.number: record for record in result.trials}
    workers = {worker: index for index, worker in enumerate(dict.fromkeys(each.worker for each in found), 1)}
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": result.study}}]
    events += [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": index, "args": {"name": worker or "worker"}}
        for worker, index in workers.items()
    ]
    for each in found:
        record = records.get(-1 if each.trial is None else each.trial)
        details = _details(record, result) if record else {}
        events.append(
            {"ph": "X", "name": each.stage, "cat": "trial" if record else FINAL, "pid": 1, "tid": workers[each.worker],
             "ts": round(1e6 * each.begin_s), "dur": round(1e6 * (each.end_s - each.begin_s)), "args": details}
        )  # fmt: skip
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, ensure_ascii=False)


def _details(record: TrialRecord, result: SearchResult) -> dict[str, Any]:
    outcome = record.outcome
    return {
        "trial": record.number,
        "plan": trial_name(record.number, record.judged_plan, result.facts.layout),
        "origin": record.origin,
        "outcome": str(outcome.reason or "complete") if outcome else "",
        "speedup": outcome.speedup.ratio if outcome and outcome.speedup else None,
    }
