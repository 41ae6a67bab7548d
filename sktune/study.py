"""Studies: every trial ever made for one target, backend, device and space, in an Optuna study.

Optuna's storage is the only record: a study is rebuilt from it alone. Every parameter is suggested before
anything is compiled, an outcome is stored before the next trial starts, and a trial that was running when its
process died is taken up again under its own number.
"""

import fcntl
import hashlib
import math
import os
import re
import socket
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import optuna
import sqlalchemy
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import OptunaError
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from sktune.backends.options import option_rules
from sktune.errors import StudyError, first_line, nearest
from sktune.layout import Layout
from sktune.learned import ORIGIN, OUTCOME, PREFIX, PROBE, Learned
from sktune.outcome import Outcome, Reason
from sktune.plan import Option, Plan
from sktune.samplers import SamplerFactory
from sktune.samplers.distinct import DistinctSampler
from sktune.samplers.partition import Outlook, PartitionSampler
from sktune.space import SearchSpace, StartingPoint

DATABASE = "study.db"
LOCK_WAIT_S = 10.0
MOST_ATTEMPTS = 3
"""A trial that has ended this many processes is not tried again."""

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")
OTHER_FOLDERS = frozenset({"README.md", "cache", "comparisons", "jobs", "profiles"})
"""What else lies beside the studies' folders."""


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial, as the study knows it.

    Attributes:
        number: from 0, in the order of proposal.
        plan: what was proposed.
        origin: name of the starting point, or of the sampler.
        outcome: None while it runs.
        values: the parameters.
        is_probe: whether it ran another plan than its parameters', to learn from it; it is never the incumbent.
    """

    number: int
    plan: Plan
    origin: str
    outcome: Outcome | None
    values: Mapping[str, Option]
    is_probe: bool = False

    @property
    def judged_plan(self) -> Plan:
        """The plan with what was added to rescue it."""
        plan = self.plan
        for name, value in (self.outcome.added if self.outcome else {}).items():
            plan = plan.with_option(name, value)
        return plan


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

    One process at a time asks and tells; any number may read.

    Raises:
        StudyError: the storage cannot be opened, is locked or corrupt, or belongs to something else.
    """

    def __init__(self, name: str, storage: BaseStorage, study: optuna.Study, is_ours_alone: bool) -> None:
        self.name, self._is_ours_alone = name, is_ours_alone
        self._storage, self._study = storage, study
        self._left_behind: list[Trial] | None = None
        self._foresight: PartitionSampler | None = None
        self._ended: dict[int, TrialRecord] = {}
        self._kept: dict[tuple[SamplerFactory, int], BaseSampler] = {}

    @classmethod
    def open(cls, name: str, url: str, *, create: bool, is_ours_alone: bool = False) -> "TuningStudy":
        """Open the study ``name`` at the database ``url``; ``create`` it where it is missing.

        ``is_ours_alone`` says that a lock keeps all others from running trials: one that seems to run was left behind.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with translated(url):
            _check_file(url, create)
            storage = _storage(url)
            known = [
                summary.study_name for summary in optuna.get_all_study_summaries(storage, include_best_trial=False)
            ]
            if name not in known and not create:
                raise StudyError(f"there is no study {name!r} in {url}; it holds: {', '.join(known) or 'none'}")
            study = optuna.create_study(storage=storage, study_name=name, direction="minimize", load_if_exists=True)
            return cls(name, storage, study, is_ours_alone)

    @property
    def facts(self) -> dict[str, Any]:
        """What is known of the whole study: fingerprint, layout, baseline, final comparison."""
        attributes = self._study.user_attrs
        return {key.removeprefix(PREFIX): value for key, value in attributes.items() if key.startswith(PREFIX)}

    def remember(self, **facts: Any) -> None:
        """Store facts of the whole study; plain values only."""
        with translated(self.name):
            for key, value in facts.items():
                self._study.set_user_attr(PREFIX + key, value)

    def check_fingerprint(self, fingerprint: Mapping[str, str]) -> None:
        """Compare a fingerprint with the stored one; a study that has none yet takes any.

        Raises:
            StudyError: they differ; the message has both.
        """
        stored = self.facts.get("fingerprint") or fingerprint
        for key in sorted({*stored, *fingerprint}, key=lambda key: (key == "model", key)):  # its digest holds others
            if stored.get(key) != fingerprint.get(key):
                values = (told.get(key, "None") for told in (stored, fingerprint))
                was, now = ("the default" if value == "None" else repr(value) for value in values)
                raise StudyError(
                    f"study {self.name!r} was made with {key} {was}, but now it is {now}; "
                    "continue it as it was made, or name a new one with --study"
                )

    def records(self) -> list[TrialRecord]:
        """Return all trials that were proposed, by number."""
        with translated(self.name):
            trials = self._study.get_trials(deepcopy=False)
        own = [t for t in trials if t.state is not TrialState.WAITING and PREFIX + "proposal" in t.user_attrs]
        for trial in own:
            if trial.number not in self._ended and trial.state.is_finished():
                self._ended[trial.number] = _record(trial)
        return [self._ended.get(trial.number) or _record(trial) for trial in own]

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

    def ask(self, space: SearchSpace, sampler: SamplerFactory, sampler_name: str, seed: int) -> Proposal:
        """Take up a trial that was left behind, or the next queued one, or have a new one proposed."""
        records = self.records()
        answers = {record.plan: record.outcome for record in records if record.outcome}
        seen = {record.plan for record in records}
        with translated(self.name):
            self._study.sampler = self._sampler(space, sampler, seed, seen)
            if self._left_behind is None:
                self._left_behind = self._orphans()
            trial = self._left_behind.pop() if self._left_behind else self._study.ask()
            for name, choices in space.choices.items():
                trial.suggest_categorical(name, choices)
            # The trial's own attributes are a copy, made before the sampler set any.
            attributes = self._study.get_trials(deepcopy=False)[trial.number].user_attrs
            is_probe = PROBE in attributes
            plan = Plan.from_dict(attributes[PROBE]) if is_probe else space.plan(trial.params)
            origin = "probe" if is_probe else attributes.get(ORIGIN, sampler_name)
            attempts = attributes.get(PREFIX + "proposal", {}).get("attempts", 0) + 1
            here = {"host": socket.gethostname(), "pid": os.getpid()}
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

    def outlook(self, space: SearchSpace, seed: int) -> Outlook:
        """Return what is still to be expected of a search."""
        self._foresight = self._foresight or PartitionSampler(space, seed)
        return self._foresight.outlook(self.trials())

    def best_first(self, space: SearchSpace) -> list[TrialRecord]:
        """Return the complete trials, those first that are expected to save the most: one figure alone may be luck."""
        learned = Learned(space)
        learned.read(self.trials())
        expected = learned.expected_savings()
        return sorted(incumbent_first(self.records()), key=lambda record: -expected.get(record.plan, -math.inf))

    def trials(self) -> list[FrozenTrial]:
        """Return all trials as Optuna stores them."""
        with translated(self.name):
            return self._study.get_trials(deepcopy=False)

    def space(self) -> SearchSpace:
        """Return the space that the study's trials come from.

        Raises:
            StudyError: it has no trial yet.
        """
        facts = self.facts
        trials = [trial for trial in self.trials() if trial.state is not TrialState.WAITING and trial.params]
        if not trials or "layout" not in facts:
            raise StudyError(f"study {self.name!r} has no trial yet; run `sktune search` first")
        found = max(trials, key=lambda trial: len(trial.distributions)).distributions
        choices: dict[str, tuple[Option, ...]] = {
            name: tuple(value for value in own.choices if isinstance(value, bool | int | str))
            for name, own in found.items()
            if isinstance(own, CategoricalDistribution)
        }
        untied = any(name.startswith("layers.") for name in choices)
        return SearchSpace(
            Layout.from_dict(facts["layout"]), choices, option_rules(facts["fingerprint"]["backend"]), untied
        )

    def _sampler(self, space: SearchSpace, factory: SamplerFactory, seed: int, seen: Collection[Plan]) -> BaseSampler:
        """Return the sampler of the next proposal: the one that goes on learning, where ``factory`` makes such ones."""
        if not getattr(factory, "spans_trials", False):
            return DistinctSampler(space, factory, seed, lambda: seen)
        if (factory, seed) not in self._kept:
            self._kept[factory, seed] = factory(space, seed)
        return self._kept[factory, seed]

    def _orphans(self) -> list[Trial]:
        """Return trials whose process has died, under their own numbers, the first one last."""
        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        dead = [
            trial
            for trial in running
            if self._is_ours_alone or not _may_live(trial.user_attrs.get(PREFIX + "proposal", {}))
        ]
        return [
            Trial(self._study, trial._trial_id)  # noqa: SLF001 - no public way back to a running trial
            for trial in reversed(dead)
        ]


def _may_live(proposal: Mapping[str, Any]) -> bool:
    """Whether the process that took up a proposal may still be at it: on another host nobody can tell."""
    if proposal.get("host", socket.gethostname()) != socket.gethostname():
        return True
    pid = proposal.get("pid", os.getpid())
    return bool(pid != os.getpid() and Path(f"/proc/{pid}").exists())


def _record(trial: FrozenTrial) -> TrialRecord:
    attributes = trial.user_attrs
    proposal, stored = attributes[PREFIX + "proposal"], attributes.get(OUTCOME)
    return TrialRecord(
        trial.number,
        Plan.from_dict(proposal["plan"]),
        proposal["origin"],
        Outcome.from_dict(stored) if stored else None,
        trial.params,
        PROBE in attributes,
    )


def incumbent_first(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the complete trials, fastest first."""
    complete = [r for r in records if r.outcome and r.outcome.is_complete and not r.is_probe]
    distinct = {record.plan: record for record in reversed(complete)}

    def ratio(record: TrialRecord) -> float:
        assert record.outcome is not None
        return record.outcome.speedup.ratio if record.outcome.speedup else 0.0

    return sorted(distinct.values(), key=ratio, reverse=True)


