"""What a search decides: its trials, when it ends, what it claims; on a runner that is a law (tests/fake_runner.py)."""

import logging
import math
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sktune.cli.views.search import PlainView
from sktune.core.errors import BackendError, BadInputError, InterruptedSearchError, OutOfTimeError
from sktune.core.events import EVENTS
from sktune.core.outcome import Outcome, Reason, Stage
from sktune.core.plan import Plan
from sktune.runners.base import RunnerSetup, RunnerTraits
from sktune.study.facts import DeliveryRecord
from sktune.tuning import loop
from sktune.tuning.fewer_layers import search as search_with_proxy
from sktune.tuning.request import Request
from tests.builders import decoder_layout
from tests.fake_runner import FINALIST_S, OPENING_S, TRIAL_S, FakeRunner, search

LAYER = decoder_layout(("dense",), ("self_attn", "mlp"), outside=False)
"""Of which there are four plans."""
COMPUTED = RunnerTraits(measures_time=False)

Events = list[dict[str, Any]]


def of_kind(events: Events, kind: str) -> Events:
    """Return the events of one kind."""
    return [event for event in events if event["event"] == kind]


def holds(plan: Plan, unit: str) -> bool:
    """Whether a scope of ``plan`` begins at ``unit``."""
    return any(scope.first.endswith(unit) for scope in plan.scopes)


def holds_mlp(plan: Plan) -> bool:
    """Whether a scope of ``plan`` ends with an MLP."""
    return any(scope.last.endswith("mlp") for scope in plan.scopes)


class TestTrials:
    """One after the other, each once."""

    def test_the_fastest_plan_wins_and_its_code_is_delivered(self, tmp_path: Path) -> None:
        """Starting points come first; the winner is compared in fresh processes, and its figure is the law's."""
        runner, events = FakeRunner(traits=RunnerTraits(final_processes=3)), Events()
        result = search(tmp_path, runner, events.append)
        assert [record.origin for record in result.trials][:2] == ["attention", "each layer"]
        assert result.winner is not None
        assert result.trials[result.winner.number].origin == "each layer"
        assert result.winner.speedup.ratio == pytest.approx(10 / 7.6)
        assert result.processes == 3
        assert runner.asked[-1] == ("deliver", (result.winner.plan,))
        assert len({record.plan for record in result.trials}) == 6 == runner.count("judge")

    def test_the_same_command_asks_for_nothing_and_more_trials_go_on(self, tmp_path: Path) -> None:
        """What is in the study is the answer."""
        search(tmp_path, FakeRunner())
        again, events = FakeRunner(), Events()
        search(tmp_path, again, events.append)
        assert again.asked == []
        assert [event["event"] for event in events] == ["study_finished"]
        search(tmp_path, FakeRunner(), events.append, trials=8)
        assert [event["trial"] for event in of_kind(events, "trial_finished")] == [6, 7]

    def test_a_space_is_tried_to_its_last_plan(self, tmp_path: Path) -> None:
        """Then the search has its answer, however many trials it may run; probes are no plans of the space."""
        events = Events()
        result = search(tmp_path, FakeRunner(layout=LAYER), events.append, trials=40)
        assert len({record.plan for record in result.trials if not record.is_probe}) == 4
        assert of_kind(events, "space_exhausted")
        assert result.winner is not None
        again = FakeRunner(layout=LAYER)
        search(tmp_path, again, trials=40)
        assert again.asked == []

    def test_twins_are_measured_once(self, tmp_path: Path) -> None:
        """Plans that become the same kernels share a figure, and one of them is compared."""
        runner = FakeRunner(kernels=lambda plan: str(len(plan.scopes)))
        result = search(tmp_path, runner)
        twins = [record for record in result.trials if record.outcome and record.outcome.same_as is not None]
        assert twins
        for record in twins:
            assert record.outcome is not None
            twin = result.trials[record.outcome.same_as or 0]
            assert twin.outcome is not None
            assert record.outcome.speedup == twin.outcome.speedup
            assert record.outcome.detail == f"the same SuperKernels as trial {twin.number}"
        compared = [row for row in result.final if row.name.isdigit()]
        assert len(compared) == len({len(record.plan.scopes) for record in result.trials})

    def test_a_plan_that_fails_teaches_and_never_wins(self, tmp_path: Path) -> None:
        """Where all fail the answer is "no scope", from the baseline alone."""
        failure = Outcome(Reason.COMPILE_FAILED, "no", stage=Stage.COMPILE)
        result = search(tmp_path, FakeRunner(fault=lambda plan: failure), trials=4)
        assert result.verdict is not None
        assert result.winner is None
        assert result.pruned()["compile_failed"] == 4
        assert [row.name for row in result.final] == ["baseline", "baseline again"]

    def test_slower_plans_are_pruned_with_their_figure(self, tmp_path: Path) -> None:
        """Beyond the noise floor, which the baseline against itself shows."""
        result = search(tmp_path, FakeRunner(latency_ms=lambda plan: 10.0 + len(plan.scopes)), trials=4)
        outcomes = [record.outcome for record in result.trials if record.outcome]
        assert {outcome.reason for outcome in outcomes} == {Reason.SLOWER}
        assert all(outcome.speedup and outcome.noise_floor >= 0.001 for outcome in outcomes)
        assert result.winner is None

    def test_a_search_is_settled_once_nothing_is_left_to_gain(self, tmp_path: Path) -> None:
        """It ends before its trials do."""
        events = Events()
        search(tmp_path, FakeRunner(latency_ms=lambda plan: 10.0), events.append, trials=20, until_converged=True)
        (settled,) = of_kind(events, "settled")
        assert settled["expected_gain_left"] < settled["threshold"]
        assert len(of_kind(events, "trial_finished")) < 20


