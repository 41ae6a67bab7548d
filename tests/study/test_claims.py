"""A study is run by one search, or by several that have joined: figures of two targets never mix, whatever the race."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import Engine

from sktune.core.contents import content_digest
from sktune.core.errors import StudyError
from sktune.core.outcome import Outcome, Speedup
from sktune.samplers import find_strategy
from sktune.study.backup import Backup
from sktune.study.claims import Claims, Holder
from sktune.study.study import Proposal, TuningStudy, sqlite_url
from tests.study.test_study import SPACE

LLAMA, QWEN = {"format": "2", "model": "llama"}, {"format": "2", "model": "qwen3"}
FAST = Outcome(speedup=Speedup(10.0, 8.0, 1.25, (1.2, 1.3), 40))
ELSEWHERE = "another-host 1234 pid:[1]"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a fresh database."""
    return sqlite_url(tmp_path)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """Return an engine of the database."""
    database = sqlalchemy.create_engine(url)
    yield database
    database.dispose()


def opened(url: str, *, is_ours_alone: bool = False) -> TuningStudy:
    """Open the study."""
    backup = Backup(Path(url.removeprefix("sqlite:///")).parent) if is_ours_alone else None
    return TuningStudy.open("study", url, create=True, backup=backup)


def holder(**changes: object) -> Holder:
    """Return this process as a holder, with ``changes``."""
    return replace(Holder.here(LLAMA, has_folder=False), **changes)  # type: ignore[arg-type]


def ask(study: TuningStudy) -> Proposal:
    """Ask for the next plan."""
    return study.ask(SPACE, find_strategy("random"), 0)


def test_a_study_that_is_running_is_refused_with_the_number_of_its_process(url: str) -> None:
    """Also from another folder with the same storage, where there is no common lock."""
    with (
        opened(url).claimed(LLAMA),
        pytest.raises(StudyError, match=rf"being run by process {os.getpid()} since .*--join.*--study"),
        opened(url).claimed(LLAMA),
    ):
        pass


def test_a_study_is_free_when_its_search_has_ended(url: str) -> None:
    """However it ended; a search without trials leaves no fingerprint behind."""
    with pytest.raises(ZeroDivisionError), opened(url).claimed(LLAMA):
        raise ZeroDivisionError
    with opened(url).claimed(QWEN):
        pass


def test_a_dead_process_holds_nothing(engine: Engine) -> None:
    """Nor does one whose number has been reused."""
    claims = Claims(engine, "study")
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    claims.acquire(holder(pid=done.pid, fingerprint=QWEN))
    claims.acquire(holder(started=1, fingerprint=QWEN))
    claims.acquire(holder())
    assert [each.fingerprint for each in claims.holders()] == [LLAMA]


def test_a_process_on_another_host_holds_a_study_until_it_is_taken_over(engine: Engine) -> None:
    """Whether it is alive cannot be seen from here; its number says nothing."""
    claims = Claims(engine, "study")
    far = holder(host="far", place=ELSEWHERE, pid=17)
    claims.acquire(far)
    with pytest.raises(StudyError, match=r"held by process 17 on far since \d{4}-.*--take-over"):
        claims.acquire(holder())
    me = holder()
    claims.acquire(me, take_over=True)
    assert claims.holders() == (me,)


def test_a_living_process_on_this_host_is_not_taken_over(engine: Engine) -> None:
    """It can be seen here, and ended."""
    claims = Claims(engine, "study")
    claims.acquire(holder())
    with pytest.raises(StudyError, match="being run by"):
        claims.acquire(holder(), take_over=True)


def test_the_holder_of_the_folders_lock_replaces_a_container_that_is_gone(engine: Engine) -> None:
    """The container had the same lock, which the kernel has released."""
    claims = Claims(engine, "study")
    claims.acquire(holder(place=ELSEWHERE, has_folder=True))
    me = holder(has_folder=True)
    claims.acquire(me)
    assert claims.holders() == (me,)


def test_a_search_can_only_join_with_the_same_fingerprint(url: str) -> None:
    """Both run trials; the study is held until the last of them has ended."""
    first, second = opened(url), opened(url)
    with first.claimed(LLAMA):
        with (
            pytest.raises(StudyError, match="made with model 'llama', but now it is 'qwen3'"),
            opened(url).claimed(QWEN, join=True),
        ):
            pass
        joined = second.claimed(LLAMA, join=True)
        joined.__enter__()
        proposals = [ask(study) for study in (first, second, first, second)]
        assert len({proposal.number for proposal in proposals}) == 4
        for study, proposal in zip((first, second) * 2, proposals, strict=True):
            study.tell(proposal, FAST, 8.0)
    with pytest.raises(StudyError, match="being run by"), opened(url).claimed(QWEN):
        pass
    joined.__exit__(None, None, None)
    assert opened(url).finished() == 4


def test_the_trial_of_a_search_that_joined_is_not_run_again(url: str) -> None:
    """Not even by a search that holds the lock of the database's folder."""
    first, second = opened(url, is_ours_alone=True), opened(url)
    with first.claimed(LLAMA):
        with second.claimed(LLAMA, join=True):
            theirs = ask(second)
            assert ask(first).number != theirs.number
        assert ask(opened(url, is_ours_alone=True)).number in (0, 1)


def test_a_trial_that_a_search_is_asking_for_is_not_run_twice(url: str) -> None:
    """Optuna stores a trial before sktune stores whose it is."""
    first, second = opened(url), opened(url)
    with first.claimed(LLAMA), second.claimed(LLAMA, join=True):
        asked = second.optuna_study.ask()
        assert ask(first).number != asked.number
    with (later := opened(url)).claimed(LLAMA):
        assert {ask(later).number for _ in range(2)} == {0, 1}