def without_twins(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return ``records`` with one, the simplest, of those that become the same kernels and share one measurement."""
    found: dict[int, TrialRecord] = {}
    for record in records:
        assert record.outcome is not None
        measured = record.number if record.outcome.same_as is None else record.outcome.same_as
        known = found.get(measured, record)
        found[measured] = min(known, record, key=lambda one: one.plan.complexity)
    return list(found.values())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the study's folder for this process alone.

    Raises:
        StudyError: another live process holds it, or the folder cannot be written.
    """
    handle: TextIO | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / "lock").open("a+", encoding="utf-8")
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as failure:
        assert handle is not None
        handle.seek(0)
        holder = handle.read().strip() or "?"
        handle.close()
        raise StudyError(
            f"the study in {folder} is being run by process {holder}; wait for it, or name another with --study"
        ) from failure
    except OSError as failure:
        raise StudyError(
            f"{folder} cannot be written ({failure.strerror}); choose another folder with --runs"
        ) from failure
    try:
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield
    finally:
        handle.close()


def study_names(url: str) -> list[str]:
    """Return the names of all studies in the database at ``url``."""
    with translated(url):
        return optuna.get_all_study_names(_storage(url))


def is_held(lock: Path) -> bool:
    """Whether a living process holds the lock file ``lock``."""
    try:
        with lock.open(encoding="utf-8") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn the storage's errors into one line."""
    try:
        yield
    except (SQLAlchemyError, OptunaError, sqlite3.Error) as failure:
        reason = first_line(failure.__cause__ or failure)
        raise StudyError(
            f"{what}: the study's storage fails ({reason}); nothing stored is lost, mend it and run again"
        ) from failure


