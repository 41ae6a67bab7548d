"""Runs faults: each in a scene of its own, in some threads, with a line of JSON for each."""

import itertools
import json
import shutil
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.campaign.faults import Fault, draw
from benchmarks.campaign.injections import NEEDS_SHIM, inject, limit_s
from benchmarks.campaign.invariants import Aftermath, Reference, violations
from benchmarks.campaign.scene import Scene, Usual, build_shim, record
from tests import warm

PATIENCE_S = 30.0
"""How long killed processes may take to end on a busy machine."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one fault.

    Attributes:
        index: its place in the campaign.
        fault: what was injected.
        way: how; empty if it could not be injected.
        exit_codes: of the disturbed search and the next one.
        message: the last line of the disturbed search.
        violations: what did not hold.
        seconds: how long both searches took.
    """

    index: int
    fault: Fault
    way: str
    exit_codes: tuple[int | None, int | None]
    message: str
    violations: tuple[str, ...]
    seconds: float

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Verdict":
        """Inverse of ``to_json``."""
        values = json.loads(line)
        lists = {name: tuple(values[name]) for name in ("exit_codes", "violations")}
        return cls(**{**values, **lists, "fault": Fault(**values["fault"])})


class Campaign:
    """Runs faults below ``folder``; scenes in which something did not hold are kept there.

    Searches and workers start warm while it is entered; the preloaded library is in the process that they come from.

    Args:
        folder: gets a folder for each scene.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._shim = build_shim(folder)
        self._references: dict[str, Reference] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        preloaded = {"LD_PRELOAD": str(self._shim)} if self._shim else {}
        self._warm = warm.sitting(
            ("benchmarks.campaign.command", "benchmarks.campaign.server"), OMP_NUM_THREADS="1", **preloaded
        )
        self._warm.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._warm.__exit__(None, None, None)

    def reference(self, subject: str) -> Reference:
        """Return the undisturbed search of a subject, run once."""
        with self._lock:
            if subject not in self._references:
                scene = Scene(self._folder / f"reference-{subject}", subject)
                shutil.rmtree(scene.folder)
                scene = Scene(scene.folder, subject)
                scene.prepare()
                for name in ("cold", "undisturbed"):  # the first one compiles, and starts the warm process
                    shutil.rmtree(scene.study, ignore_errors=True)
                    search = scene.start(name)
                    began = time.monotonic()
                    if search.end(600) != 0:
                        raise RuntimeError(f"the undisturbed search failed: {search.stderr.read_text()}")
                    seconds = time.monotonic() - began
                usual = Usual(seconds, len(search.events))
                trials, files = record(scene.database), frozenset(scene.files())
                self._references[subject] = Reference(usual, trials, files, scene.cache)
        return self._references[subject]

    def run(self, index: int, fault: Fault, **variables: str) -> Verdict:
        """Inject one fault, run the same command again, and check what must hold.

        Args:
            index: of the scene.
            fault: what is injected.
            variables: added to the environment of both searches.
        """
        reference, began = self.reference(fault.subject), time.monotonic()
        scene = Scene(
            self._folder / f"fault-{index:04d}", fault.subject, reference.cache,
            self._shim if fault.kind in NEEDS_SHIM else None, variables,
        )  # fmt: skip
        injected = inject(scene, fault, reference.usual)
        left = scene.left_processes(PATIENCE_S)
        stored = {} if fault.kind.startswith("database") else _stored(scene)
        texts = [injected.search.stderr.read_text(errors="replace")]
        again = scene.start("again")
        code = again.end(limit_s(reference.usual))
        problems = list[str]()
        if injected.refused:
            refusal = again.stderr.read_text(errors="replace")
            if code != 2 or injected.refused not in refusal or len(refusal.strip().splitlines()) != 1:
                problems.append(f"not refused in one line with {injected.refused!r}: {code}, {refusal!r}")
            injected.repair()
            again = scene.start("repaired")
            code = again.end(limit_s(reference.usual))
        left += scene.left_processes(PATIENCE_S)
        texts.append(again.stderr.read_text(errors="replace"))
        reported = [event for event in injected.search.events if event["event"] == "trial_finished"]
        codes = injected.exit_code, code
        seen = Aftermath(reported, stored, again.events, codes, (texts[0], texts[1]), left)
        problems += violations(scene, fault, reference, seen)
        if not problems:
            shutil.rmtree(scene.folder, ignore_errors=True)
        message = (texts[0].strip().splitlines() or [""])[-1][:300]
        return Verdict(index, fault, injected.way, codes, message, tuple(problems), time.monotonic() - began)


def _stored(scene: Scene) -> Mapping[int, Any]:
    try:
        return record(scene.database)
    except sqlite3.Error:  # it was killed before the tables were made
        return {}


def numbered(
    faults: int, seed: int, only: str | None = None, subject: str | None = None
) -> Iterator[tuple[int, Fault]]:
    """Return the faults of a campaign with their places."""
    return zip(range(faults), draw(seed, only, subject), strict=False)


def run_all(
    campaign: Campaign, todo: Iterator[tuple[int, Fault]], jobs: int, report: Callable[[Verdict], None]
) -> None:
    """Run faults in ``jobs`` threads and report each verdict."""
    with ThreadPoolExecutor(jobs) as pool:
        waiting = deque(itertools.islice(todo, None))
        running = {pool.submit(campaign.run, *waiting.popleft()) for _ in range(min(jobs, len(waiting)))}
        while running:
            done = next(as_completed(running))
            running.remove(done)
            report(done.result())
            if waiting:
                running.add(pool.submit(campaign.run, *waiting.popleft()))
