"""A search on a machine that does other things: what it says, where its steps run, and what its study keeps."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sktune.backends.fingerprint import fingerprint
from sktune.backends.inductor.info import EXACT
from sktune.core.errors import StudyError
from sktune.core.plan import Plan, Scope
from sktune.core.space import SpaceSpec
from sktune.measure.machine import Machine, Placement
from sktune.study.study import TuningStudy
from sktune.targets import PresetSpec, describe
from sktune.worker.jobs import Judge, RunnerSetup, RunnerTraits
from sktune.worker.runner import WorkerRunner, environment_of
from tests.fake_runner import FakeRunner, search
from tests.tuning.test_search_loop import Events, of_kind

IDLE = Machine({(0,): 0.0, (1,): 0.02})
BUSY = Machine({(0,): 0.0, (1,): 0.98})
DEFAULT = Placement()


class Searches:
    """Searches of one study."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, runs: Path) -> None:
        self._monkeypatch, self._runs = monkeypatch, runs

    def __call__(self, machine: Machine, trials: int, **options: Any) -> tuple[Placement, list[str], dict[str, str]]:
        """Search; return the runner's placement, what was said about it, and the study's fingerprint."""
        self._monkeypatch.setattr("sktune.measure.machine.Machine.look", lambda: machine)
        runner, events = FakeRunner(), Events()
        result = search(self._runs, runner, events.append, trials=trials, **options)
        assert runner.setup is not None
        texts = [event["text"] for event in of_kind(events, "cores_chosen")]
        return runner.setup.placement, texts, dict(result.facts.fingerprint)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Searches:
    """Return searches of one study on machines that are set by hand."""
    return Searches(monkeypatch, tmp_path)


def test_an_idle_machine_is_not_mentioned(on: Searches) -> None:
    """Its studies are as they were."""
    placement, texts, fingerprint = on(IDLE, 2)
    assert placement == DEFAULT
    assert texts == []
    assert not {"threads", "cores"} & fingerprint.keys()


def test_a_busy_core_is_left_alone_and_the_study_says_so(on: Searches) -> None:
    """In one line, with what would help."""
    placement, (text,), fingerprint = on(BUSY, 2)
    assert placement == Placement(1, (0,), 1)
    assert text == (
        "1 of 2 cores is busy (core 1: 98%): steps run with 1 thread on core 0; "
        "for more, wait, or choose other cores with taskset"
    )
    assert (fingerprint["threads"], fingerprint["cores"]) == ("1", "1")


def test_a_study_begun_on_a_busy_machine_continues_on_an_idle_one(on: Searches) -> None:
    """With as many threads as before, on any core: its figures are not mixed with others."""
    on(BUSY, 2)
    placement, (text,), fingerprint = on(IDLE, 3)
    assert (placement.threads, placement.core_count) == (1, 1)
    assert text == (
        "this study was made with 1 thread on core 0, and keeps to that; name a new one with --study to use all 2 cores"
    )
    assert (fingerprint["threads"], fingerprint["cores"]) == ("1", "1")
    elsewhere, _, _ = on(Machine({(0,): 0.98, (1,): 0.0}), 4)
    assert elsewhere.cores == (1,)


def test_a_study_begun_on_an_idle_machine_continues_on_a_busy_one(on: Searches) -> None:
    """As it was made; the line says what to expect, and what would help."""
    on(IDLE, 2)
    placement, (text,), fingerprint = on(BUSY, 3)
    assert placement == DEFAULT
    assert text == (
        "1 of 2 cores is busy (core 1: 98%): this study was made with 2 threads and keeps to that, so its steps may "
        "wait for each other: wait, or choose other cores with taskset, or name a new study with --study, which would "
        "use 1 thread"
    )
    assert "threads" not in fingerprint


LINES = [
    (
        Machine({(0,): 0.0, (1,): 0.98}, user_threads=2),
        (
            "1 of 2 cores is busy (core 1: 98%): steps run with 2 threads, as OMP_NUM_THREADS says, and may wait for "
            "each other: set OMP_NUM_THREADS=1, wait, or choose other cores with taskset"
        ),
    ),
    (
        Machine({(0,): 0.9, (1,): 0.98}),
        (
            "all 2 cores are busy (core 0: 90%, core 1: 98%): steps run with 1 thread, and other load disturbs them: "
            "wait, or choose other cores with taskset"
        ),
    ),
    (
        Machine({(0,): 0.9}),
        (
            "the only core is busy (core 0: 90%): steps run with 1 thread, and other load disturbs them: wait, or "
            "choose other cores with taskset"
        ),
    ),
    (
        Machine({(core,): 0.0 for core in range(8)}, quota=2.5),
        "a quota of its control group allows 2.5 of 8 cores: steps run with 2 threads; for more, raise the quota",
    ),
    (
        Machine({(core,): 0.9 if core < 6 else 0.0 for core in range(16)}),
        (
            "6 of 16 cores are busy (up to 90%): steps run with 10 threads on 10 free cores; for more, wait, or choose "
            "other cores with taskset"
        ),
    ),
]


@pytest.mark.parametrize(("machine", "text"), LINES)
def test_the_line_says_what_is_in_the_way_and_what_would_help(on: Searches, machine: Machine, text: str) -> None:
    """Other cores, fewer threads, or waiting."""
    assert on(machine, 1)[1] == [text]


def test_a_simulation_runs_anywhere(on: Searches) -> None:
    """It times nothing."""
    placement, texts, fingerprint = on(BUSY, 2, backend="sim")
    assert placement == DEFAULT
    assert texts == []
    assert "threads" not in fingerprint