def _storage(url: str) -> RDBStorage:
    try:
        if not url.startswith("sqlite"):
            return RDBStorage(url)
        storage = RDBStorage(url, engine_kwargs={"connect_args": {"timeout": LOCK_WAIT_S}})
    except (ValueError, ImportError, sqlalchemy.exc.ArgumentError) as failure:
        raise StudyError(f"--storage {url}: {first_line(failure)}; give a URL such as sqlite:///study.db") from failure
    # Readers do not wait for the writer, and a commit does not wait for the disk: a killed process loses nothing,
    # a power cut loses at most the last trial.
    with storage.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")

    @sqlalchemy.event.listens_for(storage.engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA synchronous=NORMAL")

    storage.engine.dispose()
    return storage


def sqlite_url(folder: Path) -> str:
    """Return the URL of the database in a study's folder."""
    return f"sqlite:///{folder / DATABASE}"


def _check_file(url: str, create: bool) -> None:
    """Refuse a database file that is locked, corrupt, or somebody else's, before Optuna writes to it."""
    if not url.startswith("sqlite:///"):
        return
    path = Path(url.removeprefix("sqlite:///"))
    if not path.exists():
        if not create:
            others = [own.parent.name for own in path.parent.parent.glob(f"*/{DATABASE}")]
            near = nearest(path.parent.name, others)
            raise StudyError(f"there is no study at {path}; start one with `sktune search`{near}")
        return
    if path.stat().st_size == 0:
        return
    try:
        connection = sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=LOCK_WAIT_S, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
            damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            connection.execute("ROLLBACK")
        finally:
            connection.close()
    except sqlite3.OperationalError as failure:
        raise StudyError(
            f"{path} is locked or cannot be opened ({failure}); close the program that holds it"
        ) from failure
    except sqlite3.DatabaseError as failure:
        raise StudyError(
            f"{path} is not a readable database ({failure}); restore it, or name another --study"
        ) from failure
    if damage != "ok":
        raise StudyError(f"{path} is damaged ({damage.partition(chr(10))[0]}); restore it, or name another --study")
    if tables and "studies" not in tables:
        raise StudyError(f"{path} is a database of another program; name another --storage")
