"""The cache of built regions that the processes of a host share."""

import json
import multiprocessing
import os
import pickle
import shutil
import stat
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sktune.program.sktune_program.inductor import build_cache
from tests import warm
from tests.builders import ROOT

SCRIPT = Path(__file__).with_name("build_region.py")
GXX = """#!/bin/sh
echo "$(grep Cpus_allowed_list /proc/self/status | cut -f2) $*" >> "$COMPILERS"
exec {gxx} "$@"
"""
"""A g++ that writes down on which cores it runs, and with which arguments."""


class Host:
    """A cache, and the processes that build a region in it, each kept to a core."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache, self.compilers = folder, folder / "cache", folder / "compilers"
        self.python = warm.python_in(folder / "python")
        self.cores = sorted(os.sched_getaffinity(0))
        gxx = folder / "bin" / "g++"
        gxx.parent.mkdir()
        gxx.write_text(GXX.format(gxx=shutil.which("g++")))
        gxx.chmod(gxx.stat().st_mode | stat.S_IXUSR)
        self.environment = {
            **os.environ,
            "PATH": f"{gxx.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "TORCHINDUCTOR_CACHE_DIR": str(self.cache),
            "COMPILERS": str(self.compilers),
        }

    def build(self, count: int) -> list[dict[str, Any]]:
        """Have processes build the region at the same time; return their answers."""
        places = [str(self.cores[number % len(self.cores)]) for number in range(count)]
        ready, go = [self.folder / f"ready-{number}" for number in range(count)], self.folder / "go"
        processes = [
            subprocess.Popen(
                [str(self.python), str(SCRIPT), core, str(file), str(go)],
                env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for core, file in zip(places, ready, strict=True)
        ]  # fmt: skip
        while not all(file.exists() for file in ready) and all(process.poll() is None for process in processes):
            time.sleep(0.01)
        go.touch()
        answers = [process.communicate() for process in processes]
        for file in (*ready, go):
            file.unlink(missing_ok=True)
        assert all(process.returncode == 0 for process in processes), answers
        return [json.loads(output.splitlines()[-1]) for output, _ in answers]

    def compiled(self) -> list[tuple[str, str]]:
        """Return for each file that was made in the cache the cores of its compiler, and forget them."""
        lines = [line.split() for line in self.compilers.read_text().splitlines()] if self.compilers.exists() else []
        self.compilers.unlink(missing_ok=True)
        outputs = [(cores, arguments[arguments.index("-o") + 1]) for cores, *arguments in lines if "-o" in arguments]
        return [(cores, output) for cores, output in outputs if str(self.cache) in output]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Return a host whose cache is empty."""
    return Host(tmp_path_factory.mktemp("host"))


class Hostile:
    """Unpickling it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


@pytest.mark.slow
def test_two_workers_build_a_region_once_and_a_damaged_one_again(host: Host) -> None:
    """Each on its own core; what is built again is the same."""
    first, second = host.build(2)
    assert first["built"] + second["built"] == 1
    assert {**first, "built": 0} == {**second, "built": 0}
    compilers = host.compiled()
    assert set(Counter(output for _, output in compilers).values()) == {1}, compilers
    assert len({cores for cores, _ in compilers}) == 1, compilers  # the builder's own
    assert {cores for cores, _ in compilers} <= {str(core) for core in host.cores}

    trace = host.folder / "trace"
    for file in [path for path in host.cache.rglob("*") if path.is_file()]:
        if {"fxgraph", "aotautograd"} & set(file.parts):
            file.write_bytes(pickle.dumps(Hostile(trace)))
        else:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    (third,) = host.build(1)
    assert third == {**first, "built": 1}
    assert not trace.exists()


@dataclass
class Builder:
    """Makes its target as a compiler does, which a signal may interrupt halfway."""

    target: Path
    content: bytes = b"whole"
    is_interrupted: bool = False
    runs: int = 0

    def get_target_file_path(self) -> str:
        """Return the target."""
        return str(self.target)

    def build(self) -> None:
        """Write the target."""
        self.runs += 1
        if self.is_interrupted:
            self.target.write_bytes(self.content[:2])
            time.sleep(600)
        self.target.write_bytes(self.content)


def build_in_region(folder: Path, builders: Sequence[Builder]) -> None:
    """Build as a worker does."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    with build_cache.shared_build("region"):
        build_cache.build(str(folder / "lock"), builders)


def test_a_killed_builder_leaves_no_lock_and_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its half of a file is built again."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    target = tmp_path / "library.so"
    forks = multiprocessing.get_context("fork")
    killed = forks.Process(target=build_in_region, args=(tmp_path, [Builder(target, is_interrupted=True)]))
    killed.start()
    while not target.exists() or target.stat().st_size == 0:
        time.sleep(0.01)
    killed.kill()
    killed.join()
    again = Builder(target)
    build_in_region(tmp_path, [again])
    assert (again.runs, target.read_bytes()) == (1, b"whole")
    build_in_region(tmp_path, [again])
    assert again.runs == 1


@pytest.mark.parametrize("damage", [b"who", b"wholf", None])
def test_a_file_that_is_not_the_one_that_was_sealed_is_built_again(tmp_path: Path, damage: bytes | None) -> None:
    """Truncated, altered, or gone."""
    target = tmp_path / "library.so"
    builder = Builder(target)
    build_cache.build(str(tmp_path / "lock"), [builder])
    target.unlink()  # as in another process, which has not seen the file before
    if damage is not None:
        target.write_bytes(damage)
    build_cache.build(str(tmp_path / "lock"), [builder])
    assert (builder.runs, target.read_bytes()) == (2, b"whole")


def test_a_seal_that_is_no_seal_counts_as_none(tmp_path: Path) -> None:
    """Whatever is in it."""
    builder = Builder(tmp_path / "library.so")
    (tmp_path / "library.so").write_bytes(b"whole")
    for seal in (b"", b"{", b"[]", b"\xff", b'{"sha256": 1}'):
        (tmp_path / f"library.so{build_cache.SEALED}").write_bytes(seal)
        assert not build_cache.is_built([builder])
