"""Studies are stored in Optuna's storage alone, and survive the death of their process."""

import fcntl
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from sktune.core.codec import encoded
from sktune.core.errors import ExitCode, StorageError, StudyError
from sktune.core.outcome import Outcome, Reason, Speedup
from sktune.core.plan import Plan
from sktune.core.space import OptionRules, SearchSpace, SpaceSpec, bind
from sktune.samplers import find_strategy
from sktune.study.backup import Backup
from sktune.study.claims import locked
from sktune.study.records import incumbent_first, without_twins
from sktune.study.study import Proposal, TuningStudy, folder_name, sqlite_url
from tests.builders import decoder_layout

SPACE = bind(SpaceSpec(), decoder_layout(("dense", "moe")), {"fast": (False, True)}, OptionRules({"fast": False}))
FAST = Outcome(speedup=Speedup(10.0, 8.0, 1.25, (1.2, 1.3), 40))
FAILED = Outcome(Reason.COMPILE_FAILED, "no")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a fresh database."""
    return sqlite_url(tmp_path)


def opened(url: str, name: str = "study") -> TuningStudy:
    """Open or create a study."""
    return TuningStudy.open(name, url, create=True)


def ask(study: TuningStudy, sampler: str = "tpe", space: SearchSpace = SPACE, seed: int = 0) -> Proposal:
    """Ask for the next plan."""
    return study.ask(space, find_strategy(sampler), seed)


def test_starting_points_come_first_and_once(url: str) -> None:
    """Queueing them again, as a resumed search does, adds nothing."""
    study = opened(url)
    study.queue(SPACE.starting_points)
    study.queue(SPACE.starting_points)
    origins = []
    for _ in range(len(SPACE.starting_points) + 1):
        proposal = ask(study)
        origins.append(proposal.origin)
        study.tell(proposal, FAST, 8.0)
        study.queue(SPACE.starting_points)
    assert origins == [point.name for point in SPACE.starting_points] + ["tpe"]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_no_plan_is_proposed_twice(url: str, sampler: str) -> None:
    """Neither by the sampler nor as different points of the same plan; the empty plan is never proposed."""
    study = opened(url)
    plans = []
    for _ in range(60):
        proposal = ask(study, sampler)
        plans.append(proposal.plan)
        study.tell(
            proposal, FAST if len(proposal.plan.scopes) < 3 else FAILED, 8.0 if len(proposal.plan.scopes) < 3 else None
        )
    assert len(set(plans)) == 60
    assert Plan() not in plans


def test_a_trial_left_running_is_run_again_under_its_number(url: str) -> None:
    """The proposal of a process that died is proposed again, and nothing is lost."""
    first = ask(opened(url))
    again = ask(opened(url))
    assert (again.number, again.plan) == (first.number, first.plan)
    assert again.known is None


@pytest.mark.parametrize(
    ("left_by", "is_ours_alone", "is_run_again"),
    [
        ({"host": "a container that is gone"}, True, True),
        ({"host": "a container that is gone"}, False, False),
        ({"pid": os.getppid()}, False, False),
        ({"pid": os.getppid()}, True, True),
        ({"pid": 2**22 + 1}, False, True),
    ],
)
def test_a_running_trial_is_run_again_if_its_process_has_certainly_ended(
    tmp_path: Path, url: str, left_by: dict[str, Any], is_ours_alone: bool, is_run_again: bool
) -> None:
    """In a locked folder, any trial; in a shared database, one whose process on this host has ended."""
    first = ask(opened(url))
    key = "sktune:proposal"
    first.trial.set_user_attr(key, first.trial.user_attrs[key] | left_by)
    study = TuningStudy.open("study", url, create=False, backup=Backup(tmp_path) if is_ours_alone else None)
    assert (ask(study).number == first.number) is is_run_again


def test_twins_are_one_plan_in_the_final_comparison(url: str) -> None:
    """Of plans that compile to the same kernels, only the simplest is compared."""
    study = opened(url)
    proposals = []
    for number in range(6):
        proposal = ask(study)
        proposals.append(proposal)
        study.tell(proposal, replace(FAST, same_as=1 if number > 1 else None), 8.0)
    found = without_twins(incumbent_first(study.records()))
    assert len(found) == 2
    assert {record.number for record in found} > {0}
    assert min(each.plan.complexity for each in proposals[1:]) in {record.plan.complexity for record in found}


def test_a_trial_with_a_stored_outcome_is_not_run_again(url: str) -> None:
    """The result of a process that died between the two is used."""
    study = opened(url)
    proposal = ask(study)
    proposal.trial.set_user_attr("sktune:outcome", encoded(FAST))
    again = ask(opened(url))
    assert again.number == proposal.number
    assert again.known == FAST


def test_a_trial_that_keeps_killing_the_search_is_given_up(url: str) -> None:
    """Three attempts, then it counts as crashed."""
    for _ in range(3):
        assert ask(opened(url)).known is None
    known = ask(opened(url)).known
    assert known is not None
    assert known.reason is Reason.CRASHED


def test_a_plan_queued_by_somebody_else_is_answered_from_the_record(url: str) -> None:
    """An agent may enqueue a known plan."""
    study = opened(url)
    proposal = ask(study)
    study.tell(proposal, FAST, 8.0)
    optuna.load_study(study_name="study", storage=url).enqueue_trial(proposal.trial.params)
    again = ask(study)
    assert again.plan == proposal.plan
    assert again.known == FAST


def test_a_resumed_search_proposes_what_an_uninterrupted_one_would(tmp_path: Path) -> None:
    """The random state depends on the trial's number, not on the process."""

    def proposals(folder: Path, reopen: bool) -> list[str]:
        folder.mkdir()
        study = opened(sqlite_url(folder))
        digests = []
        for number in range(20):
            if reopen:
                study = opened(sqlite_url(folder))
            proposal = ask(study, seed=3)
            digests.append(proposal.plan.digest)
            study.tell(proposal, FAST, 8.0 + number % 5)
        return digests

    assert proposals(tmp_path / "a", False) == proposals(tmp_path / "b", True)