def test_an_answered_search_does_not_look(on: Searches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored result comes immediately."""
    on(BUSY, 2)

    def look() -> Machine:
        raise AssertionError

    monkeypatch.setattr("sktune.measure.machine.Machine.look", look)
    assert len(search(tmp_path, FakeRunner(), trials=2).trials) == 2


def test_other_differences_are_still_refused(on: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the user's own number of threads is."""
    on(BUSY, 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with pytest.raises(StudyError, match="OMP_NUM_THREADS"):
        on(BUSY, 3)


MODEL = """
import json, os, sktune, torch

def target():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4))
    seen = {
        "cores": sorted(os.sched_getaffinity(0)),
        "torch": torch.get_num_threads(),
        "variables": {name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")},
    }
    prefill = lambda seed, steps: [(torch.ones(1, 4),)] * steps
    return sktune.Target(module, module.forward, prefill, {}, json.dumps(seen))
"""
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def seen_by_worker(folder: Path, cache: Path, backend: str, placement: Placement = DEFAULT) -> dict[str, Any]:
    """Return what a worker sees of its threads and cores."""
    (folder / "seen.py").write_text(MODEL)
    spec, _ = describe(f"{folder / 'seen.py'}:target", backend=backend)
    setup = RunnerSetup(spec, SpaceSpec(), folder / "study", cache, 60, placement=placement)
    with WorkerRunner(setup) as worker:
        seen: dict[str, Any] = json.loads(worker.open().description.partition("; ")[0])
    return seen


def test_a_worker_runs_where_it_was_placed(tmp_path: Path, compile_cache: Path) -> None:
    """On its cores, with its threads; this process stays where it was."""
    before = os.sched_getaffinity(0)
    seen = seen_by_worker(tmp_path, compile_cache, "inductor", Placement(3, (max(before),), 1))
    assert seen["cores"] == [max(before)]
    assert seen["variables"]["OMP_NUM_THREADS"] == "3"
    assert os.sched_getaffinity(0) == before


def test_a_simulating_worker_has_one_thread(
    tmp_path: Path, compile_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For torch and BLAS: it times nothing, and threads that wait for each other cost minutes on a busy machine."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    seen = seen_by_worker(tmp_path, compile_cache, "sim")
    assert seen["torch"] == 1
    assert {name: seen["variables"].get(name) for name in VARIABLES} == dict.fromkeys(VARIABLES, "1")


def test_threads_of_simulating_workers_are_not_in_fingerprints(monkeypatch: pytest.MonkeyPatch) -> None:
    """They change no figure; the user's own number is kept."""
    spec = PresetSpec("llama", scale="tiny", backend="sim")
    before = fingerprint(spec, SpaceSpec())
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert fingerprint(spec, SpaceSpec()) == before
    assert environment_of(spec, Path("cache"), None)["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("SKTUNE_PLAN", "plan.yaml")  # of the programs that this shell starts
    assert "SKTUNE_PLAN" not in environment_of(spec, Path("cache"), None)


def test_a_trial_reads_the_studys_records_a_fixed_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the proposal and once for everything else: each time asks the database."""
    calls: list[int] = []
    read = TuningStudy.records

    def records(study: TuningStudy) -> object:
        calls.append(1)
        return read(study)

    monkeypatch.setattr(TuningStudy, "records", records)
    counts = []
    for trials in (2, 6):
        calls.clear()
        search(tmp_path / str(trials), FakeRunner(traits=RunnerTraits(measures_time=False)), trials=trials)
        counts.append(len(calls))
    assert counts[1] - counts[0] <= 2 * 4


@pytest.mark.parametrize(
    ("loads", "placement", "crowded"),
    [
        ([0.0, 0.0], Placement(), False),
        ([0.9, 0.0], Placement(), True),
        ([0.9, 0.9], Placement(), True),
        ([0.9, 0.0], Placement(1, (1,), 1), False),
        ([0.0, 0.9], Placement(1, (1,), 1), False),
        ([0.0, 0.9, 0.0], Placement(2, (0, 1), 2), True),
        ([0.9, 0.9, 0.0, 0.0], Placement(2), False),
        ([], Placement(), False),
    ],
)
def test_cores_are_crowded_if_threads_have_to_share_them(
    loads: list[float], placement: Placement, crowded: bool
) -> None:
    """With processes of others; only the cores that they are kept to count, and a single thread waits for nobody."""
    assert Machine({(core,): load for core, load in enumerate(loads)}).is_crowded(placement) is crowded


@pytest.mark.slow
def test_load_that_comes_later_is_noticed_before_the_next_trial(
    tmp_path: Path, compile_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that wait leave their cores from then on, and the trial's line says so; the code stays the same."""
    busy = False
    monkeypatch.setattr(
        "sktune.measure.machine.Machine.look", lambda: Machine({(core,): 0.95 if busy else 0.0 for core in range(2)})
    )
    spec = PresetSpec("llama", scale="tiny", backend="inductor")
    setup = RunnerSetup(spec, SpaceSpec(), tmp_path, compile_cache, 300.0)
    plan = Plan((Scope("model.layers.0.mlp", "model.layers.0.mlp", tuple(EXACT.items())),))
    with WorkerRunner(setup) as runner:
        quiet = runner.run(Judge(plan, "trial-0000.log"), lambda stage: None)
        busy = True
        crowded = runner.run(Judge(plan, "trial-0001.log"), lambda stage: None)
    assert quiet.speedup and crowded.speedup
    text = "other processes need the cores: threads that wait leave theirs"
    assert (text in quiet.noise, text in crowded.noise) == (False, True)
    assert quiet.code_digest == crowded.code_digest