def test_a_search_that_was_taken_over_ends(url: str, engine: Engine) -> None:
    """Before it asks for another trial or stores a result."""
    study = opened(url)
    with study.claimed(LLAMA):
        claims = Claims(engine, "study")
        claims.release(claims.holders()[0].token)
        claims.acquire(holder(fingerprint=QWEN))
        with pytest.raises(StudyError, match="was taken over by process"):
            ask(study)
        with pytest.raises(StudyError, match="was taken over by process"):
            study.remember(uncompared=True)
    assert [each.fingerprint for each in claims.holders()] == [QWEN]


def test_a_module_that_changed_ends_the_study(url: str, tmp_path: Path) -> None:
    """The message names its file, before anything is imported."""
    helper = tmp_path / "helper.py"
    helper.write_text("SCALE = 1\n")
    study = opened(url)
    with study.claimed(LLAMA, tmp_path):
        study.add_modules({"helper.py": content_digest(helper)[:16]})
    with study.claimed(LLAMA, tmp_path):
        study.add_modules({"lazy.py": "ab"})
        with pytest.raises(StudyError, match=r"made with module helper\.py, which has changed since"):
            study.add_modules({"helper.py": "cd"})
    assert set(study.facts.modules) == {"helper.py", "lazy.py"}
    helper.write_text("SCALE = 2\n")
    with pytest.raises(StudyError, match=rf"made with module {helper}, which has changed since"):
        study.check_modules(tmp_path)


def test_a_program_with_another_torch_ends_the_study(url: str) -> None:
    """sktune's own environment does not count for a recipe: its program has another one, which only its ranks know."""
    study = opened(url)
    with study.claimed(LLAMA):
        study.check_versions({"torch": "2.8.0"})
        study.remember(versions={"torch": "2.8.0", "torch_npu": "2.8.0.post4"})
        study.check_versions({"torch": "2.8.0", "torch_npu": "2.8.0.post4", "transformers": "5.0.0"})
        for now, shown in (({"torch": "2.10.0"}, "2.10.0 now"), ({}, "not installed now")):
            with pytest.raises(StudyError, match=rf"made with torch 2\.8\.0 in the program, which is {shown}"):
                study.check_versions(now)


def test_a_study_of_an_earlier_sktune_is_refused_with_a_separate_message(url: str) -> None:
    """Which does not blame keys that the earlier fingerprint did not have."""
    opened(url).remember(fingerprint={"model": "llama"})
    with pytest.raises(StudyError, match=r"another version of sktune.*--study"), opened(url).claimed(LLAMA):
        pass


RACER = """
import sys
from sktune.core.errors import StudyError
from sktune.core.outcome import Outcome, Reason
from sktune.samplers import find_strategy
from sktune.study.study import TuningStudy
from tests.study.test_study import SPACE

url, model, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
for number in range(count):
    sys.stdin.readline()
    state = "refused"
    try:
        study = TuningStudy.open(f"study-{number}", url.format(number=number), create=True)
        with study.claimed({"format": "2", "model": model}):
            study.remember(fingerprint={"format": "2", "model": model})
            proposal = study.ask(SPACE, find_strategy("random"), 0)
            study.tell(proposal, Outcome(Reason.SLOWER, model), None)
            state = "ran"
            print(state, flush=True)
            sys.stdin.readline()
    except StudyError as failure:
        print(f"{state} {failure}", flush=True)
        sys.stdin.readline()
"""
REPETITIONS = 20


@pytest.mark.slow
def test_of_two_processes_that_race_for_a_study_one_runs_it(tmp_path: Path) -> None:
    """Each repetition uses a new database; the process that comes second is refused in one line."""
    url = f"sqlite:///{tmp_path}/{{number}}.db"
    command = [sys.executable, "-c", RACER, url]
    racers = {
        model: subprocess.Popen(
            [*command, model, str(REPETITIONS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for model in ("llama", "qwen3")
    }
    winners = set()
    try:
        for racer in racers.values():
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for number in range(REPETITIONS):
            for racer in racers.values():
                resume(racer)
            lines = {model: read_line(racer) for model, racer in racers.items()}
            ran = [model for model, line in lines.items() if line == "ran"]
            assert len(ran) == 1, lines
            (refused,) = set(lines) - set(ran)
            assert "is being run by process" in lines[refused], lines
            for racer in racers.values():
                resume(racer)
            winners |= set(ran)
            study = TuningStudy.open(f"study-{number}", url.format(number=number), create=False)
            assert study.facts.fingerprint["model"] == ran[0]
            assert [record.outcome.detail for record in study.records() if record.outcome] == ran
    finally:
        for racer in racers.values():
            racer.kill()
            racer.communicate()
    assert winners


def resume(racer: subprocess.Popen[str]) -> None:
    """Let a racer continue."""
    assert racer.stdin is not None
    racer.stdin.write("\n")
    racer.stdin.flush()


def read_line(racer: subprocess.Popen[str]) -> str:
    """Return the next line that a racer prints."""
    assert racer.stdout is not None
    return racer.stdout.readline().strip()


def test_holders_survive_a_round_trip_through_the_database(engine: Engine) -> None:
    """And through JSON."""
    me = holder()
    Claims(engine, "study").acquire(me)
    assert Claims(engine, "study").holders() == (me,)
    assert Claims(engine, "another").holders() == ()
    assert Holder(**json.loads(json.dumps(asdict(me)))) == me