def test_a_study_sees_when_a_trial_of_another_process_ends_that_it_has_seen_running(url: str) -> None:
    searching, watching = opened(url), TuningStudy.open("study", url, create=False)
    proposals = [ask(searching) for _ in range(3)]
    for _ in range(2):
        assert [record.outcome for record in watching.records()] == [None] * 3
    searching.postpone(proposals[0])
    searching.tell(proposals[1], Outcome(Reason.SLOWER), None)
    assert [bool(record.outcome) for record in watching.records()] == [False, True, False]
    searching.tell(proposals[2], Outcome(Reason.SLOWER), None)
    fourth = ask(searching)
    assert [record.number for record in watching.records()] == [0, 1, 2, fourth.number]
    assert [bool(record.outcome) for record in watching.records()] == [False, True, True, False]


def test_infeasible_trials_count_as_bad(url: str) -> None:
    """Optuna sees a violated constraint for a failed plan, and a value for a slower one."""
    study = opened(url)
    study.tell(ask(study), FAILED, None)
    slower = Outcome(Reason.SLOWER, "slow", Speedup(10.0, 12.0, 0.83, (0.8, 0.85), 40))
    study.tell(ask(study), slower, 12.0)
    trials = optuna.load_study(study_name="study", storage=url).trials
    assert [trial.state.name for trial in trials] == ["PRUNED", "PRUNED"]
    assert [trial.constraints["feasible"] for trial in trials] == [1.0, 0.0]
    assert trials[1].intermediate_values == {0: 12.0}
    assert incumbent_first(study.records()) == []


def test_another_fingerprint_is_refused_with_both_shown(url: str) -> None:
    """Figures of two machines are not mixed."""
    opened(url).remember(fingerprint={"torch": "2.13", "device": "A"})
    opened(url).check_fingerprint({"torch": "2.13", "device": "A"})
    with pytest.raises(StudyError, match=r"device 'A', but now it is 'B'.*--study"):
        opened(url).check_fingerprint({"torch": "2.13", "device": "B"})


def test_a_model_that_differs_in_a_setting_is_refused_with_the_setting(url: str) -> None:
    """The model's digest covers its settings, but does not say which of them to fix."""
    opened(url).remember(fingerprint={"context": "None", "model": "llama 1a", "seed": "0"})
    with pytest.raises(StudyError, match="made with seed '0', but now it is '4'"):
        opened(url).check_fingerprint({"context": "None", "model": "llama 2b", "seed": "4"})
    with pytest.raises(StudyError, match="made with context the default, but now it is '99'"):
        opened(url).check_fingerprint({"context": "99", "model": "llama 3c", "seed": "0"})


def test_a_corrupt_file_is_refused_and_kept(tmp_path: Path, url: str) -> None:
    """Nothing is overwritten."""
    (tmp_path / "study.db").write_bytes(b"this is no database" * 99)
    with pytest.raises(StudyError, match="not a readable database"):
        opened(url)
    assert (tmp_path / "study.db").read_bytes() == b"this is no database" * 99


def test_a_truncated_database_is_refused(tmp_path: Path, url: str) -> None:
    """A valid beginning is not enough."""
    opened(url).queue(SPACE.starting_points)
    path = tmp_path / "study.db"
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(StudyError, match=r"study.db"):
        opened(url)


def test_a_database_that_has_lost_its_table_of_studies_is_damaged(tmp_path: Path, url: str) -> None:
    """It is not another program's: the fix is another one."""
    opened(url)
    with closing(sqlite3.connect(tmp_path / "study.db")) as connection:
        connection.execute("DROP TABLE studies")
    with pytest.raises(StudyError, match=r"damaged.*no table of studies.*name another --study"):
        opened(url)


