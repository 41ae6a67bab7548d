"""What must hold after a fault, once the same command was run again; one function checks all of it."""

import fcntl
import json
import math
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.campaign.faults import OF_MACHINE, Fault
from benchmarks.campaign.scene import Scene, Usual, record
from sktune.core.codec import decoded
from sktune.core.plan import Plan
from sktune.core.plan_file import read_plan

WAY_OUT = re.compile(
    r"(;|,|\.) (it was restored|and what was|stored trials are safe)|; |run (the same command|it|again)|--[a-z]"
)
"""A message says what to do: after a semicolon, or with a command or an option."""
KEPT = re.compile(
    r"(^|/)(study\.db\.damaged.*|core(\.0)?|logs/[a-z0-]+(\.before-0)?\.log|samples/final-0-[a-z0-9]+(-again)?\.npz)$"
)
"""Files that a disturbed search leaves on purpose: evidence of what happened, and the samples of finalists that were
compared one by one after their common process had died, or that were run again."""
WINNER = re.compile(r"(^|/)best_plan\.(yaml|artifacts/[^/]+)$")
"""Files of the winner; where times are measured, one search has a winner and the next may have none."""
CAUSED = ("crashed", "timeout", "compile_failed", "mismatch")
"""Reasons of trials that a fault may have caused, after which a search takes another way."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An undisturbed search of a subject.

    Attributes:
        usual: its duration and the number of its events.
        trials: its ended trials, by number.
        files: what it left, see ``Scene.files``.
        cache: the compiled code that it left.
    """

    usual: Usual
    trials: Mapping[int, Any]
    files: frozenset[str]
    cache: Path


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What was seen of a fault.

    Attributes:
        reported: events ``trial_finished`` that the disturbed search has printed.
        stored: the trials in the study's database right after it, as far as the fault itself spared them.
        again: events that the command printed when it was run again.
        exit_codes: of the disturbed search and the next one; None for one that had to be killed.
        messages: what they printed for people.
        processes: command lines of processes that outlived them.
    """

    reported: Sequence[Mapping[str, Any]]
    stored: Mapping[int, Any]
    again: Sequence[Mapping[str, Any]]
    exit_codes: tuple[int | None, int | None]
    messages: tuple[str, str]
    processes: Sequence[str] = field(default_factory=tuple)


def violations(scene: Scene, fault: Fault, reference: Reference, seen: Aftermath) -> list[str]:
    """Return what does not hold, in a line each; empty if all does."""
    found = [*_endings(fault, seen), *(f"left process: {line}" for line in seen.processes)]
    if fault.kind in OF_MACHINE:
        found += _blamed(reference, seen)
    if _was_refused(fault, seen):
        return found
    if seen.exit_codes[1] != 0:
        return found
    try:
        trials = record(scene.database)
    except sqlite3.Error as failure:
        return [*found, f"the study cannot be read in the end: {failure}"]
    found += [*_kept(seen, trials), *_run_once(seen, trials), *_winner(scene, fault, reference, seen, trials)]
    return [*found, *_released(scene), *_tidy(scene, reference)]


def _was_refused(fault: Fault, seen: Aftermath) -> bool:
    """Whether a damaged study in which nothing was stored yet, so that it has no backup, was refused."""
    is_damaged = fault.kind.startswith("database") and seen.exit_codes[1] == 2
    return is_damaged and not seen.reported and "name another --study" in seen.messages[1]


def _has_no_answer(fault: Fault, seen: Aftermath) -> bool:
    """Whether the fault made every plan of the model fail, so that none could be measured, as the next search says."""
    says_so = "Nothing could be tried: no plan could be measured" in seen.messages[1]
    return fault.whom == "model" and seen.exit_codes[1] == 1 and says_so


def _endings(fault: Fault, seen: Aftermath) -> Iterator[str]:
    for name, code, text in zip(("disturbed", "next"), seen.exit_codes, seen.messages, strict=True):
        last = text.strip().splitlines()[-1:]
        if code is None:
            yield f"the {name} search did not end, or not as it should: {last}"
        if "Traceback (most recent call last)" in text:
            yield f"the {name} search ended in a traceback: {last}"
        elif code is not None and code > 0:
            line = last[0] if last else ""
            if not line.startswith(("error: ", "stopped")):
                yield f"the {name} search ended with {code} and without a message: {line!r}"
            elif not WAY_OUT.search(line):
                yield f"the {name} search's message has no way out: {line}"
            if len([each for each in text.splitlines() if each.startswith("error: ")]) > 1:
                yield f"the {name} search printed more than one error"
    if seen.exit_codes[1] not in (0, None) and not (_was_refused(fault, seen) or _has_no_answer(fault, seen)):
        yield f"the next search ended with {seen.exit_codes[1]}: {seen.messages[1].strip().splitlines()[-1:]}"


def _blamed(reference: Reference, seen: Aftermath) -> Iterator[str]:
    """No plan has the machine's failure; a compile without a cache may take too long on a busy one."""
    for number, trial in seen.stored.items():
        outcome, usual = trial["sktune:outcome"], reference.trials.get(number, {}).get("sktune:outcome", {})
        if outcome.get("reason") in ("crashed", "compile_failed") and outcome["reason"] != usual.get("reason"):
            yield f"trial {number} is blamed for the machine: {outcome['reason']}, {outcome['detail'][:200]}"


