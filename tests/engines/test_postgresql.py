"""Coordinators on a real PostgreSQL server: one takes over from another without a lost or doubled trial."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from benchmarks.fault_campaign import Campaign, problems
from sktune.core.errors import StorageError, StudyError
from sktune.study.claims import Claims
from sktune.study.leases import Leases
from sktune.study.result import stored_result
from sktune.study.storage import open_storage, translated
from sktune.study.study import TuningStudy
from tests.engines.sleeping_command import HOST
from tests.fake_runner import SPACE
from tests.postgresql import Server, serving
from tests.study.test_claims import FAST, LLAMA, ask
from tests.warm import forked

TRIALS = 24
COUNT_TELLS = """
CREATE TABLE told (trial integer);
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO told VALUES (NEW.number); RETURN NEW; END $$;
CREATE TRIGGER tell AFTER UPDATE OF state ON trials FOR EACH ROW
    WHEN (NEW.state NOT IN ('RUNNING', 'WAITING')) EXECUTE FUNCTION tell();
"""
"""The server itself counts how often each trial is told."""


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Return a server for the session."""
    with serving() as running:
        yield running


@dataclass
class Scene:
    """A study on the server, and the processes that want to run it."""

    url: str
    runs: Path
    began: list["Search"] = field(default_factory=list)

    def search(self, host: str, *options: str) -> "Search":
        """Start a search on a host, with a runs folder of its own."""
        self.began.append(Search(self, host, self.runs / str(len(self.began)), options))
        return self.began[-1]

    @property
    def database(self) -> sqlalchemy.Engine:
        """An engine of the database."""
        return sqlalchemy.create_engine(self.url)

    def live_first(self, *searches: "Search") -> list["Search"]:
        """Wait until one of these searches runs the study, and return it first."""
        claims = Claims(self.database, "s")
        while not (found := {search.pid for search in searches} & {holder.pid for holder in claims.holders()}):
            time.sleep(0.05)
        return sorted(searches, key=lambda search: search.pid not in found)

    def problems(self) -> list[str]:
        """Return what is wrong with the study once it is complete."""
        result = stored_result("s", self.runs, self.url)
        with self.database.connect() as connection:
            told = Counter(connection.execute(sqlalchemy.text("SELECT trial FROM told")).scalars())
        claims, leases = Claims(self.database, "s").holders(), Leases(self.database, "s", "").all()
        campaign = Campaign(result, told, [], len(self.began), 0.0, leases, 0.0)
        return problems(campaign, TRIALS) + [f"claim left: {claim}" for claim in claims]


class Search:
    """A process that searches, with its events."""

    def __init__(self, scene: Scene, host: str, runs: Path, options: tuple[str, ...]) -> None:
        (scene.runs / "space.yaml").write_text(SPACE)
        self._errors = scene.runs / f"{runs.name}.err"
        command = [
            *(sys.executable, "-m", "tests.engines.sleeping_command", "search", "--model", "llama", "--study", "s"),
            *("--storage", scene.url, "--runs", str(runs), "--space", str(scene.runs / "space.yaml")),
            *("--strategy", "random", "--trials", str(TRIALS), "--workers", "2", "--backend", "sim", "--json"),
            *options,
        ]
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, HOST: host}
            )

    @property
    def pid(self) -> int:
        """Its process."""
        return forked(self.process.pid)

    def await_event(self, kind: str, count: int = 1) -> dict[str, Any]:
        """Wait for an event of a kind, and return it."""
        assert self.process.stdout is not None
        events = (json.loads(line) for line in self.process.stdout)
        found = list(itertools.islice((event for event in events if event["event"] == kind), count))
        assert len(found) == count, self.errors()
        return dict(found[-1])

    def end(self) -> int:
        """Wait for its end, and return its exit code."""
        self.process.communicate(timeout=120)
        return self.process.returncode

    def errors(self) -> str:
        """Return what it has written for people."""
        return self._errors.read_text()


