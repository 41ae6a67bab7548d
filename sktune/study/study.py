"""Studies: every trial ever made for one target, backend, device and space, in an Optuna study.

Optuna's storage is the only record: a study is rebuilt from it alone. Every parameter is suggested before
anything is compiled, an outcome is stored before the next trial starts, and a trial that was running when its
process died is taken up again under its own number.
"""

import hashlib
import math
import os
import re
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from sktune.backends import backend_info
from sktune.core.contents import changed_file
from sktune.core.errors import StudyError
from sktune.core.outcome import Outcome, Reason
from sktune.core.plan import Option, Plan
from sktune.core.space import SearchSpace, StartingPoint
from sktune.core.verification import Verification
from sktune.learning.history import ORIGIN, OUTCOME, PREFIX, PROBE, Learned, amended
from sktune.study.claims import Claims, Holder, refuse_difference
from sktune.study.distinct import DistinctSampler
from sktune.study.facts import FORMAT, NewFacts, StudyFacts, to_attributes
from sktune.study.records import TrialRecord, incumbent_first, record_of
from sktune.study.storage import DATABASE, check_file, open_storage, translated
from sktune.study.strategy import Strategy

MOST_ATTEMPTS = 3
"""A trial that has ended this many processes is not tried again."""

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")
OTHER_FOLDERS = frozenset({"README.md", "cache", "comparisons", "jobs", "profiles"})
"""What else lies beside the studies' folders."""


@dataclass(frozen=True)
class Proposal:
    """A trial that is to be run now; ``known`` is its outcome where the record answers it."""

    trial: Trial
    plan: Plan
    origin: str
    known: Outcome | None
    is_probe: bool = False

    @property
    def number(self) -> int:
        """The trial's number."""
        number: int = self.trial.number
        return number


def folder_name(study_name: str) -> str:
    """Return a folder name for any study name: the name itself where it is harmless, else with a digest."""
    if _SAFE_NAME.fullmatch(study_name) and study_name not in OTHER_FOLDERS:
        return study_name
    harmless = re.sub(r"[^A-Za-z0-9._-]+", "-", study_name).strip("-.")[:60] or "study"
    return f"{harmless}-{hashlib.sha256(study_name.encode()).hexdigest()[:8]}"


