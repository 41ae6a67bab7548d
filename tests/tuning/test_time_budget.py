"""Time budgets: a search ends in time with an answer, and a trial that was cut off is not a failure."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from sktune.cli import main
from sktune.core.errors import BadInputError
from sktune.core.search_options import parse_duration
from sktune.measure.final_comparison import FinalComparison
from sktune.reports.plan_output import evidence
from sktune.reports.study import verdict_line
from sktune.samplers import find_strategy
from sktune.study.result import result_of
from sktune.study.study import TuningStudy, folder_name, sqlite_url
from sktune.tuning.request import Request
from sktune.tuning.time_budget import CLOSING_S, TimeBudget
from sktune.worker.jobs import DurationEstimates
from tests.builders import SPACE, checked, one_line_error, outcome, row, sktune_command, study_of
from tests.fake_runner import Clock


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("3m", 180), ("1h", 3600), ("1h30m", 5400), ("1h1m1s", 3661), (" 10m ", 600)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """Hours, minutes and seconds, in this order."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "3 m", "m3", "30m1h", "-3m", "1.5h", "0s", "three minutes", "3m\n4s"])
def test_an_invalid_duration_is_refused_in_one_line(text: str) -> None:
    """The line shows valid forms."""
    with one_line_error(BadInputError, "90s, 3m, 1h or 1h30m"):
        parse_duration(text)


ESTIMATES = DurationEstimates(opening_s=10, trial_s=6, finalist_s=4, max_finalists=5, processes=2)


def simulated_search(seconds: float, estimates: DurationEstimates) -> tuple[int, int, float]:
    """Return trials, finalists, and when the last of them ends, if everything takes as long as estimated."""
    clock = Clock()
    budget = TimeBudget(seconds, clock.now_s, clock)
    clock.now_s += estimates.opening_s
    trials = 0
    while budget.allows_trial(estimates, has_plan=trials > 0):
        clock.now_s += estimates.trial_s
        trials += 1
    finalists = budget.finalists(estimates)
    clock.now_s += estimates.opening_s + finalists * estimates.finalist_s if finalists else 0
    return trials, finalists, clock.now_s - 1000


def test_most_of_the_budget_goes_to_trials_and_all_finalists_are_compared() -> None:
    """At most a third is set aside."""
    trials, finalists, end_s = simulated_search(180, ESTIMATES)
    assert finalists == 5
    assert trials >= (180 * 2 / 3 - ESTIMATES.opening_s - CLOSING_S) // ESTIMATES.trial_s - 1
    assert end_s <= 180


@pytest.mark.parametrize("seconds", [20, 30, 45, 60, 90, 120, 600])
@pytest.mark.parametrize("trial_s", [0.1, 2, 6, 20, 60])
def test_nothing_is_started_that_cannot_finish(seconds: float, trial_s: float) -> None:
    """However long trials take: if time is short there are fewer finalists, but a second trial implies one."""
    trials, finalists, end_s = simulated_search(seconds, DurationEstimates(10, trial_s, 0.7 * trial_s, 5, 2))
    assert end_s <= seconds
    assert finalists or trials <= 1


def test_a_trial_that_hangs_leaves_time_to_compare_one_plan() -> None:
    """Its deadline leaves time for a fresh worker and one plan."""
    budget = TimeBudget(180, 1000, Clock())
    assert (
        budget.deadline_s - budget.trial_deadline_s(ESTIMATES, has_plan=True)
        == ESTIMATES.opening_s + 2 * ESTIMATES.finalist_s
    )
    assert budget.trial_deadline_s(ESTIMATES, has_plan=False) == budget.deadline_s


def test_without_a_budget_there_is_always_time() -> None:
    """The time left is estimated."""
    budget = TimeBudget(math.inf, 0, Clock())
    assert budget.allows_trial(ESTIMATES, has_plan=True)
    assert budget.finalists(ESTIMATES) == 5
    assert budget.expected_left_s(10, ESTIMATES) == 10 * 6 + ESTIMATES.final_s
    assert TimeBudget(180, 1000, Clock()).expected_left_s(math.inf, ESTIMATES) == 180 - CLOSING_S


