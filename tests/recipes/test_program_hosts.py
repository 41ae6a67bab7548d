"""Programs that run on several hosts: what each host is told, what its ranks report, and every way to fail."""

import math
import threading
import time
from pathlib import Path

import pytest

from sktune.core.errors import BackendError, BadInputError, OutOfTimeError, PeerLostError, TargetError
from sktune.core.outcome import Outcome, Reason
from sktune.core.plan import Plan, Scope
from sktune.program.sktune_program.reporter import Reporter
from sktune.recipes.peers import LocalPeer
from sktune.recipes.rank_reports import read_reports
from sktune.recipes.runner import ProgramRunner
from sktune.recipes.yaml_copy import copy_paths
from sktune.targets.recipe import read_recipe
from sktune.tuning.loop import run
from sktune.tuning.request import Request
from sktune.worker.jobs import Judge
from sktune.worker.process_tree import is_alive
from tests.recipes.host_group import OtherHost, runner_on, write_program

FIRST, SECOND = "10.0.0.1", "10.0.0.2"


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the runs more often."""
    monkeypatch.setattr("sktune.recipes.run.POLL_S", 0.02)


def group() -> tuple[LocalPeer, OtherHost]:
    """Return two hosts."""
    return LocalPeer("one", FIRST), OtherHost("two", SECOND)


def judge(runner: ProgramRunner, unit: str = "b") -> Outcome:
    """Return what becomes of a plan with one scope."""
    return runner.run(Judge(Plan((Scope(unit, unit),)), "trial.log"), lambda stage: None)


def left(folder: Path) -> list[int]:
    """Return the program's processes that are alive, on all hosts."""
    return [pid for file in folder.glob("pid-*") if is_alive(pid := int(file.name.removeprefix("pid-")))]


def test_all_hosts_run_the_command_and_the_slowest_counts(tmp_path: Path) -> None:
    """Each knows its place and has caches, a YAML and a log of its own; nothing of them is left but the log."""
    hosts = group()
    environment = {"OFFSET": "{rank_offset}", "ALL": "{hosts} {host_rank} {master} {yaml}"}
    with runner_on(hosts, tmp_path, environment=environment) as runner:
        opened = runner.open()
        outcome = judge(runner)
    assert "in 4 ranks on 2 hosts" in opened.description
    assert outcome.speedup and outcome.speedup.latency_ms == pytest.approx(8.5, rel=0.01)
    command = hosts[1].command
    told = {name: command.variables[name] for name in ("SKTUNE_HOSTS", "SKTUNE_HOST_RANK", "MASTER_ADDR", "OFFSET")}
    assert told == {
        "SKTUNE_HOSTS": f"{FIRST},{SECOND}", "SKTUNE_HOST_RANK": "1", "MASTER_ADDR": FIRST, "OFFSET": "2",
    }  # fmt: skip
    assert command.variables["ALL"] == f"{FIRST},{SECOND} 1 {FIRST} {{yaml}}"
    assert command.argv[2] == "2" and command.argv[3].startswith("decode_sktune_")
    assert Path(command.variables["TORCHINDUCTOR_CACHE_DIR"]).parent.name == "host-1"
    assert (tmp_path / "study" / "logs" / "a-b" / "trial.host-1.log").read_text().count("decode") == 24
    assert not list(tmp_path.glob("decode_sktune*")) and not list(tmp_path.rglob(".sktune-*"))


def test_a_rank_of_another_host_whose_bits_change_is_named(tmp_path: Path) -> None:
    """With its host."""
    with runner_on(group(), tmp_path, environment={"FAULT": "bits"}) as runner:
        wrong, right = judge(runner, "b"), judge(runner, "a")
    assert wrong.reason is Reason.MISMATCH and "rank 3 on two, step 5: output differs" in wrong.detail
    assert right.speedup


