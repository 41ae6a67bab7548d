"""Sktune's own arithmetic runs in one thread: beside a busy core, threads of BLAS would wait for one another."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from sktune.learning.history import Learned
from sktune.samplers.partition import PartitionSampler
from sktune.study.study import TuningStudy, sqlite_url
from tests.builders import SPACE, study_of
from tests.fake_runner import FakeRunner, search


def blas_threads() -> set[int]:
    """Return the numbers of threads of all libraries of linear algebra in this process."""
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_a_search_uses_one_blas_thread_from_its_first_event_to_its_last(tmp_path: Path) -> None:
    """Whatever the caller uses, and the caller has its own number again afterwards."""
    seen: dict[str, set[int]] = {}

    def listen(event: dict[str, Any]) -> None:
        seen.setdefault(event["event"], set()).update(blas_threads())

    with threadpool_limits(2, user_api="blas"):
        search(tmp_path, FakeRunner(), listen, trials=2)
        assert blas_threads() == {2}
    assert {"search_started", "trial_finished", "final_started", "study_finished"} <= seen.keys()
    assert set().union(*seen.values()) == {1}


def test_so_do_its_parts_if_called_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For programs that use the sampler, and for ``sktune show``."""
    study_of(tmp_path, "a", [1.1, 1.2])
    study = TuningStudy.open("a", sqlite_url(tmp_path / "a"), create=False)
    sampler, trials, seen = PartitionSampler(SPACE), study.trials(), list[set[int]]()
    read = Learned.read

    def spied(learned: Learned, *arguments: Any, **options: Any) -> Any:
        seen.append(blas_threads())
        return read(learned, *arguments, **options)

    monkeypatch.setattr(Learned, "read", spied)
    with threadpool_limits(2, user_api="blas"):
        sampler.outlook(trials)
        sampler.expected_savings(trials)
        study.best_first(SPACE)
        assert blas_threads() == {2}
    assert seen == [{1}] * 3


def test_arithmetic_ends_if_the_memory_is_used_up_later() -> None:
    """With a result or an error: OpenBLAS would wait for its working memory for ever."""
    code = """
import resource
import numpy as np, scipy.linalg
from sktune.learning.threads import one_blas_thread
with one_blas_thread():
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20),) * 2)
    try:
        scipy.linalg.cho_factor(np.eye(300) @ np.eye(300))
    except MemoryError:
        pass
print("ended")
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True).stdout == "ended\n"