def _kept(seen: Aftermath, trials: Mapping[int, Any]) -> Iterator[str]:
    """Whatever was reported or stored is still there, and the same."""
    for event in seen.reported:
        trial = trials.get(event["trial"])
        if trial is None:
            yield f"trial {event['trial']} was reported and is gone"
            continue
        outcome = trial["sktune:outcome"]
        ratio = (outcome.get("speedup") or {}).get("ratio")
        if (outcome.get("reason"), ratio) != (event["reason"], event["speedup"]):
            yield f"trial {event['trial']} was reported as {event['reason']}, {event['speedup']}, and is another now"
    for number, stored in seen.stored.items():
        if trials.get(number) != stored:
            yield f"trial {number} was stored and has changed"


def _run_once(seen: Aftermath, trials: Mapping[int, Any]) -> Iterator[str]:
    """No plan has two trials, and none that was reported is run again."""
    reported = {event["trial"] for event in seen.reported} | set(seen.stored)
    for event in seen.again:
        if event["event"] == "trial_stage" and event["trial"] in reported:
            yield f"trial {event['trial']} was run again"
            return
    plans = [json.dumps(trial["sktune:proposal"]["plan"], sort_keys=True) for trial in trials.values()]
    if len(set(plans)) < len(plans):
        yield "a plan has two trials"


def _winner(
    scene: Scene, fault: Fault, reference: Reference, seen: Aftermath, trials: Mapping[int, Any]
) -> Iterator[str]:
    """The winner is the best of the trials; without measured times, trials are those of an undisturbed search."""
    last = next((event for event in reversed(seen.again) if event["event"] == "study_finished"), None)
    if last is None:
        yield "the next search ended without a result"
        return
    if len(trials) != len(reference.trials):
        yield f"the study has {len(trials)} trials instead of {len(reference.trials)}"
    outcomes = {number: trial["sktune:outcome"] for number, trial in trials.items()}
    ratios = {number: outcome["speedup"]["ratio"] for number, outcome in outcomes.items()
              if not outcome.get("reason") and outcome.get("speedup")}  # fmt: skip
    winner = _winning(scene, trials) if last["plan"] else None
    if last["plan"] and winner not in ratios:
        yield f"trial {winner} won, which is not complete: {outcomes.get(winner or -1)}"
    if fault.subject == "inductor":  # measured times differ from search to search
        return
    if ratios and max(ratios.values()) > 1.02 and (winner is None or ratios.get(winner, 0.0) < max(ratios.values())):
        yield f"trial {winner} won, and not the best of {ratios}"
    for number, expected in sorted(reference.trials.items()):
        found = trials.get(number)
        if found is None or found["sktune:outcome"].get("reason") in CAUSED:
            return
        if _judged(found) != _judged(expected):
            yield f"trial {number} is {_judged(found)}, and {_judged(expected)} without the fault"
        if _has_scope_times(expected) and not _has_scope_times(found):
            return  # its worker was killed while it timed the scopes: the sampler knows less from here on


def _winning(scene: Scene, trials: Mapping[int, Any]) -> int | None:
    """Return the number of the trial whose plan is in the file for the user."""
    best = read_plan(scene.study / "best_plan.yaml")
    plans = {number: decoded(Plan, trial["sktune:proposal"]["plan"]) for number, trial in trials.items()}
    return next((number for number, plan in plans.items() if plan == best), None)


def _judged(trial: Mapping[str, Any]) -> tuple[Any, ...]:
    outcome = trial["sktune:outcome"]
    ratio = (outcome.get("speedup") or {}).get("ratio", math.nan)
    return trial["sktune:proposal"]["plan"], trial["state"], outcome.get("reason"), f"{ratio:.9g}"


def _has_scope_times(trial: Mapping[str, Any]) -> bool:
    return bool(trial["sktune:outcome"].get("scope_times"))


def _released(scene: Scene) -> Iterator[str]:
    """No lock is held, and no claim."""
    with (scene.study / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield "the study's folder is still locked"
    with closing(sqlite3.connect(f"file:{scene.database}?mode=ro", uri=True)) as connection:
        for (holders,) in connection.execute("SELECT holders FROM sktune_claims"):
            if json.loads(holders):
                yield "the study is still claimed"


def _tidy(scene: Scene, reference: Reference) -> Iterator[str]:
    for path in sorted(scene.files() - reference.files):
        is_of_winner = scene.subject == "inductor" and WINNER.search(path)
        if not KEPT.search(path) and not is_of_winner:
            yield f"left file: {path}"
