"""What the supervisor gives its workers."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from sktune.backends.fingerprint import fingerprint
from sktune.core.errors import TargetError
from sktune.core.plan import Plan
from sktune.core.space import SpaceSpec
from sktune.runners.worker.client import Supervisor
from sktune.targets import PresetSpec
from sktune.tuning.prepare import bind_space, space_spec
from sktune.tuning.request import Request
from tests.models import page_faults

MODELS = Path(__file__).parent / "models"


@pytest.mark.parametrize(("own", "keeps"), [({}, True), ({"MALLOC_MMAP_THRESHOLD_": "131072"}, False)])
def test_a_worker_keeps_the_memory_that_it_frees(
    tmp_path: Path, compile_cache: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, str], keeps: bool
) -> None:
    """Steps do not take it from the kernel again and again, unless the user wants it so; studies say which."""
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    request = Request(f"{page_faults.__file__}:target")
    spec, preset = request.target()
    wanted = space_spec(request, spec, preset)
    assert all(f"{name}={value}" in fingerprint(spec, wanted)["memory"] for name, value in own.items())
    with Supervisor(spec, wanted, tmp_path, compile_cache, 60) as supervisor:
        faults = int(supervisor.open().description)
    again = page_faults.ROUNDS * page_faults.BLOCK_BYTES // resource.getpagesize()
    assert faults < again / 10 if keeps else faults > again


@pytest.mark.parametrize("place", ["prefill", "decode_step"])
def test_memory_that_is_lacking_is_told_from_a_mistake(tmp_path: Path, compile_cache: Path, place: str) -> None:
    """The line says what makes the model smaller, wherever it first takes the memory."""
    (tmp_path / "large.py").write_text(
        "import torch\nimport sktune\n\n"
        "def lacking(*arguments):\n    raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 9 GiB')\n\n"
        "def target():\n"
        "    module = torch.nn.Sequential(torch.nn.Linear(4, 4))\n"
        "    prefill = lambda seed, steps: [(torch.ones(1, 4),)] * steps\n"
        f"    sound = dict(decode_step=module.forward, prefill=prefill)\n"
        f"    return sktune.Target(module, **{{**sound, {place!r}: lacking}})\n"
    )
    request = Request(f"{tmp_path / 'large.py'}:target")
    spec, preset = request.target()
    with (
        Supervisor(spec, space_spec(request, spec, preset), tmp_path / "study", compile_cache, 60) as supervisor,
        pytest.raises(TargetError, match=r"not fit into memory: CUDA out of memory.*; choose a smaller"),
    ):
        supervisor.open()


@pytest.fixture
def supervisor(tmp_path: Path, compile_cache: Path) -> Iterator[tuple[Supervisor, Plan]]:
    """Return a supervisor of a sound model's worker, and a plan."""
    request = Request(f"{MODELS / 'faulty.py'}:flips_a_bit", space=MODELS / "faulty.yaml")
    spec, preset = request.target()
    wanted = space_spec(request, spec, preset)
    with Supervisor(spec, wanted, tmp_path, compile_cache, 60) as own:
        space = bind_space(wanted, own.open().layout, spec)
        yield own, next(space.plan(point.values) for point in space.starting_points if point.name == "sound")


def test_measuring_may_take_longer_than_a_stage_while_the_worker_is_alive(
    supervisor: tuple[Supervisor, Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison of many plans, or of slow ones, is no process that hangs."""
    own, plan = supervisor
    monkeypatch.setattr("sktune.runners.worker.client.LEAST_RUN_TIMEOUT_S", 0.5)

    def report(stage: str) -> None:
        if stage == "verify":
            own._compile_timeout_s = 0.5  # of the next stage, which takes seconds

    rows, _ = own.final([("1", plan)], report, references=False)
    assert [row.name for row in rows] == ["baseline", "baseline again", "1"]


def test_a_score_is_kept_where_the_budget_ends_while_scopes_are_observed(
    supervisor: tuple[Supervisor, Plan],
) -> None:
    """What was measured in time counts."""
    own, plan = supervisor

    def report(stage: str) -> None:
        if stage == "observe":
            own.deadline_s = 0.0

    outcome = own.judge(plan, "trial-0000.log", report)
    assert outcome.speedup is not None
    assert outcome.scope_times == ()


def test_two_searches_of_one_process_have_their_own_work_folders(tmp_path: Path) -> None:
    """So do two containers, in which process numbers begin anew."""
    spec = PresetSpec("llama", scale="tiny", backend="npu", device="npu")
    for _ in range(2):
        with Supervisor(spec, SpaceSpec(), tmp_path, tmp_path / "cache", 60) as own:
            own.start()
    assert len(list((tmp_path / "work").iterdir())) == 2
