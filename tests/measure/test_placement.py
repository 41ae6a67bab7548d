"""Which cores and how many threads steps get, on machines that are idle, busy, or limited."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sktune.measure import machine as of_machine
from sktune.measure.machine import Machine, Placement, allowed_cores, cpu_quota

LOOK = Machine.look
"""The real one: tests search as on an idle machine."""
SPINNER = (
    "import os, sys; os.nice(19); os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"
)


def of_single(*loads: float) -> Mapping[tuple[int, ...], float]:
    """Return the loads of cores with one hardware thread each."""
    return {(core,): load for core, load in enumerate(loads)}


@pytest.mark.parametrize(
    ("machine", "threads", "cores", "count"),
    [
        pytest.param(Machine(of_single(0.0, 0.05)), None, (), 0, id="idle"),
        pytest.param(Machine(of_single(0.0)), None, (), 0, id="idle with one core"),
        pytest.param(Machine({}), None, (), 0, id="a system that does not tell"),
        pytest.param(Machine(of_single(0.0, 0.98)), 1, (0,), 1, id="one of two busy"),
        pytest.param(Machine(of_single(0.98, 0.0, 0.3, 0.1)), 2, (1, 3), 2, id="two of four busy"),
        pytest.param(Machine(of_single(0.98, 0.9)), 1, (), 0, id="both busy: one thread on either"),
        pytest.param(Machine(of_single(0.5, 0.5, 0.5, 0.4)), 2, (), 0, id="all half busy: as many as are left"),
        pytest.param(Machine(of_single(1.0)), None, (), 0, id="the only core busy: no choice"),
        pytest.param(Machine({(0, 2): 0.0, (1, 3): 0.9}), 1, (0, 2), 1, id="hardware threads count once"),
        pytest.param(Machine(of_single(0.0, 0.0, 0.0, 0.0), quota=2.5), 2, (), 0, id="a quota limits threads"),
        pytest.param(Machine(of_single(0.0, 0.0), quota=0.5), 1, (), 0, id="a quota below one core"),
        pytest.param(Machine(of_single(0.0, 0.0), quota=8.0), None, (), 0, id="a quota that is not in the way"),
        pytest.param(Machine(of_single(0.0, 0.9, 0.0, 0.0), quota=2.0), 2, (0, 2, 3), 3, id="a quota and a busy core"),
        pytest.param(Machine(of_single(0.0, 0.9), user_threads=2), None, (), 0, id="the user's threads need all cores"),
        pytest.param(Machine(of_single(0.0, 0.9), user_threads=1), None, (0,), 1, id="the user's thread fits"),
        pytest.param(Machine(of_single(0.0, 0.9, 0.8), user_threads=2), None, (0, 2), 2, id="the least busy for them"),
    ],
)
def test_steps_get_the_free_cores_and_a_thread_for_each(
    machine: Machine, threads: int | None, cores: tuple[int, ...], count: int
) -> None:
    """A new study on an idle machine gets the default; the user's own number of threads is never changed."""
    assert machine.placement() == Placement(threads, cores, count)


def test_a_continued_study_keeps_its_numbers_on_the_cores_that_are_free_now() -> None:
    """Whether the machine has become busy, idle, or busy elsewhere."""
    made = Machine(of_single(0.9, 0.0)).placement()
    assert (made.threads, made.cores) == (1, (1,))
    for loads in (of_single(0.0, 0.9), of_single(0.0, 0.0)):
        again = Machine(loads).placement_as_in(made.fingerprint)
        assert (again.threads, again.cores) == (1, (0,))
        assert again.fingerprint == made.fingerprint == {"threads": "1", "cores": "1"}
    assert Placement().fingerprint == {}
    assert Machine(of_single(0.0, 0.9)).placement_as_in({"torch": "2.13"}) == Placement()
    assert Machine(of_single(0.0, 0.9)).placement_as_in({"threads": "many", "cores": ""}) == Placement()


@pytest.fixture
def spinner() -> Iterator[int]:
    """Return a core that a process of the lowest priority keeps busy."""
    core = max(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", SPINNER, str(core)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield core
        process.kill()


def test_a_busy_core_is_noticed(spinner: int) -> None:
    """However low the priority of what runs there."""
    machine = LOOK()
    assert any(spinner in core for core in machine.busy)
    assert {number for core in machine.loads for number in core} == os.sched_getaffinity(0)


@pytest.mark.parametrize(("value", "threads"), [("3", 3), (" 2,1", 2), ("", None), ("many", None), ("0", None)])
def test_the_users_threads_are_read(value: str, threads: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of a list, which has one for each nesting."""
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    monkeypatch.setattr(of_machine, "LONGER_LOOK_S", 0.0)
    assert LOOK().user_threads == threads


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "400000 100000"}, 4.0),
        ("0::/a/b", {"a/b/cpu.max": "200000 100000", "a/cpu.max": "400000 100000"}, 2.0),
        ("4:cpu,cpuacct:/a\n2:memory:/a", {"cpu,cpuacct/a/cpu.cfs_quota_us": "50000",
                                           "cpu,cpuacct/a/cpu.cfs_period_us": "100000"}, 0.5),
        ("4:cpu,cpuacct:/", {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, None),
        ("0::/gone", {}, None),
        ("0::/", {"cpu.max": "garbage"}, None),
        ("no colons", {}, None),
    ],
)  # fmt: skip
def test_quotas_of_containers_count(
    groups: str, files: Mapping[str, str], quota: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of both versions of control groups, and of the groups around the process's own."""
    own = tmp_path / "own"
    own.write_text(f"{groups}\n")
    for name, text in files.items():
        file = tmp_path / "fs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    monkeypatch.setattr(of_machine, "OWN_GROUPS", own)
    monkeypatch.setattr(of_machine, "GROUPS", tmp_path / "fs")
    assert cpu_quota() == quota
    cores = len(os.sched_getaffinity(0))
    assert allowed_cores() == (cores if quota is None else max(1, min(cores, int(quota))))