def test_a_postponed_trial_is_run_again_and_not_counted_as_an_attempt(tmp_path: Path) -> None:
    """However often the time runs out."""
    study_of(tmp_path, "a", [1.1])
    for _ in range(5):
        study = TuningStudy.open("a", sqlite_url(tmp_path / folder_name("a")), create=False)
        proposal = study.ask(SPACE, find_strategy("grid"), seed=0)
        assert (proposal.number, proposal.known) == (1, None)
        study.postpone(proposal)
    assert study.finished() == 1
    assert len([record for record in study.records() if record.outcome]) == 1


@pytest.mark.parametrize(("ratios", "winner"), [([1.1, 1.3, None, 1.2], 1), ([0.9, None], None)])
def test_without_a_final_comparison_the_best_trial_is_the_answer(
    tmp_path: Path, ratios: list[float | None], winner: int | None
) -> None:
    """With the trial's figure, and the result says so."""
    study_of(tmp_path, "a", ratios)
    study = TuningStudy.open("a", sqlite_url(tmp_path / "a"), create=False)
    study.remember(uncompared=True)
    result = result_of(study, tmp_path / "a")
    assert (result.winner.number if result.winner else None) == winner
    assert result.summary()["compared"] is False
    if result.winner:
        assert "no time for a final comparison" in verdict_line(result)
        assert "not made" in evidence(result)["final_comparison"]
        assert result.summary()["bit_identical"] is True
    else:
        assert "run the same command again" in verdict_line(result)


@pytest.mark.parametrize(("later", "winner"), [([], 0), ([1.25, None], 0), ([1.4], 2)])
def test_a_final_comparison_is_valid_until_a_later_trial_looks_better(
    tmp_path: Path, later: list[float | None], winner: int
) -> None:
    """Trial 1 was lucky in its trial and lost the comparison; it does not win when a time budget ends."""
    study_of(tmp_path, "a", [1.3, 1.35])
    study = TuningStudy.open("a", sqlite_url(tmp_path / "a"), create=False)
    rows = [row("baseline"), row("0", 0.26), row("1", 0.1)]
    study.remember(final=FinalComparison.of([(rows, "")] * 3, []), final_trials=2, uncompared=False)
    for ratio in later:
        proposal = study.ask(SPACE, find_strategy("grid"), seed=0)
        study.tell(proposal, outcome(ratio), 10 / ratio if ratio else None)
    study.remember(uncompared=True)
    result = result_of(study, tmp_path / "a")
    assert result.winner is not None
    assert result.winner.number == winner
    assert result.is_compared is (winner < 2)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_a_limit_that_is_no_time_is_refused(value: float) -> None:
    """Neither limit compares with it."""
    with pytest.raises(BadInputError, match="--compile-timeout must be a number of seconds, more than 0"):
        Request("llama", compile_timeout_s=value)
    with pytest.raises(BadInputError, match="--time-budget must be"):
        Request("llama", time_budget_s=math.nan if value > 0 else value)


@pytest.mark.parametrize("arguments", [("--time-budget", ""), ("--storage=",), ("--runs", " ")])
def test_an_empty_value_is_refused(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unset variable of a script is not a search without a limit, in another database or in another folder."""
    monkeypatch.setattr(sys, "argv", ["sktune", "search", "--model", "llama", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"the value after {arguments[0]} is empty" in capsys.readouterr().err


def test_a_full_standard_output_is_an_error_in_one_line() -> None:
    """Also where the error itself would be printed there."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sktune.cli", "studies", "--json"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "error: [Errno 28] No space left on device" in done.stderr and "Traceback" not in done.stderr


def test_an_analysis_names_the_budget_that_was_given(tmp_path: Path) -> None:
    """Not what is left of it after its own files."""
    done = sktune_command("analyze", "--model", "llama", "--backend", "sim", "--time-budget", "1s", "--json",
                          "--runs", str(tmp_path))  # fmt: skip
    budgets = [event["time_budget_s"] for event in checked(done.stdout) if event["event"] == "search_started"]
    assert budgets == [1.0]