@pytest.fixture
def scene(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Return a study in a database of its own; its processes end with the test."""
    url = server.create(f"db{abs(hash(request.node.name))}")
    scene = Scene(url, tmp_path)
    yield scene
    for search in scene.began:
        search.process.kill()
        search.process.communicate()


@pytest.fixture
def counted(scene: Scene) -> Scene:
    """Return a study whose tells are counted."""
    open_storage(scene.url)
    with scene.database.begin() as connection:
        connection.execute(sqlalchemy.text(COUNT_TELLS))
    return scene


def test_a_study_is_kept_on_postgresql(scene: Scene) -> None:
    """Proposals, outcomes, facts, claims and leases, as in SQLite."""
    study, other = (TuningStudy.open("s", scene.url, create=True) for _ in range(2))
    with study.claimed(LLAMA) as leases:
        with pytest.raises(StudyError, match="is being run by"), other.claimed(LLAMA):
            pass
        for number in range(3):
            proposal = ask(study)
            lease = leases.grant(proposal.number, 1, "npu 0")
            leases.begin(lease, 1234.5)
            assert [each.until for each in leases.all()] == [1234.5]
            assert leases.settle(lease)
            assert not leases.settle(lease)
            study.tell(proposal, FAST, 8.0)
            assert other.finished() == number + 1
        study.remember(uncompared=True)
    assert [record.outcome for record in other.records()] == [FAST] * 3
    assert other.facts.uncompared
    assert Claims(scene.database, "s").holders() == ()
    assert leases.all() == ()


def test_a_search_that_was_taken_over_cannot_write(scene: Scene) -> None:
    """Not even in the middle of a proposal, nor does it revoke the lease of the search that has the trial now."""
    study, other = (TuningStudy.open("s", scene.url, create=True) for _ in range(2))
    claims = Claims(scene.database, "s")
    with study.claimed(LLAMA) as leases:
        proposal = ask(study)
        version, _ = claims.read()
        assert version
        assert claims.evict(version)
        with other.claimed(LLAMA) as others:
            again = ask(other)
            assert again.number == proposal.number
            lease = others.grant(again.number, 1, "npu 1")
            for write in (
                lambda: study.tell(proposal, FAST, 8.0),
                lambda: study.postpone(proposal),
                lambda: proposal.trial.suggest_categorical("another", [1]),
                lambda: leases.grant(proposal.number, 1, "npu 0"),
                lambda: ask(study),
            ):
                with pytest.raises(StudyError, match="was taken over by process"):
                    write()
            assert others.settle(lease)
            other.tell(again, FAST, 8.0)
    assert [record.outcome for record in other.records()] == [FAST]


def test_a_server_that_was_restarted_is_found_again(scene: Scene, server: Server) -> None:
    """While it is away, one line says so."""
    study = TuningStudy.open("s", scene.url, create=True)
    with study.claimed(LLAMA):
        proposal = ask(study)
        server.stop()
        try:
            with pytest.raises(
                StorageError, match=r"the study's storage failed \(.*stored trials are safe.*run again$"
            ):
                study.tell(proposal, FAST, 8.0)
        finally:
            server.start()
        study.tell(proposal, FAST, 8.0)
    assert study.finished() == 1


def test_a_search_that_is_paused_in_a_transaction_does_not_keep_others_waiting(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends it; that the study was taken over is what the search says when it goes on."""
    monkeypatch.setattr("sktune.study.storage.IDLE_S", 0.5)
    study, claims = TuningStudy.open("s", scene.url, create=True), Claims(scene.database, "s")
    taken_over = pytest.raises(StudyError, match="was taken over")
    with taken_over, study.claimed(LLAMA), study.storage.scoped_session() as session:
        session.connection()
        version, _ = claims.read()
        assert version
        assert claims.evict(version)  # waits for that transaction
        with translated("s"):
            session.connection().execute(sqlalchemy.text("SELECT 1"))


@pytest.mark.slow
def test_a_standby_takes_over_from_a_coordinator_that_is_killed(counted: Scene) -> None:
    """Again and again, wherever it was: two begin at once on standby, and the one that waits is always another."""
    alive = [counted.search("host", "--standby") for _ in range(2)]
    for moment in ("trial_finished", "trial_stage", "trial_started"):
        live, waiting = counted.live_first(*alive)
        live.await_event("trial_finished", 4)
        live.await_event(moment)
        os.kill(live.pid, signal.SIGKILL)
        assert live.end() == -signal.SIGKILL
        alive = [waiting, counted.search("host", "--standby")]
    assert [search.end() for search in alive] == [0, 0], [search.errors() for search in alive]
    assert counted.problems() == []


@pytest.mark.slow
def test_a_coordinator_that_was_only_paused_ends_when_it_goes_on(counted: Scene) -> None:
    """Another host has taken over its study; what its workers have found meanwhile is not counted."""
    live = counted.search("host-a")
    live.await_event("search_started")
    standby = counted.search("host-b", "--standby")
    assert "on host-a since" in standby.await_event("standing_by")["holder"]
    live.await_event("trial_stage")
    os.kill(live.pid, signal.SIGSTOP)
    standby.await_event("trial_finished", 3)
    os.kill(live.pid, signal.SIGCONT)
    assert live.end() == 2
    assert "was taken over by process" in live.errors().splitlines()[-1]
    assert "Traceback" not in live.errors()
    assert standby.end() == 0
    assert counted.problems() == []


@pytest.mark.slow
def test_a_standby_outlasts_a_restart_of_the_server(counted: Scene, server: Server) -> None:
    """The search that runs ends in one line."""
    live = counted.search("host")
    live.await_event("search_started")
    standby = counted.search("host", "--standby")
    standby.await_event("standing_by")
    live.await_event("trial_finished", 3)
    server.stop()
    try:
        assert live.end() == 1
    finally:
        server.start()
    assert "the study's storage failed" in live.errors().splitlines()[-1]
    assert "Traceback" not in live.errors()
    assert standby.end() == 0, standby.errors()
    assert counted.problems() == []
