"""Time budgets: in time, with an answer, and nothing that was cut off held against a plan."""

import math
from pathlib import Path
from typing import Any

import pytest

import sktune
from sktune.cli.views.search import PlainView
from sktune.core.errors import BackendError, BadInputError, InterruptedSearchError, OutOfTimeError
from sktune.core.events import EVENTS
from sktune.core.outcome import Outcome, Reason
from sktune.measure.final_comparison import FinalComparison
from sktune.reports.study import evidence, verdict_line
from sktune.runners.worker.client import Supervisor
from sktune.samplers import sampler_factory
from sktune.study.result import result_of
from sktune.study.study import TuningStudy, folder_name, sqlite_url
from sktune.tuning import loop as search_loop
from sktune.tuning.fewer_layers import search
from sktune.tuning.request import Request
from sktune.tuning.time_budget import CLOSING_S, Pace, TimeBudget, parse_duration
from tests.test_comparing import SPACE, outcome, study_of
from tests.test_final import row


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("3m", 180), ("1h", 3600), ("1h30m", 5400), ("1h1m1s", 3661), (" 10m ", 600)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """Hours, minutes and seconds, in this order."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "3 m", "m3", "30m1h", "-3m", "1.5h", "0s", "three minutes", "3m\n4s"])
def test_what_is_no_duration_is_refused_in_one_line(text: str) -> None:
    """The line shows the forms."""
    with pytest.raises(BadInputError, match="90s, 3m, 1h or 1h30m") as caught:
        parse_duration(text)
    assert "\n" not in str(caught.value)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


PACE = Pace(opening_s=10, trial_s=6, finalist_s=4, most_finalists=5, processes=2)


def simulated_search(seconds: float, pace: Pace) -> tuple[int, int, float]:
    """Return trials, finalists, and when the last of them ends, if everything takes what the pace says."""
    clock = Clock()
    budget = TimeBudget(seconds, clock.now_s, clock)
    clock.now_s += pace.opening_s
    trials = 0
    while budget.allows_trial(pace, has_plan=trials > 0):
        clock.now_s += pace.trial_s
        trials += 1
    finalists = budget.finalists(pace)
    clock.now_s += pace.opening_s + finalists * pace.finalist_s if finalists else 0
    return trials, finalists, clock.now_s - 1000


def test_most_of_the_budget_goes_to_trials_and_the_final_is_whole() -> None:
    """A third at most is set aside."""
    trials, finalists, end_s = simulated_search(180, PACE)
    assert finalists == 5
    assert trials >= (180 * 2 / 3 - PACE.opening_s - CLOSING_S) // PACE.trial_s - 1
    assert end_s <= 180


@pytest.mark.parametrize("seconds", [20, 30, 45, 60, 90, 120, 600])
@pytest.mark.parametrize("trial_s", [0.1, 2, 6, 20, 60])
def test_nothing_is_begun_that_cannot_end(seconds: float, trial_s: float) -> None:
    """Whatever the pace: fewer finalists where the time is short, and never a second trial without one."""
    trials, finalists, end_s = simulated_search(seconds, Pace(10, trial_s, 0.7 * trial_s, 5, 2))
    assert end_s <= seconds
    assert finalists or trials <= 1


def test_a_trial_that_hangs_leaves_time_to_compare_one_plan() -> None:
    """Its deadline comes before that of the call by a fresh worker and one plan."""
    budget = TimeBudget(180, 1000, Clock())
    assert budget.deadline_s - budget.trial_deadline_s(PACE, has_plan=True) == PACE.opening_s + 2 * PACE.finalist_s
    assert budget.trial_deadline_s(PACE, has_plan=False) == budget.deadline_s


def test_without_a_budget_there_is_always_time() -> None:
    """And what is left is told from the pace."""
    budget = TimeBudget(math.inf, 0, Clock())
    assert budget.allows_trial(PACE, has_plan=True)
    assert budget.finalists(PACE) == 5
    assert budget.expected_left_s(10, PACE) == 10 * 6 + PACE.final_s
    assert TimeBudget(180, 1000, Clock()).expected_left_s(math.inf, PACE) == 180 - CLOSING_S


def test_a_postponed_trial_is_taken_up_again_and_not_counted_as_an_attempt(tmp_path: Path) -> None:
    """However often the time runs out in it."""
    study_of(tmp_path, "a", [1.1])
    for _ in range(5):
        study = TuningStudy.open("a", sqlite_url(tmp_path / folder_name("a")), create=False)
        proposal = study.ask(SPACE, sampler_factory("grid"), "grid", seed=0)
        assert (proposal.number, proposal.known) == (1, None)
        study.postpone(proposal)
    assert study.finished() == 1
    assert len([record for record in study.records() if record.outcome]) == 1


@pytest.mark.parametrize(("ratios", "winner"), [([1.1, 1.3, None, 1.2], 1), ([0.9, None], None)])
def test_where_no_final_comparison_was_made_the_best_trial_is_the_answer(
    tmp_path: Path, ratios: list[float | None], winner: int | None
) -> None:
    """With its own figure, and the result says so."""
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
def test_a_final_comparison_stands_until_a_later_trial_looks_better(
    tmp_path: Path, later: list[float | None], winner: int
) -> None:
    """Trial 1 had luck in its trial and lost: no budget that is spent brings it back."""
    study_of(tmp_path, "a", [1.3, 1.35])
    study = TuningStudy.open("a", sqlite_url(tmp_path / "a"), create=False)
    rows = [row("baseline"), row("0", 0.26), row("1", 0.1)]
    study.remember(final=FinalComparison.of([(rows, "")] * 3, []).to_dict(), final_trials=2, uncompared=False)
    for ratio in later:
        proposal = study.ask(SPACE, sampler_factory("grid"), "grid", seed=0)
        study.tell(proposal, outcome(ratio), 10 / ratio if ratio else None)
    study.remember(uncompared=True)
    result = result_of(study, tmp_path / "a")
    assert result.winner is not None
    assert result.winner.number == winner
    assert result.is_compared is (winner < 2)


@pytest.mark.slow
def test_stopping_at_once_is_not_held_against_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the user does so, it is tried."""
    real = Supervisor.judge

    def judge(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Supervisor, "judge", judge)
    monkeypatch.setattr("sktune.study.study.MOST_ATTEMPTS", 1)
    for _ in range(2):
        with pytest.raises(InterruptedSearchError):
            simulated(tmp_path, trials=1)
    monkeypatch.setattr(Supervisor, "judge", real)
    result, _ = simulated(tmp_path, trials=1)
    assert [record.outcome.reason for record in result.trials if record.outcome] == [None]


