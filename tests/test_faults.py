"""Whatever a plan does to its compiler is its outcome; the search goes on and finds the right winner."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sktune
from sktune.cli import app
from sktune.core.errors import BackendError, NotDeterministicError, TargetError
from sktune.core.outcome import Reason

MODELS = Path(__file__).parent / "models" / "faulty.py"
SPACE = MODELS.with_suffix(".yaml")


@pytest.mark.slow
@pytest.mark.usefixtures("one_final_process")
@pytest.mark.parametrize(
    ("fault", "reason", "detail"),
    [
        ("raises", Reason.COMPILE_FAILED, "cannot be fused"),
        ("hangs", Reason.TIMEOUT, "within 20 s"),
        ("segfaults", Reason.CRASHED, "SIGSEGV"),
        ("killed", Reason.CRASHED, "SIGKILL"),
        ("runs_out_of_memory", Reason.CRASHED, "out of memory"),
        ("flips_a_bit", Reason.MISMATCH, "1 ulp"),
    ],
)
def test_a_fault_is_pruned_with_its_reason(runs: Path, fault: str, reason: Reason, detail: str) -> None:
    """Plans whose scopes hold the fault are pruned, and the sound plan wins."""
    result = sktune.search(f"{MODELS}:{fault}", trials=3, space=SPACE, runs=runs, compile_timeout_s=20)
    outcomes = {record.origin: record.outcome for record in result.trials}
    plans = {record.origin: record.plan for record in result.trials}
    assert set(outcomes) == {"the fault alone", "both", "sound"}
    for origin in ("the fault alone", "both"):
        outcome = outcomes[origin]
        assert outcome is not None
        assert outcome.reason is reason, outcome.detail
        assert detail in outcome.detail
        assert (result.folder / outcome.log).is_file()
        assert outcome.blamed in {scope.label for scope in plans[origin].scopes}
        if reason is Reason.MISMATCH:  # it ran, so it teaches what can be seen of it
            assert outcome.inexact[0] == outcome.blamed
            assert sum(piece.in_scope for piece in outcome.scope_times) == len(plans[origin].scopes)
    assert result.winner is not None
    assert [scope.first for scope in result.winner.plan.scopes] == ["layers.0.mix", "layers.1.mix"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_final_process")
def test_why_tells_what_a_plan_that_changes_bits_has_taught(tmp_path: Path) -> None:
    """Its scopes were timed, and are known to fail, before anything works."""
    result = sktune.search(f"{MODELS}:flips_a_bit", trials=1, space=SPACE, runs=tmp_path)
    assert [record.outcome.reason for record in result.trials if record.outcome] == [Reason.MISMATCH]
    told = CliRunner().invoke(app, ["show", result.study, "--runs", str(tmp_path), "--why", "--json"])
    assert told.exit_code == 0, told.output
    why = json.loads(told.stdout.splitlines()[-1])["why"]
    assert {blame["segment"].rpartition(".")[2] for blame in why["blamed"]} == {"fault"}
    assert any(effect["trials"] for effect in why["units"])


@pytest.mark.slow
@pytest.mark.usefixtures("one_final_process")
def test_a_trial_that_has_its_figure_keeps_it(runs: Path, tmp_path: Path) -> None:
    """A worker that dies while scopes are observed costs their times, and nothing else."""
    space = tmp_path / "space.yaml"
    space.write_text(SPACE.read_text().replace("[mix, fault]", "[mix]").partition("    the fault alone")[0]
                     + "    sound: {layer.mix: new}\n")  # fmt: skip
    result = sktune.search(f"{MODELS}:dies_when_observed", trials=1, space=space, runs=runs)
    (outcome,) = [record.outcome for record in result.trials]
    assert outcome is not None and outcome.is_feasible
    assert outcome.speedup is not None
    assert outcome.scope_times == ()
    assert outcome.blamed == ""


@pytest.mark.slow
@pytest.mark.usefixtures("one_final_process")
def test_a_finalist_that_ends_its_process_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are compared without it, and the answer is one of them."""
    starts = tmp_path / "starts"
    starts.write_text("0")
    monkeypatch.setenv("FAULTY_STARTS", str(starts))
    # What other faults have compiled of the same graph must not be found.
    result = sktune.search(f"{MODELS}:ends_later_workers", trials=3, space=SPACE, runs=tmp_path)
    assert all(record.outcome and record.outcome.is_feasible for record in result.trials)
    assert result.winner is not None
    assert result.is_compared
    assert [scope.first for scope in result.winner.plan.scopes] == ["layers.0.mix", "layers.1.mix"]
    both = next(str(record.number) for record in result.trials if record.origin == "both")
    assert "SIGKILL" in next(row.verdict for row in result.final if row.name == both)
    assert "SIGKILL" in (result.folder / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("one_final_process")
def test_samples_that_cannot_be_kept_are_no_fault_of_a_plan(tmp_path: Path) -> None:
    """A full disk, or a folder that is none."""
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "samples").write_text("no folder")
    result = sktune.search(f"{MODELS}:flips_a_bit", trials=3, space=SPACE, runs=tmp_path, study="s")
    assert result.winner is not None
    assert [scope.first for scope in result.winner.plan.scopes] == ["layers.0.mix", "layers.1.mix"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_final_process")
def test_a_model_that_is_not_deterministic_is_refused(runs: Path) -> None:
    """Without a baseline that equals itself there is no verdict."""
    with pytest.raises(NotDeterministicError, match=r"does not equal itself.*make the model deterministic"):
        sktune.search(f"{MODELS}:not_deterministic", trials=1, space=SPACE, runs=runs)


@pytest.mark.slow
@pytest.mark.usefixtures("one_final_process")
def test_a_step_that_cannot_be_captured_is_refused(runs: Path) -> None:
    """Data-dependent control flow gets one line."""
    with pytest.raises(BackendError, match="cannot be captured as one graph"):
        sktune.search(f"{MODELS}:breaks_the_graph", trials=1, space=SPACE, runs=runs)


@pytest.mark.slow
@pytest.mark.usefixtures("one_final_process")
@pytest.mark.parametrize(
    ("function", "message"),
    [("returns_nothing", "returns NoneType; return a sktune.Target"), ("hang", "did you mean 'hangs'")],
)
def test_a_function_that_is_no_target_is_refused(runs: Path, function: str, message: str) -> None:
    """The worker's error reaches the user as it is."""
    with pytest.raises(TargetError, match=message):
        sktune.search(f"{MODELS}:{function}", trials=1, space=SPACE, runs=runs)