class TuningStudy:
    """An Optuna study and what sktune keeps in it.

    One process at a time asks and tells, which ``claimed`` sees to, or several that have joined; any number may read.

    Raises:
        StudyError: the storage cannot be opened, is locked or corrupt, or belongs to something else.
    """

    def __init__(self, name: str, storage: RDBStorage, study: optuna.Study, is_ours_alone: bool) -> None:
        self.name, self._is_ours_alone = name, is_ours_alone
        self._storage, self._study = storage, study
        self._left_behind: list[Trial] | None = None
        self._ended: dict[int, TrialRecord] = {}
        self._kept: dict[tuple[Strategy, int], BaseSampler] = {}
        self._claims: Claims | None = None
        self._token = ""

    @classmethod
    def open(cls, name: str, url: str, *, create: bool, is_ours_alone: bool = False) -> "TuningStudy":
        """Open the study ``name`` at the database ``url``; ``create`` it where it is missing.

        ``is_ours_alone`` says that a lock keeps all others from running trials: one that seems to run was left behind.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with translated(url):
            check_file(url, create)
            storage = open_storage(url)
            known = [
                summary.study_name for summary in optuna.get_all_study_summaries(storage, include_best_trial=False)
            ]
            if name not in known and not create:
                raise StudyError(f"there is no study {name!r} in {url}; it holds: {', '.join(known) or 'none'}")
            study = optuna.create_study(storage=storage, study_name=name, direction="minimize", load_if_exists=True)
            opened = cls(name, storage, study, is_ours_alone)
            if name not in known:
                opened.remember(format=FORMAT)
            return opened

    @property
    def facts(self) -> StudyFacts:
        """What is known of the whole study, as it is stored now.

        Raises:
            StudyError: it cannot be read.
        """
        with translated(self.name):
            attributes = self._study.user_attrs
        return StudyFacts.from_attributes(self.name, attributes)

    def remember(self, **facts: Unpack[NewFacts]) -> None:
        """Store facts of the whole study; those that are not given stay as they are."""
        with translated(self.name):
            self._living()
            for key, value in to_attributes(facts).items():
                self._study.set_user_attr(key, value)

    @contextmanager
    def claimed(
        self, fingerprint: Mapping[str, str], home: Path | None = None, *, join: bool = False, take_over: bool = False
    ) -> Iterator[None]:
        """Hold the study for this process, or with ``join`` beside others, while its trials are run.

        Args:
            fingerprint: of what is searched now.
            home: folder that the modules' paths are relative to.
            join: whether another search may run the study, too.
            take_over: whether a holder on another host, which nobody here can see, is taken for dead.

        Raises:
            StudyError: another process holds the study, or it was made with something else.
        """
        me = Holder.here(fingerprint, has_folder=self._is_ours_alone)
        with translated(self.name):
            claims = Claims(self._storage.engine, self.name)
            claims.acquire(me, join=join, take_over=take_over)
        self._claims, self._token = claims, me.token
        try:
            made = self.facts.fingerprint or fingerprint
            if _name(made) == _name(fingerprint):
                self.check_modules(home)  # first: it names the file, the model's digest does not
            self.check_fingerprint(fingerprint)
            yield
        finally:
            self._claims = None
            with translated(self.name):
                claims.release(me.token)

    def _living(self) -> set[str]:
        """Return the tokens of those that hold the study, ours among them; none where it was not claimed.

        Raises:
            StudyError: another search has taken the study over.
        """
        if self._claims is None:
            return set()
        holders = self._claims.holders()
        tokens = {one.token for one in holders if not one.is_gone(self._is_ours_alone)}
        if self._token not in tokens:
            by = f" by {holders[0]}" if holders else ""
            raise StudyError(f"study {self.name!r} was taken over{by}; this search ends, what it found is stored")
        return tokens

    def check_fingerprint(self, fingerprint: Mapping[str, str]) -> None:
        """Compare a fingerprint with the stored one; a study that has none yet takes any.

        Raises:
            StudyError: they differ; the message has both.
        """
        refuse_difference(self.name, self.facts.fingerprint or fingerprint, fingerprint)

    def check_modules(self, home: Path | None) -> None:
        """Compare the modules that the target imported with what their files, relative to ``home``, hold now.

        Raises:
            StudyError: one has another content.
        """
        if changed := changed_file(self.facts.modules, home):
            state = "has another content now" if changed.is_file() else "is gone"
            raise StudyError(
                f"study {self.name!r} was made with module {changed}, which {state}; "
                "restore it, or name a new one with --study"
            )

    def add_modules(self, found: Mapping[str, str]) -> None:
        """Remember the modules that a worker imported, by path and digest.

        Raises:
            StudyError: one is known with another content.
        """
        stored = self.facts.modules
        if other := next((name for name in stored if found.get(name, stored[name]) != stored[name]), None):
            raise StudyError(
                f"study {self.name!r} was made with another content of module {other}; "
                "restore it, or name a new one with --study"
            )
        self.remember(modules={**stored, **found})

    def verified(self, found: Mapping[str, Verification]) -> None:
        """Store what was compared of trials' plans, by number; one that differs is complete no more."""
        self.remember(verifications={**self.facts.verifications, **found})
        self._ended.clear()

    def banned_regions(self) -> dict[str, str]:
        """Return what differs in each region that was found to differ from its kernels, by the region's key."""
        own = [record.outcome.verification for record in self.records() if record.outcome]
        regions = [region for found in own if found for region in found.differing_regions]
        return {region.key: region.difference for region in regions if region.key}

    def records(self) -> list[TrialRecord]:
        """Return all trials that were proposed, by number."""
        with translated(self.name):
            trials = self._study.get_trials(deepcopy=False)
            attributes = self._study.user_attrs
        own = [t for t in trials if t.state is not TrialState.WAITING and PREFIX + "proposal" in t.user_attrs]
        for trial in amended([t for t in own if t.number not in self._ended and t.state.is_finished()], attributes):
            self._ended[trial.number] = record_of(trial)
        return [self._ended.get(trial.number) or record_of(trial) for trial in own]

    def queue(self, points: Sequence[StartingPoint]) -> None:
        """Put starting points before everything that a sampler will propose; those that are queued stay."""
        with translated(self.name):
            for point in points:
                origin = {ORIGIN: point.name}
                self._study.enqueue_trial(dict(point.values), user_attrs=origin, skip_if_exists=True)

    def finished(self) -> int:
        """Return how many trials have their outcome."""
        with translated(self.name):
            return sum(trial.state.is_finished() for trial in self._study.get_trials(deepcopy=False))

    def ask(self, space: SearchSpace, strategy: Strategy, seed: int) -> Proposal:
        """Take up a trial that was left behind, or the next queued one, or have a new one proposed."""
        records = self.records()
        answers = {record.plan: record.outcome for record in records if record.outcome}
        seen = {record.plan for record in records}
        with translated(self.name):
            living = self._living()
            self._study.sampler = self._sampler(space, strategy, seed, seen)
            if self._left_behind is None:
                self._left_behind = self._orphans(living)
            trial = self._left_behind.pop() if self._left_behind else self._study.ask()
            for name, choices in space.choices.items():
                trial.suggest_categorical(name, choices)
            # The trial's own attributes are a copy, made before the sampler set any.
            attributes = self._study.get_trials(deepcopy=False)[trial.number].user_attrs
            is_probe = PROBE in attributes
            plan = Plan.from_dict(attributes[PROBE]) if is_probe else space.plan(trial.params)
            origin = "probe" if is_probe else attributes.get(ORIGIN, strategy.name)
            attempts = attributes.get(PREFIX + "proposal", {}).get("attempts", 0) + 1
            here = {"host": socket.gethostname(), "pid": os.getpid(), "claim": self._token}
            proposal = {"plan": plan.to_dict(), "origin": origin, **here, "attempts": attempts}
            trial.set_user_attr(PREFIX + "proposal", proposal)  # one commit
        known = answers.get(plan)
        if stored := attributes.get(OUTCOME):
            known = Outcome.from_dict(stored)  # it ended between storing and telling
        elif attempts > MOST_ATTEMPTS:
            known = Outcome(Reason.CRASHED, f"ended the search itself {MOST_ATTEMPTS} times")
        return Proposal(trial, plan, origin, known, is_probe)

    def tell(self, proposal: Proposal, outcome: Outcome, latency_ms: float | None) -> None:
        """Store the outcome of a proposal.

        A pruned trial teaches the sampler: a slower plan is told with its latency, an infeasible one with a
        violated constraint, so that no sampler counts it among the good ones.

        Args:
            proposal: what ``ask`` returned.
            outcome: what became of it.
            latency_ms: the value to minimise; None where there is none.
        """
        with translated(self.name):
            trial = proposal.trial
            trial.set_user_attr(OUTCOME, outcome.to_dict())
            trial.set_constraint("feasible", 0.0 if outcome.is_feasible else 1.0)
            if outcome.is_complete and not proposal.is_probe:
                self._study.tell(trial, latency_ms)
                return
            if latency_ms is not None and not proposal.is_probe:  # a probe's is that of no point of the space
                trial.report(latency_ms, step=0)
            self._study.tell(trial, state=TrialState.PRUNED)

    def postpone(self, proposal: Proposal) -> None:
        """Leave a proposal to be taken up by a later search, as if it had not been asked for."""
        with translated(self.name):
            stored = proposal.trial.user_attrs[PREFIX + "proposal"]
            proposal.trial.set_user_attr(PREFIX + "proposal", {**stored, "attempts": stored["attempts"] - 1})

    def best_first(self, space: SearchSpace) -> list[TrialRecord]:
        """Return the complete trials, those first that are expected to save the most: one figure alone may be luck."""
        learned = Learned(space)
        learned.read(self.trials())
        expected = learned.expected_savings()
        return sorted(incumbent_first(self.records()), key=lambda record: -expected.get(record.plan, -math.inf))

    def trials(self) -> list[FrozenTrial]:
        """Return all trials as Optuna stores them."""
        with translated(self.name):
            return amended(self._study.get_trials(deepcopy=False), self._study.user_attrs)

    def space(self) -> SearchSpace:
        """Return the space that the study's trials come from.

        Raises:
            StudyError: it has no trial yet.
        """
        facts = self.facts
        trials = [trial for trial in self.trials() if trial.state is not TrialState.WAITING and trial.params]
        if not trials or facts.layout is None:
            raise StudyError(f"study {self.name!r} has no trial yet; run `sktune search` first")
        found = max(trials, key=lambda trial: len(trial.distributions)).distributions
        choices: dict[str, tuple[Option, ...]] = {
            name: tuple(value for value in own.choices if isinstance(value, bool | int | str))
            for name, own in found.items()
            if isinstance(own, CategoricalDistribution)
        }
        per_layer = any(name.startswith("layers.") for name in choices)
        return SearchSpace(facts.layout, choices, backend_info(facts.fingerprint["backend"]).options.rules, per_layer)

    def _sampler(self, space: SearchSpace, strategy: Strategy, seed: int, seen: Collection[Plan]) -> BaseSampler:
        """Return the sampler of the next proposal."""
        if not strategy.persistent:
            return DistinctSampler(space, strategy.factory, seed, lambda: seen)
        if (strategy, seed) not in self._kept:
            self._kept[strategy, seed] = strategy.factory(space, seed)
        return self._kept[strategy, seed]

    def _orphans(self, living: Collection[str]) -> list[Trial]:
        """Return trials whose process has died, under their own numbers, the first one last."""
        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        dead = [trial for trial in running if self._is_orphan(trial.user_attrs.get(PREFIX + "proposal", {}), living)]
        return [
            Trial(self._study, trial._trial_id)  # noqa: SLF001 - no public way back to a running trial
            for trial in reversed(dead)
        ]

    def _is_orphan(self, proposal: Mapping[str, Any], living: Collection[str]) -> bool:
        if living and proposal.get("claim"):
            return proposal["claim"] not in living
        return self._is_ours_alone or not _may_live(proposal)


def _name(fingerprint: Mapping[str, str]) -> str:
    """Return the model's name without its digest."""
    return fingerprint.get("model", "").rpartition(" ")[0]


def _may_live(proposal: Mapping[str, Any]) -> bool:
    """Whether the process that took up a proposal may still be at it: on another host nobody can tell."""
    if proposal.get("host", socket.gethostname()) != socket.gethostname():
        return True
    pid = proposal.get("pid", os.getpid())
    return bool(pid != os.getpid() and Path(f"/proc/{pid}").exists())


def study_names(url: str) -> list[str]:
    """Return the names of all studies in the database at ``url``."""
    with translated(url):
        return optuna.get_all_study_names(open_storage(url))


def sqlite_url(folder: Path) -> str:
    """Return the URL of the database in a study's folder."""
    return f"sqlite:///{folder / DATABASE}"
