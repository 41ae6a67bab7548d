"""Studies: every trial ever made for one target, backend, device and space, in an Optuna study.

Optuna's storage is the only record: a study is rebuilt from it alone. Every parameter is suggested before
anything is compiled, an outcome is stored before the next trial starts, and a trial that was running when its
process died is run again under the same number.
"""

import hashlib
import math
import os
import re
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from sktune.core.codec import decoded, encoded
from sktune.core.contents import changed_file
from sktune.core.errors import StudyError
from sktune.core.outcome import Outcome, Reason
from sktune.core.plan import Plan
from sktune.core.space import SearchSpace, StartingPoint
from sktune.core.verification import Verification
from sktune.learning.attributes import ORIGIN, OUTCOME, PREFIX, PROBE, REPEAT, VERIFICATIONS, amended
from sktune.learning.threads import one_blas_thread
from sktune.study.backup import Backup
from sktune.study.claims import Claims, Holder, refuse_difference
from sktune.study.distinct import DistinctSampler
from sktune.study.facts import StudyFacts
from sktune.study.heartbeat import beating, stand_by
from sktune.study.leases import Leases
from sktune.study.records import PROPOSAL, StoredProposal, TrialRecord, banned_regions, incumbent_first, record_of
from sktune.study.resume import left_behind
from sktune.study.storage import DATABASE, check_file, fenced, open_storage, shown, translated
from sktune.study.stored_space import space_of
from sktune.study.strategy import Strategy

MAX_ATTEMPTS = 3
"""A trial that has killed this many processes is not tried again."""

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")
OTHER_FOLDERS = frozenset({"README.md", "cache", "comparisons", "jobs", "profiles"})
"""Other files and folders beside the studies' folders."""


@dataclass(frozen=True)
class Proposal:
    """A trial to run now; ``known`` is its outcome if the study already has one, unless it ``is_repeat``."""

    trial: Trial
    plan: Plan
    origin: str
    known: Outcome | None
    is_probe: bool = False
    is_repeat: bool = False

    @property
    def number(self) -> int:
        """The trial's number."""
        number: int = self.trial.number
        return number


def folder_name(study_name: str) -> str:
    """Return a folder name for any study name: the name itself if it is safe, otherwise with a digest."""
    if _SAFE_NAME.fullmatch(study_name) and study_name not in OTHER_FOLDERS:
        return study_name
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", study_name).strip("-.")[:60] or "study"
    digest = hashlib.sha256(study_name.encode(errors="backslashreplace")).hexdigest()
    return f"{safe}-{digest[:8]}"