def test_a_command_that_fails_on_one_host_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is named."""
    monkeypatch.setattr("sktune.recipes.run.ORPHAN_S", 0.3)
    with runner_on(group(), tmp_path, environment={"FAULT": "fails"}) as runner:
        outcome = judge(runner)
    assert (outcome.reason, outcome.detail) == (
        Reason.CRASHED,
        "the command on two ended with exit code 3, and the others went on",
    )
    assert not left(tmp_path)


def test_a_lost_host_blames_no_plan(tmp_path: Path) -> None:
    """No outcome: the worker ends with all that it started here."""
    hosts = group()
    with runner_on(hosts, tmp_path, environment={"FAULT": "hangs"}) as runner:
        runner.open()
        threading.Timer(0.5, lambda: setattr(hosts[1], "is_lost", True)).start()
        with pytest.raises(PeerLostError, match="host two does not answer"):
            judge(runner)
    assert not left(tmp_path)


def test_the_deadline_ends_the_run_on_all_hosts(tmp_path: Path) -> None:
    """Also one that is moved meanwhile, as the engine does to cut off what runs."""
    with runner_on(group(), tmp_path, environment={"FAULT": "hangs"}) as runner:
        runner.open()
        runner.deadline_s = time.monotonic() + 1
        with pytest.raises(OutOfTimeError):
            judge(runner)
        assert not left(tmp_path)
        runner.deadline_s = math.inf
        threading.Timer(0.5, lambda: setattr(runner, "deadline_s", -math.inf)).start()
        with pytest.raises(OutOfTimeError):
            judge(runner)
        assert not left(tmp_path)


def test_storage_that_is_not_shared_is_refused(tmp_path: Path) -> None:
    """In one line with the host and the folder, before anything is started."""
    hosts = group()
    hosts[1].is_apart = True
    with (
        runner_on(hosts, tmp_path) as runner,
        pytest.raises(BadInputError, match=rf"^two cannot see what one writes to {tmp_path / 'study'}; .*share$"),
    ):
        runner.open()
    assert not list(tmp_path.glob("pid-*"))


def test_another_inference_is_waited_for_on_every_host(tmp_path: Path) -> None:
    """The host is named."""
    hosts = group()
    hosts[1].other_inference = lambda pattern: (7, "python infer.py")  # type: ignore[method-assign]
    with (
        runner_on(hosts, tmp_path, wait_s=0) as runner,
        pytest.raises(BackendError, match="process 7 on two runs another inference"),
    ):
        runner.open()


def test_a_search_on_one_host_is_refused(tmp_path: Path) -> None:
    """With the option that helps."""
    recipe = write_program(tmp_path)
    with pytest.raises(BadInputError, match="one run of two-hosts needs 2 hosts; search with --engine ray"):
        run(Request("", recipe=recipe, runs=tmp_path / "runs"))
    with runner_on((), tmp_path) as runner, pytest.raises(BadInputError, match="needs 2 hosts"):
        runner.open()


def test_ranks_with_the_same_number_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They never write to the same file."""
    for host in "01":
        monkeypatch.setenv("SKTUNE_HOST_RANK", host)
        Reporter(tmp_path).begin()
    first, second = read_reports(tmp_path, ["one", "two"])
    assert (first.name, second.name) == ("rank 0 on one", "rank 0 on two")
    assert second.error == ("run", "rank 0 on one has the same number; set RANK to the number among all hosts")


def test_groups_in_one_folder_have_logs_of_their_own(tmp_path: Path) -> None:
    """They are known by the name of the YAML's copy, which without a YAML cannot be."""
    with runner_on(group(), tmp_path, logs="res/*/log_*.log", environment={"LOGS": "1"}) as runner:
        runner.open()
        other = tmp_path / "res" / "decode_sktune_of_another_group" / "log_0.log"
        other.parent.mkdir()
        other.write_text("[Main] Inference time (decode): 99 ms\n" * 24)
        outcome = judge(runner)
    assert outcome.speedup and outcome.speedup.latency_ms == pytest.approx(8.5, rel=0.01)
    copied = sorted(path.name for path in (tmp_path / "study" / "logs" / "a-b").glob("trial.*log_0.log"))
    assert copied == ["trial.host-1.log_0.log", "trial.log_0.log"]
    names = [path.stem for group in (["a", "b"], ["a", "c"]) for path in copy_paths(tmp_path / "x.yaml", group)]
    assert not any(one in other for one in names for other in names if one is not other)
    recipe = write_program(tmp_path, logs="log_*.log", yaml=None, command="program.py")
    with pytest.raises(TargetError, match="there is no yaml; leave logs out"):
        read_recipe(recipe)