def test_a_stored_value_that_is_nested_too_deeply_is_damaged(tmp_path: Path, url: str) -> None:
    """JSON's reader gives up, and Optuna lets its error through."""
    opened(url)
    with closing(sqlite3.connect(tmp_path / "study.db")) as connection:
        connection.execute("UPDATE study_user_attributes SET value_json = ?", ["[" * 10**5 + "]" * 10**5])
        connection.commit()
    with pytest.raises(StudyError, match="a stored value is damaged"):
        opened(url)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only wait a moment for a lock."""
    monkeypatch.setattr("sktune.study.storage.LOCK_WAIT_S", 0.1)


@pytest.fixture
def locked_database(tmp_path: Path, url: str) -> Iterator[None]:
    """Hold the database exclusively, as another program would."""
    opened(url)
    connection = sqlite3.connect(tmp_path / "study.db", isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    yield
    connection.close()


@pytest.mark.usefixtures("impatient", "locked_database")
def test_a_locked_file_is_refused(url: str) -> None:
    """One line instead of a traceback, and the exit code of a failure that may pass."""
    with pytest.raises(StorageError, match="locked") as refused:
        opened(url)
    assert refused.value.exit_code == ExitCode.FAILED


def test_a_running_study_is_not_run_twice(tmp_path: Path) -> None:
    """The second process is refused with the number of the first."""
    with locked(tmp_path / "s"), pytest.raises(StudyError, match=f"process {os.getpid()}"), locked(tmp_path / "s"):
        pass


def test_a_lock_of_a_dead_process_does_not_matter(tmp_path: Path) -> None:
    """The kernel releases it."""
    with locked(tmp_path / "s"):
        pass
    with (tmp_path / "s" / "lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_a_killed_search_did_not_complete_is_deleted(tmp_path: Path) -> None:
    """By the next one; a process that is killed cannot do it."""
    code = (
        "import os\nfrom pathlib import Path\nfrom sktune.core.files import write_text\n"
        "Path.replace = lambda *_: os.kill(os.getpid(), 9)\nwrite_text(Path('report.md'), 'text')\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir())
    with locked(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_runs_that_cannot_be_written_get_one_line(tmp_path: Path) -> None:
    """Here a file is in the place of the folder."""
    (tmp_path / "runs").write_text("")
    with pytest.raises(StudyError, match="cannot be written"), locked(tmp_path / "runs" / "study"):
        pass


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", "", "x" * 300, "<script>", "深度 搜索", "-rf"])
def test_any_study_name_becomes_a_safe_folder_name(name: str) -> None:
    """A single path component, not hidden, and unique."""
    folder = folder_name(name)
    assert "/" not in folder
    assert not folder.startswith((".", "-"))
    assert 0 < len(folder) <= 81
    assert folder != folder_name(name + "!")


@pytest.mark.parametrize("name", ["cache", "jobs", "comparisons", "profiles"])
def test_a_study_keeps_out_of_the_folders_of_others(name: str) -> None:
    """Deleting the compilers' cache does not delete a study of that name."""
    assert re.fullmatch(rf"{name}-[0-9a-f]{{8}}", folder_name(name))


def test_a_misspelt_study_is_refused_with_similar_names(tmp_path: Path) -> None:
    """Those in the same folder."""
    (tmp_path / "llama-cpu").mkdir()
    TuningStudy.open("llama-cpu", sqlite_url(tmp_path / "llama-cpu"), create=True)
    with pytest.raises(StudyError, match="did you mean 'llama-cpu'"):
        TuningStudy.open("lama-cpu", sqlite_url(tmp_path / "lama-cpu"), create=False)


def test_an_unknown_study_is_refused_with_those_that_exist(url: str) -> None:
    """Showing a study does not create it."""
    opened(url, "one")
    with pytest.raises(StudyError, match=r"no study 'two'.*one"):
        TuningStudy.open("two", url, create=False)


def test_user_samplers_are_accepted_and_mistakes_explained(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler is given as a function of a space and a seed."""
    (tmp_path / "own_sampler.py").write_text(
        "import optuna\ndef make(space, seed):\n    return optuna.samplers.RandomSampler(seed=seed)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert ask(opened(url), "own_sampler:make").plan
    with pytest.raises(Exception, match="did you mean 'tpe'"):
        find_strategy("tpee")


def test_a_trial_that_ends_before_later_ones_is_read_alone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many run: with a thousand dies, reading all of them again took half a second for each trial."""
    study = opened(url)
    first, *_ = [ask(study, "random") for _ in range(8)]
    assert len(study.records()) == 8
    numbers: list[list[int]] = []
    read = optuna.storages.RDBStorage._get_trials

    def counted(*arguments: Any) -> list[Any]:
        trials = read(*arguments)
        numbers.append([trial.number for trial in trials])
        return trials

    monkeypatch.setattr(optuna.storages.RDBStorage, "_get_trials", counted)
    study.tell(first, FAST, 8.0)
    assert sum(record.outcome is not None for record in study.records()) == 1
    assert numbers and all(each == [first.number] for each in numbers)
