"""Resuming a search that was killed: the trials that it left behind are proposed again, and its plans are not lost."""

import os
import socket
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import Trial, TrialState

from sktune.study.records import PROPOSAL


def left_behind(study: optuna.Study, living: AbstractSet[str], own: str, is_ours_alone: bool) -> list[Trial]:
    """Return the running trials whose search has died, the first one last.

    Args:
        study: to look at.
        living: tokens of the searches that run it; empty if none has claimed it.
        own: token of this search.
        is_ours_alone: whether no other process can run the study, as this one holds the lock of its folder.
    """
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    dead = [each for each in running if _is_left(each.user_attrs.get(PROPOSAL, {}), living, own, is_ours_alone)]
    return [
        Trial(study, trial._trial_id)  # noqa: SLF001 - no public way to resume a running trial
        for trial in reversed(dead)
    ]


def _is_left(proposal: Mapping[str, Any], living: AbstractSet[str], own: str, is_ours_alone: bool) -> bool:
    if living - {own} and not proposal:
        return False  # a search that has joined may be asking for it at this moment
    if living and proposal.get("claim"):
        return proposal["claim"] not in living
    return is_ours_alone or not _may_live(proposal)


def _may_live(proposal: Mapping[str, Any]) -> bool:
    """Whether the process of a proposal may still be running; one on another host cannot be checked."""
    if proposal.get("host", socket.gethostname()) != socket.gethostname():
        return True
    pid = proposal.get("pid", os.getpid())
    return bool(pid != os.getpid() and Path(f"/proc/{pid}").exists())