class TuningStudy:
    """An Optuna study with sktune's trials and facts.

    Only one process may ask and tell, or several that have joined, which ``claimed`` ensures; any number may read.
    ``storage`` is where it is stored.

    Raises:
        StudyError: the storage cannot be opened, is locked or corrupt, or belongs to something else.
    """

    def __init__(self, name: str, storage: RDBStorage, study: optuna.Study, backup: Backup | None) -> None:
        self.name, self._backup, self._is_ours_alone = name, backup, backup is not None
        self.storage, self._study = storage, study
        self._left_behind: list[Trial] | None = None
        self._ended: dict[int, TrialRecord] = {}
        self._running: dict[int, tuple[FrozenTrial, TrialRecord]] = {}
        self._samplers: dict[tuple[Strategy, int], BaseSampler] = {}
        self._claims: Claims | None = None
        self._token = ""
        self._blameless: set[int] = set()  # ran beside others when their search died

    @classmethod
    def open(cls, name: str, url: str, *, create: bool, backup: Backup | None = None) -> "TuningStudy":
        """Open the study ``name`` in the database ``url``; ``create`` it if it is missing.

        ``backup`` is that of a database that a lock keeps other processes from writing, so that any trial that seems to
        be running was left behind.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with translated(shown(url), url):
            if backup:
                backup.restore_if_damaged()
            check_file(url, create)
            storage = open_storage(url)
            known = optuna.get_all_study_names(storage)
            if name not in known and not create:
                holds = ", ".join(known) or "none"
                raise StudyError(f"there is no study {name!r} in {shown(url)}; it holds: {holds}")
            study = optuna.create_study(storage=storage, study_name=name, direction="minimize", load_if_exists=True)
            _refuse_foreign(study)
            opened = cls(name, storage, study, backup)
            opened._save_backup()
            return opened

    @classmethod
    def of_storage(cls, name: str, storage: RDBStorage) -> "TuningStudy":
        """Return the study ``name`` of an open storage, to read it.

        Raises:
            StudyError: there is no such study, or sktune did not make it.
        """
        known = [study.study_name for study in storage.get_all_studies()]
        if name not in known:
            raise StudyError(f"there is no study {name!r}; the storage holds: {', '.join(known) or 'none'}")
        study = optuna.load_study(study_name=name, storage=storage)
        _refuse_foreign(study)
        return cls(name, storage, study, None)

    @property
    def optuna_study(self) -> optuna.Study:
        """The Optuna study itself, for programs that show it."""
        return self._study

    @property
    def facts(self) -> StudyFacts:
        """The stored facts about the study as a whole.

        Raises:
            StudyError: they cannot be read.
        """
        with translated(self.name):
            attributes = self._study.user_attrs
        return StudyFacts.from_attributes(self.name, attributes)

    def remember(self, **facts: Any) -> None:
        """Store facts about the study as a whole, fields of ``StudyFacts``; the other facts are not changed."""
        with translated(self.name):
            for key, value in StudyFacts.to_attributes(**facts).items():
                self._study.set_user_attr(key, value)

    @contextmanager
    def claimed(
        self, fingerprint: Mapping[str, str], home: Path | None = None, *, join: bool = False, take_over: bool = False
    ) -> Iterator[Leases]:
        """Hold the study for this process, or with ``join`` beside others, while its trials run.

        The leases of searches that have died are revoked: their trials are proposed again.

        Args:
            fingerprint: of this search.
            home: folder that the paths of modules are relative to.
            join: whether other searches may run the study, too.
            take_over: whether a holder on another host, whose state cannot be seen, is assumed dead.

        Raises:
            StudyHeldError: another process holds the study.
            StudyError: its fingerprint differs; or, in any later call, another process has taken over the study.
        """
        me = Holder.here(fingerprint, has_folder=self._is_ours_alone)
        with translated(self.name):
            claims = Claims(self.storage.engine, self.name)
            claims.acquire(me, join=join, take_over=take_over)
            check = partial(claims.check, me.token)
            leases = Leases(self.storage.engine, self.name, me.token, check)
        self._claims, self._token = claims, me.token
        with ExitStack() as stack:
            stack.callback(self._release, claims)
            if not self._is_ours_alone:  # there, the lock of the folder is enough
                stack.enter_context(fenced(self.storage, check))
                stack.enter_context(beating(claims, me.token))
            stored = self.facts.fingerprint or fingerprint
            if _model_name(stored) == _model_name(fingerprint):
                self.check_modules(home)  # first: it names the file, the model's digest does not
            self.check_fingerprint(fingerprint)
            revoked = leases.revoke(claims.living(me.token, self._is_ours_alone))
            self._blameless = {lease.trial for lease in revoked} if len(revoked) > 1 else set()
            yield leases

    def _release(self, claims: Claims) -> None:
        self._claims = None
        with translated(self.name):
            claims.release(self._token)
            self._save_backup()

    def stand_by(self, on_wait: Callable[[str], None]) -> None:
        """Wait until no search runs the study; see ``sktune.study.heartbeat``."""
        with translated(self.name):
            claims = Claims(self.storage.engine, self.name)
        stand_by(claims, self._is_ours_alone, on_wait)

    def check_fingerprint(self, fingerprint: Mapping[str, str]) -> None:
        """Compare a fingerprint with the stored one; a study without one accepts any.

        Raises:
            StudyError: they differ; the message has both.
        """
        refuse_difference(self.name, self.facts.fingerprint or fingerprint, fingerprint)

    def check_modules(self, home: Path | None) -> None:
        """Compare the modules that the target imported with the current content of their files, relative to ``home``.

        Raises:
            StudyError: one of them has changed.
        """
        if changed := changed_file(self.facts.modules, home):
            state = "has changed since" if changed.is_file() else "is gone"
            raise StudyError(
                f"study {self.name!r} was made with module {changed}, which {state}; "
                "restore it, or name a new one with --study"
            )

    def check_versions(self, versions: Mapping[str, str]) -> None:
        """Compare the versions in a recipe's program with those that the study was made with.

        Raises:
            StudyError: one of them differs.
        """
        stored = self.facts.versions
        if differing := next((name for name in stored if versions.get(name) != stored[name]), None):
            raise StudyError(
                f"study {self.name!r} was made with {differing} {stored[differing]} in the program, which is "
                f"{versions.get(differing, 'not installed')} now; install that again, or name a new study with --study"
            )

    def add_modules(self, modules: Mapping[str, str]) -> None:
        """Store the digests of the modules that a worker imported, by path.

        Raises:
            StudyError: one of them differs from its stored digest.
        """
        stored = self.facts.modules
        if changed := next((name for name in stored if modules.get(name, stored[name]) != stored[name]), None):
            raise StudyError(
                f"study {self.name!r} was made with module {changed}, which has changed since; "
                "restore it, or name a new one with --study"
            )
        self.remember(modules={**stored, **modules})

    def verified(self, verifications: Mapping[str, Verification]) -> None:
        """Store verifications of trials' plans, by number; a trial whose plan differs is no longer complete."""
        self.remember(verifications={**self.facts.verifications, **verifications})
        self._ended.clear()

    def banned_regions(self) -> dict[str, str]:
        """Return the difference of each region that differs from its kernels, by the region's key."""
        return banned_regions(self.records())

    def records(self) -> list[TrialRecord]:
        """Return all trials that were proposed, by number.

        Raises:
            StudyError: a stored value is damaged; the message says which.
        """
        with translated(self.name):
            trials, attributes = self._study.get_trials(deepcopy=False), self._study.user_attrs
        proposed = [trial for trial in trials if trial.state is not TrialState.WAITING and PROPOSAL in trial.user_attrs]
        if new := [trial for trial in proposed if trial.state.is_finished() and trial.number not in self._ended]:
            verifications = StudyFacts.stored(self.name, VERIFICATIONS, attributes)
            self._ended |= {trial.number: record_of(self.name, trial, verifications) for trial in new}
        running = {trial.number: trial for trial in proposed if trial.number not in self._ended}
        self._running = {
            number: known if (known := self._running.get(number)) and known[0] is trial  # not read again since
            else (trial, record_of(self.name, trial))
            for number, trial in running.items()
        }  # fmt: skip
        return [self._ended.get(trial.number) or self._running[trial.number][1] for trial in proposed]

    def queue(self, points: Sequence[StartingPoint]) -> None:
        """Queue starting points, to be tried before any proposals of a sampler; skip those already queued."""
        with translated(self.name):
            for point in points:
                self._study.enqueue_trial(dict(point.values), {ORIGIN: point.name}, skip_if_exists=True)

    def finished(self) -> int:
        """Return the number of finished trials."""
        with translated(self.name):
            return sum(trial.state.is_finished() for trial in self._study.get_trials(deepcopy=False))

    def ask(self, space: SearchSpace, strategy: Strategy, seed: int) -> Proposal:
        """Return a trial that was left behind, or else the next queued one, or else a new one."""
        records = self.records()
        answers = {record.plan: record.outcome for record in records if record.outcome}
        seen = {record.plan for record in records}
        with translated(self.name):
            living = self._claims.living(self._token, self._is_ours_alone) if self._claims else set()
            self._study.sampler = self._sampler(space, strategy, seed, seen)
            if self._left_behind is None:
                self._left_behind = left_behind(self._study, living, self._token, self._is_ours_alone)
            trial = self._left_behind.pop() if self._left_behind else self._study.ask()
            for name, choices in space.choices.items():
                trial.suggest_categorical(name, choices)
            # The attributes of ``trial`` are a copy, made before the sampler set any.
            attributes = self._study.get_trials(deepcopy=False)[trial.number].user_attrs
            is_probe = PROBE in attributes
            plan = decoded(Plan, attributes[PROBE]) if is_probe else space.plan(trial.params)
            is_repeat = REPEAT in attributes
            origin = "probe" if is_probe else "repeat" if is_repeat else attributes.get(ORIGIN, strategy.name)
            attempts = attributes.get(PROPOSAL, {}).get("attempts", 0) + (trial.number not in self._blameless)
            proposal = StoredProposal(plan, origin, socket.gethostname(), os.getpid(), self._token, attempts)
            trial.set_user_attr(PROPOSAL, encoded(proposal))  # one commit
        known = None if is_repeat else answers.get(plan)
        if stored := attributes.get(OUTCOME):
            known = decoded(Outcome, stored)  # its process died between storing and telling
        elif attempts > MAX_ATTEMPTS:
            known = Outcome(Reason.CRASHED, f"killed the search process {MAX_ATTEMPTS} times")
        return Proposal(trial, plan, origin, known, is_probe, is_repeat)

    def tell(self, proposal: Proposal, outcome: Outcome, latency_ms: float | None, name: str = "") -> None:
        """Store the outcome of a proposal.

        Samplers learn from pruned trials, too: a slower plan is stored with its latency, an infeasible one with a
        violated constraint, so that no sampler counts it among the good ones.

        Args:
            proposal: as returned by ``ask``.
            outcome: of its plan.
            latency_ms: the value to minimise, if any.
            name: of the plan, for people who look at the study with other programs.
        """
        with translated(self.name):
            trial = proposal.trial
            trial.set_user_attr(OUTCOME, encoded(outcome))
            if name:
                trial.set_user_attr("plan", name)
            trial.set_constraint("feasible", 0.0 if outcome.is_feasible else 1.0)
            if outcome.is_complete and not proposal.is_probe:
                self._study.tell(trial, latency_ms)
            else:
                if latency_ms is not None and not proposal.is_probe:  # a probe's latency is not that of its parameters
                    trial.report(latency_ms, step=0)
                self._study.tell(trial, state=TrialState.PRUNED)
            self._save_backup(only_if_due=True)

    def _save_backup(self, *, only_if_due: bool = False) -> None:
        if self._backup and (self._backup.is_due or not only_if_due):
            self._backup.save()

    def postpone(self, proposal: Proposal) -> None:
        """Leave a proposal to a later search, as if it had not been asked for."""
        with translated(self.name):
            stored = proposal.trial.user_attrs[PROPOSAL]
            proposal.trial.set_user_attr(PROPOSAL, {**stored, "attempts": stored["attempts"] - 1})

    @one_blas_thread()
    def best_first(self, space: SearchSpace) -> list[TrialRecord]:
        """Return the complete trials by decreasing expected saving, as a single measurement may be luck."""
        from sktune.learning.history import Learned

        learned = Learned(space)
        learned.read_once(self.trials())
        expected = learned.expected_savings()
        return sorted(incumbent_first(self.records()), key=lambda record: -expected.get(record.plan, -math.inf))

    def trials(self) -> list[FrozenTrial]:
        """Return all trials as Optuna stores them, once the values of sktune in them are known to be sound."""
        self.records()
        with translated(self.name):
            return amended(self._study.get_trials(deepcopy=False), self._study.user_attrs)

    def space(self) -> SearchSpace:
        """Return the space of the study's trials.

        Raises:
            StudyError: there is no trial yet.
        """
        if (space := space_of(self.facts, self.trials())) is None:
            raise StudyError(f"study {self.name!r} has no trial yet; run `sktune search` first")
        return space

    def sampler_in_use(self, strategy: Strategy, seed: int) -> BaseSampler | None:
        """Return the persistent sampler that has proposed trials in this process; None if there is none."""
        return self._samplers.get((strategy, seed))

    def _sampler(self, space: SearchSpace, strategy: Strategy, seed: int, seen: Collection[Plan]) -> BaseSampler:
        """Return the sampler of the next proposal."""
        if not strategy.persistent:
            return DistinctSampler(space, strategy.factory, seed, lambda: seen)
        if (strategy, seed) not in self._samplers:
            self._samplers[strategy, seed] = strategy.factory(space, seed)
        return self._samplers[strategy, seed]


def _refuse_foreign(study: optuna.Study) -> None:
    """Raise ``StudyError`` for a study that another program made."""
    if not any(key.startswith(PREFIX) for key in study.user_attrs):
        raise StudyError(
            f"study {study.study_name!r} in this storage was not made by sktune, and stays as it is; "
            "name another with --study"
        )


def _model_name(fingerprint: Mapping[str, str]) -> str:
    """Return the model's name without its digest."""
    return fingerprint.get("model", "").rpartition(" ")[0]


def study_names(url: str) -> list[str]:
    """Return the names of all studies in the database at ``url``."""
    with translated(shown(url), url):
        return optuna.get_all_study_names(open_storage(url))


def sqlite_url(folder: Path) -> str:
    """Return the URL of the database in a study's folder, see ``storage.sqlite_path``.

    It quotes what has a meaning in URLs or in the templates that Optuna takes them for, and what is no text.
    """
    special = r"[%?#{}\x00-\x1f\x7f\ud800-\udfff]+"
    return "sqlite:///" + re.sub(special, lambda found: quote(os.fsencode(found[0])), str(folder / DATABASE))