@pytest.mark.slow
def test_a_worker_that_cannot_start_is_not_held_against_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full, or somebody else has the NPU: the plan that was next is tried when that is over."""
    real = Supervisor.open
    monkeypatch.setattr("sktune.study.study.MOST_ATTEMPTS", 1)
    for _ in range(2):
        opened: list[Any] = []

        def opens_once(self: Supervisor, opened: list[Any] = opened) -> Any:
            if opened:
                raise BackendError("the device is taken")
            opened.append(real(self))
            return opened[0]

        monkeypatch.setattr(Supervisor, "open", opens_once)
        with pytest.raises(BackendError, match="is taken"):
            simulated(tmp_path, trials=1)
    monkeypatch.setattr(Supervisor, "open", real)
    result, _ = simulated(tmp_path, trials=1)
    assert [record.outcome.reason for record in result.trials if record.outcome] == [None]


def test_a_proxy_and_the_whole_search_share_one_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the caller does not say when it began."""
    began: list[float | None] = []
    real = search_loop.run

    def run(request: Request, listener: Any, began_s: float | None, *findings: Any) -> Any:
        began.append(began_s)
        return real(request, listener, began_s, *findings)

    monkeypatch.setattr("sktune.tuning.fewer_layers.run", run)
    search(Request("llama", backend="sim", trials=1, proxy_layers=1, time_budget_s=60, runs=tmp_path))
    assert began[0] is not None
    assert began[0] == began[1]


def simulated(runs: Path, **options: Any) -> tuple[sktune.SearchResult, list[dict[str, Any]]]:
    """Search on the simulated device, and return the events, too."""
    events: list[dict[str, Any]] = []
    result = sktune.search("llama", backend="sim", runs=runs, listener=events.append, **options)
    return result, events


@pytest.mark.slow
def test_trials_and_time_whichever_comes_first(tmp_path: Path) -> None:
    """Three trials end long before an hour does."""
    result, events = simulated(tmp_path, trials=3, time_budget_s=3600)
    assert len(result.trials) == 3
    assert result.is_compared
    assert events[0]["trials"] == 3
    assert all(event["expected_left_s"] >= 0 for event in events if event["event"] == "trial_finished")


@pytest.mark.slow
def test_a_trial_that_time_cuts_off_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search ends with the plans it has; the next call takes the trial up under its number."""
    real = Supervisor.judge
    judged: list[str] = []

    def judge(self: Supervisor, plan: Any, log: str, *args: Any, **options: Any) -> Outcome:
        judged.append(log)
        if len(judged) == 3:
            raise OutOfTimeError
        return real(self, plan, log, *args, **options)

    monkeypatch.setattr(Supervisor, "judge", judge)
    lines: list[str] = []
    result, events = simulated(tmp_path, time_budget_s=3600)
    view = PlainView(lines.append)
    for event in events:
        view(EVENTS[event["event"]](**{key: value for key, value in event.items() if key != "event"}))
    assert [record.number for record in result.trials] == [0, 1]
    assert result.is_compared
    assert events[0]["trials"] is None
    assert any("after 2 trials; trial 2 was cut off and is left for later" in line for line in lines)
    again, _ = simulated(tmp_path, trials=3)
    assert judged == ["trial-0000.log", "trial-0001.log", "trial-0002.log", "trial-0002.log"]
    assert not any(record.outcome and record.outcome.reason is Reason.CRASHED for record in again.trials)


@pytest.mark.slow
def test_a_final_comparison_that_time_cuts_off_is_made_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the best trial is the answer, marked as such everywhere."""
    real = Supervisor.final

    def final(*args: Any, **options: Any) -> Any:
        raise OutOfTimeError

    monkeypatch.setattr(Supervisor, "final", final)
    result, _ = simulated(tmp_path, trials=3, time_budget_s=3600)
    assert result.winner is not None
    assert not result.is_compared
    assert "no time for a final comparison" in (result.folder / "report.md").read_text()
    assert (result.folder / "best_plan.yaml").is_file()
    monkeypatch.setattr(Supervisor, "final", real)
    again, events = simulated(tmp_path, trials=3)
    assert again.is_compared
    assert "compared" not in again.summary()
    assert not [event for event in events if event["event"] == "trial_started"]


@pytest.mark.slow
def test_a_budget_too_short_for_a_plan_gets_one_line(tmp_path: Path) -> None:
    """There is no answer to give."""
    with pytest.raises(BadInputError, match=r"3 s ended before a plan was tried; give more time"):
        simulated(tmp_path, time_budget_s=3)


def test_a_budget_of_no_time_is_refused() -> None:
    """In Python as on the command line."""
    with pytest.raises(BadInputError, match="above 0"):
        sktune.search("llama", time_budget_s=0)
