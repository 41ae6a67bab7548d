"""Whatever a plan does to its compiler is its outcome; the search goes on and finds the right winner."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sktune
from sktune.cli import app
from sktune.core.errors import NotDeterministicError, TargetError
from sktune.core.outcome import Outcome, Reason, Stage
from sktune.core.plan import Plan
from sktune.tuning.request import Request, bind_space, space_spec
from sktune.worker.jobs import Compare, Judge, RunnerSetup
from sktune.worker.runner import WorkerRunner
from tests.builders import TESTS

MODELS = TESTS / "models" / "faulty.py"
SPACE = MODELS.with_suffix(".yaml")


@contextmanager
def faulty(fault: str, folder: Path, cache: Path) -> Iterator[tuple[WorkerRunner, dict[str, Plan]]]:
    """Yield the runner of a faulty model, and the plans of its starting points by name."""
    request = Request(f"{MODELS}:{fault}", space=SPACE)
    spec, preset = request.target()
    wanted = space_spec(request, spec, preset)
    with WorkerRunner(RunnerSetup(spec, wanted, folder / "study", cache, 60)) as runner:
        space = bind_space(wanted, runner.open().layout, spec)
        yield runner, {point.name: space.plan(point.values) for point in space.starting_points}


def judged(runner: WorkerRunner, plan: Plan) -> Outcome:
    """Return what becomes of a plan."""
    return runner.run(Judge(plan, "trial-0000.log"), lambda stage: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason", "stage", "detail"),
    [
        ("raises", Reason.COMPILE_FAILED, Stage.COMPILE, "cannot be fused"),
        ("hangs", Reason.TIMEOUT, Stage.COMPILE, "compile did not end within 5 s"),
        ("killed", Reason.CRASHED, Stage.COMPILE, "SIGKILL"),
        ("runs_out_of_memory", Reason.CRASHED, Stage.COMPILE, "out of memory"),
        ("flips_a_bit", Reason.MISMATCH, Stage.VERIFY, "1 ulp"),
    ],
)
def test_a_fault_is_an_outcome_with_its_reason(
    tmp_path: Path, compile_cache: Path, fault: str, reason: Reason, stage: Stage, detail: str
) -> None:
    """Its scope is blamed, and the next plan is judged as if nothing had been."""
    with faulty(fault, tmp_path, compile_cache) as (runner, plans):
        if fault == "hangs":
            runner._compile_timeout_s = 5
        plan = plans["the fault alone"]
        outcome = judged(runner, plan)
        assert (outcome.reason, outcome.stage) == (reason, stage), outcome.detail
        assert detail in outcome.detail
        assert (tmp_path / "study" / outcome.log).is_file()
        assert outcome.blamed in {scope.label for scope in plan.scopes}
        if reason is Reason.MISMATCH:  # it ran, so it teaches what can be seen of it
            assert outcome.changes_bits[0] == outcome.blamed
            assert sum(piece.in_scope for piece in outcome.scope_times) == len(plan.scopes)
        runner._compile_timeout_s = 60
        assert judged(runner, plans["sound"]).is_feasible


@pytest.mark.slow
def test_a_search_continues_after_its_worker_has_died(runs: Path) -> None:
    """Plans whose scopes contain the fault are pruned, and the sound plan wins."""
    result = sktune.search(f"{MODELS}:segfaults", trials=3, space=SPACE, runs=runs)
    outcomes = {record.origin: record.outcome for record in result.trials}
    assert set(outcomes) == {"the fault alone", "both", "sound"}
    for origin in ("the fault alone", "both"):
        outcome = outcomes[origin]
        assert outcome is not None
        assert outcome.reason is Reason.CRASHED
        assert "SIGSEGV" in outcome.detail
    assert result.winner is not None
    assert [scope.first for scope in result.winner.plan.scopes] == ["layers.0.mix", "layers.1.mix"]


@pytest.mark.slow
def test_why_shows_what_a_plan_that_changes_bits_has_taught(tmp_path: Path) -> None:
    """Its scopes were timed, and are known to fail, before anything works."""
    result = sktune.search(f"{MODELS}:flips_a_bit", trials=1, space=SPACE, runs=tmp_path)
    assert [record.outcome.reason for record in result.trials if record.outcome] == [Reason.MISMATCH]
    done = CliRunner().invoke(app, ["show", result.study, "--runs", str(tmp_path), "--why", "--json"])
    assert done.exit_code == 0, done.output
    why = json.loads(done.stdout.splitlines()[-1])["why"]
    assert {blame["segment"].rpartition(".")[2] for blame in why["blamed"]} == {"fault"}
    assert any(effect["trials"] for effect in why["units"])


@pytest.mark.slow
def test_a_trial_that_has_its_figure_keeps_it(tmp_path: Path, compile_cache: Path) -> None:
    """A worker that dies while scopes are observed costs their times, and nothing else."""
    with faulty("dies_when_observed", tmp_path, compile_cache) as (runner, plans):
        outcome = judged(runner, plans["sound"])
    assert outcome.is_feasible
    assert outcome.speedup is not None
    assert outcome.scope_times == ()
    assert outcome.blamed == ""


@pytest.mark.slow
def test_a_finalist_that_ends_its_process_costs_itself_alone(
    tmp_path: Path, compile_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are compared without it, and the baseline's row comes first."""
    starts = tmp_path / "starts"
    starts.write_text("0")
    monkeypatch.setenv("FAULTY_STARTS", str(starts))
    # What other faults have compiled of the same graph must not be found.
    with faulty("ends_later_workers", tmp_path, tmp_path / "cache") as (runner, plans):
        given = [("1", plans["both"]), ("2", plans["sound"])]
        rows = runner.run(Compare(given), lambda stage: None).rows
    assert [row.name for row in rows] == ["baseline", "baseline again", "2", "1"]
    assert rows[-1].speedup is None
    assert "SIGKILL" in rows[-1].verdict


@pytest.mark.slow
def test_samples_that_cannot_be_kept_are_no_fault_of_a_plan(tmp_path: Path, compile_cache: Path) -> None:
    """A full disk, or a folder that is none."""
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "samples").write_text("no folder")
    with faulty("flips_a_bit", tmp_path, compile_cache) as (runner, plans):
        assert judged(runner, plans["sound"]).is_feasible


@pytest.mark.slow
def test_a_model_that_is_not_deterministic_is_refused(runs: Path) -> None:
    """Without a baseline that equals itself there is no verdict."""
    with pytest.raises(NotDeterministicError, match=r"not deterministic.*make the model deterministic"):
        sktune.search(f"{MODELS}:not_deterministic", trials=1, space=SPACE, runs=runs)


@pytest.mark.slow
def test_a_step_that_cannot_be_captured_is_refused(runs: Path) -> None:
    """Data-dependent control flow gets one line."""
    with pytest.raises(TargetError, match="cannot be captured as one graph"):
        sktune.search(f"{MODELS}:breaks_the_graph", trials=1, space=SPACE, runs=runs)