class TestNoiseFloor:
    """The baseline against itself."""

    def test_it_is_sampled_at_the_start_and_every_ten_trials(self, tmp_path: Path) -> None:
        """Also by a search that goes on."""
        events = Events()
        search(tmp_path, FakeRunner(), events.append, trials=5)
        search(tmp_path, FakeRunner(), events.append, trials=12)
        assert [event["before_trial"] for event in of_kind(events, "noise_floor")] == [0, 10]

    def test_what_is_computed_has_none(self, tmp_path: Path) -> None:
        """No interval is shown either, and no bit was compared."""
        runner, events = FakeRunner(traits=COMPUTED), Events()
        result = search(tmp_path, runner, events.append, backend="sim")
        assert runner.count("sample_noise_floor") == 0
        assert all(event["simulated"] and event["ci95"] is None for event in of_kind(events, "trial_finished"))
        assert result.summary()["bit_identical"] is None
        assert not of_kind(events, "plan_verified")

    def test_a_sample_that_fails_ends_no_search(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """The log has the reason."""

        def breaks(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "sample_noise_floor":
                raise BackendError("the worker was killed")

        with caplog.at_level(logging.WARNING):
            assert search(tmp_path, FakeRunner(breaks=breaks)).winner is not None
        assert "the noise floor could not be measured: the worker was killed" in caplog.text


class TestRescue:
    """A SyncAll that waits for cores which do not run."""

    @staticmethod
    def hangs(plan: Plan, stage: Stage = Stage.MEASURE) -> Outcome | None:
        """Return a timeout for plans with a scope that begins at an MLP, unless the option that helps is set."""
        guilty = [scope for scope in plan.scopes if scope.first.endswith("mlp")]
        if not guilty or dict(guilty[0].options).get("feed-sync-all"):
            return None
        return Outcome(Reason.TIMEOUT, "no answer", blamed=guilty[0].label, stage=stage)

    def test_a_plan_that_hangs_is_judged_again_with_the_option(self, tmp_path: Path) -> None:
        """Its outcome is the second one's, and says what was added."""
        runner = FakeRunner(fault=self.hangs, layout=LAYER, traits=COMPUTED)
        result = search(tmp_path, runner, trials=9, backend="sim")
        rescued = [record for record in result.trials if record.outcome and record.outcome.added]
        assert rescued
        for record in rescued:
            assert record.outcome is not None
            assert record.outcome.is_complete
            assert all(dict(scope.options)["feed-sync-all"] == 1 for scope in record.judged_plan.scopes)

    def test_where_it_hangs_all_the_same_the_scope_is_not_tried_again(self, tmp_path: Path) -> None:
        """Two judgements for the first such plan, none for the others."""
        stuck = Outcome(Reason.TIMEOUT, "no answer", stage=Stage.VERIFY)

        def fault(plan: Plan) -> Outcome | None:
            guilty = [scope.label for scope in plan.scopes if scope.last.endswith("mlp")]
            return replace(stuck, blamed=guilty[0]) if guilty else None

        runner = FakeRunner(fault=fault, layout=LAYER, traits=COMPUTED)
        result = search(tmp_path, runner, trials=9, backend="sim")
        hung = [record.outcome for record in result.trials if record.outcome and record.outcome.blamed]
        first = next(outcome for outcome in hung if outcome.added)
        assert first.detail == "no answer; it hangs with feed-sync-all=1, too"
        blocked = [outcome for outcome in hung if "hung in trial" in outcome.detail]
        assert runner.count("judge") == len(result.trials) + len(hung) - 2 * len(blocked)

    @pytest.mark.parametrize(("backend", "stage"), [("sim", Stage.COMPILE), ("inductor", Stage.MEASURE)])
    def test_a_compiler_that_hangs_is_no_such_case(self, tmp_path: Path, backend: str, stage: Stage) -> None:
        """Nor is a plan without SuperKernels."""
        runner = FakeRunner(fault=lambda plan: self.hangs(plan, stage), layout=LAYER, traits=COMPUTED)
        result = search(tmp_path, runner, trials=9, backend=backend)
        assert any(record.outcome and record.outcome.reason is Reason.TIMEOUT for record in result.trials)
        assert not any(record.outcome and record.outcome.added for record in result.trials)


class TestTimeBudget:
    """In time, with an answer, and nothing that was cut off held against a plan."""

    def test_trials_and_time_whichever_comes_first(self, tmp_path: Path) -> None:
        """Three trials end long before an hour does."""
        events = Events()
        result = search(tmp_path, FakeRunner(), events.append, trials=3, time_budget_s=3600)
        assert len(result.trials) == 3
        assert result.is_compared
        assert all(event["expected_left_s"] >= 0 for event in of_kind(events, "trial_finished"))

    @pytest.mark.parametrize("seconds", [40, 60, 90])
    def test_a_budget_ends_with_an_answer(self, tmp_path: Path, seconds: float) -> None:
        """Trials stop where the final comparison needs the rest; a short one compares fewer plans."""
        runner, events = FakeRunner(), Events()
        began_s = runner.clock()
        result = search(tmp_path, runner, events.append, trials=None, time_budget_s=seconds)
        assert runner.clock() - began_s <= seconds
        assert of_kind(events, "search_started")[0]["trials"] is None
        assert of_kind(events, "time_budget_spent")[0]["trials"] == len(result.trials) < 24
        assert result.winner is not None
        assert result.is_compared
        plans = [row for row in result.final if row.name.isdigit()]
        assert len(plans) <= (seconds - OPENING_S) / FINALIST_S

    def test_a_budget_too_short_for_a_plan_gets_one_line(self, tmp_path: Path) -> None:
        """There is no answer to give."""
        with pytest.raises(BadInputError, match="9 s ended before a plan was tried; give more time"):
            search(tmp_path, FakeRunner(), time_budget_s=9)

    def test_a_trial_that_time_cuts_off_is_no_failure(self, tmp_path: Path) -> None:
        """The search ends with the plans it has; the next call takes the trial up under its number."""
        runner = FakeRunner()

        def hangs(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "judge" and runner.count("judge") == 3:
                runner.clock.now_s += 1e6

        runner.breaks = hangs
        events, lines = Events(), list[str]()
        result = search(tmp_path, runner, events.append, trials=None, time_budget_s=200)
        view = PlainView(lines.append)
        for event in events:
            view(EVENTS[event["event"]](**{key: value for key, value in event.items() if key != "event"}))
        assert [record.number for record in result.trials] == [0, 1]
        assert result.is_compared
        assert any("after 2 trials; trial 2 was cut off and is left for later" in line for line in lines)
        events.clear()
        again = search(tmp_path, FakeRunner(), events.append, trials=3)
        assert [event["trial"] for event in of_kind(events, "trial_finished")] == [2]
        assert again.pruned()["crashed"] == 0

    def test_a_final_comparison_that_time_cuts_off_is_made_by_the_next_call(self, tmp_path: Path) -> None:
        """Until then the best trial is the answer, marked as such everywhere."""

        def ends(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "compare":
                raise OutOfTimeError

        result = search(tmp_path, FakeRunner(breaks=ends), trials=3, time_budget_s=3600)
        assert result.winner is not None
        assert not result.is_compared
        assert "no time for a final comparison" in (result.folder / "report.md").read_text()
        assert (result.folder / "best_plan.yaml").is_file()
        runner, events = FakeRunner(), Events()
        again = search(tmp_path, runner, events.append, trials=3)
        assert again.is_compared
        assert "compared" not in again.summary()
        assert runner.count("judge") == 0

    def test_a_later_process_that_time_cuts_off_leaves_those_before_it(self, tmp_path: Path) -> None:
        """The comparison is of fewer processes."""
        runner = FakeRunner(traits=RunnerTraits(final_processes=3))

        def ends(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "compare" and runner.count("compare") == 3:
                raise OutOfTimeError

        runner.breaks = ends
        assert search(tmp_path, runner, time_budget_s=3600).processes == 2

    def test_a_proxy_and_the_whole_search_share_one_budget(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the caller does not say when it began."""
        began: list[float | None] = []

        def run(request: Request, listener: Any, began_s: float | None, findings: Any = None) -> Any:
            began.append(began_s)
            return loop.run(request, listener, began_s, findings, lambda setup: FakeRunner())

        monkeypatch.setattr("sktune.tuning.fewer_layers.run", run)
        search_with_proxy(Request("llama", trials=1, proxy_layers=1, time_budget_s=60, runs=tmp_path))
        assert began[0] is not None
        assert began[0] == began[1]


class TestInterruptions:
    """What is not a plan's doing leaves it to a later search."""

    @staticmethod
    def tried_at_last(runs: Path, runner: FakeRunner, error: type[Exception], match: str) -> None:
        """Search twice in vain, and then once more: the plan is tried."""
        for _ in range(2):
            runner.asked.clear()
            runner.close()
            with pytest.raises(error, match=match):
                search(runs, runner, trials=1)
        result = search(runs, FakeRunner(), trials=1)
        assert [record.outcome.reason for record in result.trials if record.outcome] == [None]

    def test_stopping_at_once_is_not_held_against_a_plan(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """However often the user does so, it is tried."""
        monkeypatch.setattr("sktune.study.study.MAX_ATTEMPTS", 1)

        def stops(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "judge":
                raise KeyboardInterrupt

        self.tried_at_last(tmp_path, FakeRunner(breaks=stops), InterruptedSearchError, "stopped at once")

    def test_a_runner_that_cannot_open_is_not_held_against_a_plan(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The disk is full, or somebody else has the NPU: the plan that was next is tried when that is over."""
        monkeypatch.setattr("sktune.study.study.MAX_ATTEMPTS", 1)
        runner = FakeRunner()

        def taken(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "sample_noise_floor":
                runner.close()  # as if the worker had died of it
            if kind == "open" and runner.count("open") > 1:
                raise BackendError("the device is taken")

        runner.breaks = taken
        self.tried_at_last(tmp_path, runner, BackendError, "is taken")

    def test_ctrl_c_stops_after_the_trial(self, tmp_path: Path) -> None:
        """The study is whole, and the same command goes on."""

        def asks(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "judge":
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(InterruptedSearchError, match="stopped after 1 of 6 trials; the same command goes on"):
            search(tmp_path, FakeRunner(breaks=asks))
        assert len(search(tmp_path, FakeRunner()).trials) == 6


class TestFinals:
    """A search has its answer, whatever the processes do that compare its best plans."""

    @staticmethod
    def comparisons(runner: FakeRunner) -> list[int]:
        """Return how many plans each process of the final comparison was given."""
        return [len(plans) for kind, plans in runner.asked if kind == "compare"]

    def test_more_than_fit_are_shortlisted(self, tmp_path: Path) -> None:
        """The fastest of many are compared; a runner that holds few plans is not asked to order many."""
        runner = FakeRunner(traits=RunnerTraits(most_finalists=2, most_shortlisted=4))
        result = search(tmp_path, runner, trials=8)
        (shortlisted,) = [plans for kind, plans in runner.asked if kind == "shortlist"]
        assert len(shortlisted) == 4
        assert self.comparisons(runner) == [2]
        assert len([row for row in result.final if row.name.isdigit()]) == 2
        few = FakeRunner(traits=RunnerTraits(most_finalists=2, most_shortlisted=2))
        search(tmp_path / "few", few, trials=8)
        assert few.count("shortlist") == 0
        assert self.comparisons(few) == [2]

    def test_a_shortlist_that_fails_leaves_the_trials_own_order(self, tmp_path: Path) -> None:
        """Those fastest by their own figures are compared."""

        def breaks(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "shortlist":
                raise BackendError("the worker was killed")

        result = search(tmp_path, FakeRunner(breaks=breaks), trials=12)
        speeds = {
            str(record.number): record.outcome.speedup.ratio
            for record in result.trials
            if record.outcome and record.outcome.speedup
        }
        compared = [row.name for row in result.final if row.name.isdigit()]
        slowest = min(speeds[name] for name in compared)
        assert len(compared) == 5
        assert all(own <= slowest + 1e-9 for name, own in speeds.items() if name not in compared)

    @pytest.mark.parametrize(("has_references", "wanted"), [(True, True), (False, False)])
    def test_references_are_asked_of_a_runner_that_has_some(
        self, tmp_path: Path, has_references: bool, wanted: bool
    ) -> None:
        """In one process."""
        events = Events()
        traits = RunnerTraits(has_references=has_references, most_finalists=3)
        search(tmp_path, FakeRunner(traits=traits), events.append)
        assert of_kind(events, "final_started")[0]["references"] is wanted

    def test_a_plan_that_verification_finds_to_differ_is_replaced(self, tmp_path: Path) -> None:
        """The next moves up; the study knows it as a mismatch from now on."""
        guilty = FakeRunner(difference=lambda plan: "step 40: logits" if holds(plan, "1.self_attn") else "")
        events = Events()
        result = search(tmp_path, guilty, events.append, trials=12)
        rejected = [event["trial"] for event in of_kind(events, "plan_verified") if not event["identical"]]
        assert rejected
        for number in rejected:
            outcome = result.trials[number].outcome
            assert outcome is not None
            assert (outcome.reason, outcome.stage, outcome.detail) == (
                Reason.MISMATCH, Stage.VERIFY, "step 40: logits",
            )  # fmt: skip
            assert str(number) not in {row.name for row in result.final}
        assert result.winner is not None
        assert not holds(result.winner.plan, "1.self_attn")

    def test_one_that_dies_costs_itself_alone(self, tmp_path: Path) -> None:
        """The others are compared without it, with the same figures, in this process and the next."""

        def breaks(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "compare" and not all(holds_mlp(plan) for plan in plans):
                raise BackendError("the worker was killed by SIGKILL")

        runner = FakeRunner(breaks=breaks, traits=RunnerTraits(final_processes=2))
        result = search(tmp_path, runner, trials=5)
        assert result.winner is not None
        assert holds_mlp(result.winner.plan)
        dead = [row for row in result.final if row.speedup is None]
        assert dead
        assert all("SIGKILL" in row.verdict for row in dead)
        assert self.comparisons(runner)[-1] == 5 - len(dead)
        assert result.final[0].name == "baseline"

    def test_where_no_finalist_survives_the_answer_is_no_scope(self, tmp_path: Path) -> None:
        """The baseline alone was measured, once, and every plan says why it was not."""

        def breaks(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "compare" and plans:
                raise BackendError("the worker was killed")

        runner = FakeRunner(breaks=breaks, traits=RunnerTraits(final_processes=3))
        result = search(tmp_path, runner, trials=3)
        assert self.comparisons(runner).count(0) == 1
        assert result.winner is None
        assert result.is_compared
        plans = [row for row in result.final if row.name.isdigit()]
        assert plans
        assert all(row.speedup is None and "was killed" in row.verdict for row in plans)

    def test_a_baseline_that_does_not_survive_ends_the_search(self, tmp_path: Path) -> None:
        """There is nothing to compare with; the trials are kept."""

        def breaks(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "compare":
                raise BackendError("the worker was killed")

        with pytest.raises(BackendError, match="was killed"):
            search(tmp_path, FakeRunner(breaks=breaks), trials=2)
        runner = FakeRunner()
        assert search(tmp_path, runner, trials=2).is_compared
        assert runner.count("judge") == 0

    def test_a_winner_without_its_code_is_one_still(self, tmp_path: Path) -> None:
        """The study says why."""

        def breaks(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "deliver":
                raise BackendError("the folder cannot be written")

        result = search(tmp_path, FakeRunner(breaks=breaks))
        assert result.winner is not None
        problem = "the folder cannot be written"
        assert result.facts.delivery == DeliveryRecord(result.winner.number, problem=problem)


def test_a_runner_is_made_from_what_the_request_says(tmp_path: Path) -> None:
    """And has no deadline where there is no budget."""
    made: list[RunnerSetup] = []
    runner = FakeRunner()

    def factory(setup: RunnerSetup) -> FakeRunner:
        made.append(setup)
        return runner

    loop.run(Request("llama", trials=1, runs=tmp_path, compile_timeout_s=7), runner_factory=factory)
    assert (made[0].spec.source, made[0].compile_timeout_s) == ("llama", 7)
    assert made[0].folder.parent == tmp_path
    assert made[0].cache == tmp_path / "cache"
    assert runner.deadline_s == math.inf
    assert runner.clock() - 1000 > TRIAL_S + OPENING_S
