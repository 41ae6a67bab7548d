"""What a search decides: its trials, its end, its result; with a fake runner (tests/fake_runner.py)."""

import logging
import math
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sktune.cli.views.progress import PlainView
from sktune.core.errors import BackendError, BadInputError, InterruptedSearchError, OutOfTimeError
from sktune.core.events.catalogue import EVENTS
from sktune.core.fused_scopes import FusedPart, FusedScope
from sktune.core.layout import Kernel
from sktune.core.outcome import Outcome, Reason, Stage
from sktune.core.plan import Plan
from sktune.core.search_options import fields_of
from sktune.core.space import StartingPoint
from sktune.core.verification import Verification
from sktune.samplers.partition import PartitionSampler
from sktune.study.facts import DeliveryRecord
from sktune.study.result import stored_result
from sktune.study.stored_space import space_of
from sktune.tuning import loop
from sktune.tuning.loop import search as search_with_proxy
from sktune.tuning.request import Request
from sktune.worker.jobs import Compare, ProcessComparison, Report, RunnerSetup, RunnerTraits, Verify
from tests.builders import decoder_layout, sktune_command
from tests.fake_runner import FINALIST_S, LAYERS, OPENING_S, TRIAL_S, FakeRunner, search

LAYER = decoder_layout(("dense",), ("self_attn", "mlp"), outside=False)
"""A layout with four plans."""
MATMUL = Kernel("MatMulV2", "cube")
TWO_STREAMS = replace(
    LAYERS,
    units=tuple(
        replace(unit, kernels=(MATMUL, MATMUL, *[replace(MATMUL, stream="1")] * 2) if unit.key == "mlp" else (MATMUL,))
        for unit in LAYERS.units
    ),
)
"""Each MLP runs two streams side by side."""
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
    """Trials run one after the other, each plan once."""

    def test_the_fastest_plan_wins_and_its_code_is_delivered(self, tmp_path: Path) -> None:
        """Starting points come first; the winner is compared in fresh processes, and its speedup is exact."""
        runner, events = FakeRunner(traits=RunnerTraits(final_processes=3)), Events()
        result = search(tmp_path, runner, events.append)
        assert [record.origin for record in result.trials][:2] == ["attention", "each layer"]
        assert result.winner is not None
        assert result.trials[result.winner.number].origin == "each layer"
        assert result.winner.speedup.ratio == pytest.approx(10 / 7.6)
        assert result.processes == 3
        assert runner.asked[-1] == ("deliver", (result.winner.plan,))
        assert len({record.plan for record in result.trials}) == 6 == runner.count("judge")

    def test_the_same_command_runs_nothing_and_more_trials_continue(self, tmp_path: Path) -> None:
        """The result comes from the study; more trials may be of another strategy."""
        first = search(tmp_path, FakeRunner())
        again, events = FakeRunner(), Events()
        search(tmp_path, again, events.append)
        assert again.asked == []
        assert [event["event"] for event in events] == ["study_finished"]
        more = search(tmp_path, FakeRunner(), events.append, trials=8, strategy="tpe")
        assert [event["trial"] for event in of_kind(events, "trial_finished")] == [6, 7]
        assert [record.plan for record in more.trials[:6]] == [record.plan for record in first.trials]

    def test_a_search_ends_when_its_space_is_exhausted(self, tmp_path: Path) -> None:
        """However many trials are left; probes do not count as plans of the space."""
        events = Events()
        result = search(tmp_path, FakeRunner(layout=LAYER), events.append, trials=40)
        assert len({record.plan for record in result.trials if not record.is_probe}) == 4
        assert of_kind(events, "space_exhausted")
        assert result.winner is not None
        again = FakeRunner(layout=LAYER)
        search(tmp_path, again, trials=40)
        assert again.asked == []

    def test_twins_are_measured_once(self, tmp_path: Path) -> None:
        """Plans that compile to the same kernels share a figure, and only one of them is compared."""
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

    def test_a_plan_that_is_certain_to_be_refused_is_not_compiled(self, tmp_path: Path) -> None:
        """On an NPU, once a trial has shown that the types of its operators can be fused; the trial says why."""
        plain = FakeRunner(layout=TWO_STREAMS)
        search(tmp_path / "unknown", plain, device="npu")
        assert any(holds_mlp(plan) for kind, plans in plain.asked if kind == "judge" for plan in plans)

        def fused(plan: Plan) -> tuple[FusedScope, ...]:
            labels = tuple(scope.label for scope in plan.scopes)
            return (FusedScope(labels, (FusedPart(1, "SuperKernel"),), ("MatMulV2",)),)

        runner = FakeRunner(layout=TWO_STREAMS, fused=fused)
        result = search(tmp_path, runner, device="npu")
        judged = [plan for kind, plans in runner.asked if kind == "judge" for plan in plans]
        assert judged and not any(holds_mlp(plan) for plan in judged)
        refused = [record for record in result.trials if holds_mlp(record.plan)]
        assert refused
        for record in refused:
            assert record.outcome is not None
            assert (record.outcome.reason, record.outcome.stage) == (Reason.COMPILE_FAILED, Stage.COMPILE)
            assert record.outcome.detail.startswith(f"not compiled: scope {record.outcome.blamed!r} would be refused: ")
            assert "on stream '1'" in record.outcome.detail and "set stream-fusion=1" in record.outcome.detail

    def test_plans_that_fail_never_win(self, tmp_path: Path) -> None:
        """If only slower plans are left, the answer is "no scope", and only the baseline is compared."""
        failure = Outcome(Reason.COMPILE_FAILED, "no", stage=Stage.COMPILE)

        def fault(plan: Plan) -> Outcome | None:
            return None if len(plan.scopes) == 1 else failure

        runner = FakeRunner(fault=fault, latency_ms=lambda plan: 10.0 + len(plan.scopes))
        result = search(tmp_path, runner, trials=24)
        assert result.verdict is not None
        assert result.winner is None
        assert result.pruned()[Reason.COMPILE_FAILED] > 4
        assert [row.name for row in result.final] == ["baseline", "baseline again"]

    def test_slower_plans_are_pruned_with_their_figure(self, tmp_path: Path) -> None:
        """If they are slower by more than the noise floor."""
        result = search(tmp_path, FakeRunner(latency_ms=lambda plan: 10.0 + len(plan.scopes)), trials=4)
        outcomes = [record.outcome for record in result.trials if record.outcome]
        assert {outcome.reason for outcome in outcomes} == {Reason.SLOWER}
        assert all(outcome.speedup and outcome.noise_floor >= 0.001 for outcome in outcomes)
        assert result.winner is None

    def test_a_search_has_converged_once_nothing_is_left_to_gain(self, tmp_path: Path) -> None:
        """It ends early, and an event says so."""
        events = Events()
        search(tmp_path, FakeRunner(latency_ms=lambda plan: 10.0), events.append, trials=20, until_converged=True)
        (converged,) = of_kind(events, "converged")
        assert converged["gain_left"] < converged["threshold"] and converged["stops"]
        assert len(of_kind(events, "trial_finished")) < 20

    def test_a_search_that_goes_on_says_once_that_it_need_not(self, tmp_path: Path) -> None:
        """And the result says what may be left."""
        events = Events()
        result = search(tmp_path, FakeRunner(latency_ms=lambda plan: 10.0), events.append, trials=20)
        (converged,) = of_kind(events, "converged")
        assert not converged["stops"]
        assert len(of_kind(events, "trial_finished")) == 20
        assert result.gain_left is not None and result.gain_left < converged["threshold"]
        assert of_kind(events, "study_finished")[0]["gain_left"] == result.gain_left
        assert "no plan of this space saves more than" in (result.folder / "report.md").read_text()

    def test_nothing_is_said_of_what_is_left_before_anything_is_measured(self, tmp_path: Path) -> None:
        """All plans have failed."""
        failure = Outcome(Reason.COMPILE_FAILED, "no", stage=Stage.COMPILE)
        assert search(tmp_path, FakeRunner(fault=lambda plan: failure), trials=3).gain_left is None

    @pytest.mark.parametrize("share", ["0", "100%", "much", "nan"])
    def test_a_share_that_is_none_is_refused(self, share: str) -> None:
        """With an example of one."""
        with pytest.raises(BadInputError, match="--until must be a share of the step such as 1%"):
            fields_of({"until": share})


class TestNoiseFloor:
    """The baseline is compared with itself."""

    def test_it_is_sampled_at_the_start_and_every_ten_trials(self, tmp_path: Path) -> None:
        """Also by a search that continues."""
        events = Events()
        search(tmp_path, FakeRunner(), events.append, trials=5)
        search(tmp_path, FakeRunner(), events.append, trials=12)
        assert [event["before_trial"] for event in of_kind(events, "noise_floor")] == [0, 10]

    def test_a_simulation_has_none(self, tmp_path: Path) -> None:
        """It has no intervals either, and compares no bits."""
        runner, events = FakeRunner(traits=COMPUTED), Events()
        result = search(tmp_path, runner, events.append, backend="sim")
        assert runner.count("sample_noise_floor") == 0
        assert all(event["simulated"] and event["ci95"] is None for event in of_kind(events, "trial_finished"))
        assert result.summary()["bit_identical"] is None
        assert not of_kind(events, "plan_verified")

    def test_a_search_survives_a_sample_that_fails(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """The reason is logged."""

        def breaks(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "sample_noise_floor":
                raise BackendError("the worker was killed")

        with caplog.at_level(logging.WARNING):
            assert search(tmp_path, FakeRunner(breaks=breaks)).winner is not None
        assert "the noise floor could not be measured: the worker was killed" in caplog.text


class TestRescue:
    """A plan that hangs is judged again with a safer option: its SyncAll may wait for idle cores."""

    @staticmethod
    def hangs(plan: Plan, stage: Stage = Stage.MEASURE) -> Outcome | None:
        """Return a timeout for plans with a scope that begins at an MLP, unless the safer option is set."""
        guilty = [scope for scope in plan.scopes if scope.first.endswith("mlp")]
        if not guilty or dict(guilty[0].options).get("feed-sync-all"):
            return None
        return Outcome(Reason.TIMEOUT, "no answer", blamed=guilty[0].label, stage=stage)

    def test_a_plan_that_hangs_is_judged_again_with_the_option(self, tmp_path: Path) -> None:
        """It gets the second outcome, which names the added option."""
        runner = FakeRunner(fault=self.hangs, layout=LAYER, traits=COMPUTED)
        result = search(tmp_path, runner, trials=9, backend="sim")
        rescued = [record for record in result.trials if record.outcome and record.outcome.added]
        assert rescued
        for record in rescued:
            assert record.outcome is not None
            assert record.outcome.is_complete
            assert all(dict(scope.options)["feed-sync-all"] == 1 for scope in record.judged_plan.scopes)

    def test_what_is_left_is_left_beyond_a_rescued_winner(self, tmp_path: Path) -> None:
        """The plan that was proposed is the one that the search has learned from."""

        def hangs(plan: Plan) -> Outcome | None:
            is_safe = all(dict(scope.options).get("feed-sync-all") for scope in plan.scopes)
            return None if is_safe else Outcome(Reason.TIMEOUT, "no answer", stage=Stage.MEASURE)

        result = search(tmp_path, FakeRunner(fault=hangs, layout=LAYER, traits=COMPUTED), trials=9, backend="sim")
        assert result.winner is not None and result.gain_left is not None
        assert result.gain_left < 1 - 1 / result.winner.speedup.ratio

    def test_if_it_still_hangs_its_scope_is_not_tried_again(self, tmp_path: Path) -> None:
        """Two judgements for the first such plan, none for the others."""
        stuck = Outcome(Reason.TIMEOUT, "no answer", stage=Stage.VERIFY)

        def fault(plan: Plan) -> Outcome | None:
            guilty = [scope.label for scope in plan.scopes if scope.last.endswith("mlp")]
            return replace(stuck, blamed=guilty[0]) if guilty else None

        runner = FakeRunner(fault=fault, layout=LAYER, traits=COMPUTED)
        result = search(tmp_path, runner, trials=9, backend="sim")
        hung = [record.outcome for record in result.trials if record.outcome and record.outcome.blamed]
        first = next(outcome for outcome in hung if outcome.added)
        assert first.detail == "no answer; it also hangs with feed-sync-all=1"
        blocked = [outcome for outcome in hung if "hung in trial" in outcome.detail]
        assert runner.count("judge") == len(result.trials) + len(hung) - 2 * len(blocked)

    @pytest.mark.parametrize(("backend", "stage"), [("sim", Stage.COMPILE), ("inductor", Stage.MEASURE)])
    def test_only_a_superkernel_that_hangs_is_judged_again(self, tmp_path: Path, backend: str, stage: Stage) -> None:
        """Not a compiler that hangs, and not a plan without SuperKernels."""
        runner = FakeRunner(fault=lambda plan: self.hangs(plan, stage), layout=LAYER, traits=COMPUTED)
        result = search(tmp_path, runner, trials=9, backend=backend)
        assert any(record.outcome and record.outcome.reason is Reason.TIMEOUT for record in result.trials)
        assert not any(record.outcome and record.outcome.added for record in result.trials)


class TestTimeBudget:
    """A search ends in time with an answer, and a trial that was cut off is not a failure."""

    def test_a_search_ends_with_its_trials_or_its_time(self, tmp_path: Path) -> None:
        """Three trials end long before the hour is over."""
        events = Events()
        result = search(tmp_path, FakeRunner(), events.append, trials=3, time_budget_s=3600)
        assert len(result.trials) == 3
        assert result.is_compared
        assert all(event["expected_left_s"] >= 0 for event in of_kind(events, "trial_finished"))

    @pytest.mark.parametrize("seconds", [40, 60, 90])
    def test_a_budget_ends_with_an_answer(self, tmp_path: Path, seconds: float) -> None:
        """Trials stop when the final comparison needs the rest; a short budget compares fewer plans."""
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
        """There is no result to return."""
        with pytest.raises(BadInputError, match="no plan was tried in its 9 s here; give more time"):
            search(tmp_path, FakeRunner(), time_budget_s=9)

    def test_a_trial_that_is_cut_off_is_not_a_failure(self, tmp_path: Path) -> None:
        """The search ends with the plans it has; the next call runs the trial under the same number."""
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
        assert any("after 2 trials; trial 2 was cut off and is postponed" in line for line in lines)
        events.clear()
        again = search(tmp_path, FakeRunner(), events.append, trials=3)
        assert [event["trial"] for event in of_kind(events, "trial_finished")] == [2]
        assert again.pruned()[Reason.CRASHED] == 0

    def test_a_final_comparison_that_is_cut_off_is_made_by_the_next_call(self, tmp_path: Path) -> None:
        """Until then the best trial is the result, and is marked as such."""

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

    def test_if_a_later_process_is_cut_off_the_earlier_ones_count(self, tmp_path: Path) -> None:
        """The comparison has fewer processes."""
        runner = FakeRunner(traits=RunnerTraits(final_processes=3))

        def ends(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "compare" and runner.count("compare") == 3:
                raise OutOfTimeError

        runner.breaks = ends
        assert search(tmp_path, runner, time_budget_s=3600).processes == 2

    def test_a_proxy_and_the_whole_search_share_one_budget(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the caller does not say when it began."""
        began: list[float | None] = []
        whole = loop.run

        def run(request: Request, listener: Any, began_s: float | None, *_: Any, **__: Any) -> Any:
            began.append(began_s)
            return whole(request, listener, began_s, lambda setup: FakeRunner())

        monkeypatch.setattr("sktune.tuning.loop.run", run)
        search_with_proxy(Request("llama", trials=1, proxy_layers=1, time_budget_s=60, runs=tmp_path))
        assert began[0] is not None
        assert began[0] == began[1]


class TestInterruptions:
    """A failure that is not the plan's postpones the plan to a later search."""

    @staticmethod
    def check_postponed(runs: Path, runner: FakeRunner, error: type[Exception], match: str) -> None:
        """Check that two searches fail, and that a third one tries the plan."""
        for _ in range(2):
            runner.asked.clear()
            runner.close()
            with pytest.raises(error, match=match):
                search(runs, runner, trials=1)
        result = search(runs, FakeRunner(), trials=1)
        assert [record.outcome.reason for record in result.trials if record.outcome] == [None]

    def test_an_immediate_stop_does_not_count_as_an_attempt(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However often the user stops, the plan is tried."""
        monkeypatch.setattr("sktune.study.study.MAX_ATTEMPTS", 1)

        def stops(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "judge":
                raise KeyboardInterrupt

        self.check_postponed(tmp_path, FakeRunner(breaks=stops), InterruptedSearchError, "stopped immediately")

    def test_a_search_that_goes_on_after_a_signal_knows_time_and_best_plan(self, tmp_path: Path) -> None:
        """The signal came in a listener, between two trials."""
        ended: list[float] = []

        def stops(event: dict[str, Any]) -> None:
            if event["event"] == "trial_finished":
                ended.append(event["speedup"])
                if len(ended) == 2:
                    raise KeyboardInterrupt

        with pytest.raises(InterruptedSearchError, match="stopped immediately"):
            search(tmp_path, FakeRunner(), stops, trials=3)
        events = Events()
        assert stored_result("s", tmp_path).facts.seconds > 0
        search(tmp_path, FakeRunner(), events.append, trials=3)
        assert of_kind(events, "search_started")[0]["best_speedup"] == max(ended)

    def test_a_runner_that_cannot_open_does_not_count_as_an_attempt(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The disk is full, or the NPU is in use: the next plan is tried once that is over."""
        monkeypatch.setattr("sktune.study.study.MAX_ATTEMPTS", 1)
        runner = FakeRunner()

        def taken(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "sample_noise_floor":
                runner.close()  # as if the worker had died of it
            if kind == "open" and runner.count("open") > 1:
                raise BackendError("the device is taken")

        runner.breaks = taken
        self.check_postponed(tmp_path, runner, BackendError, "is taken")

    def test_ctrl_c_stops_after_the_trial(self, tmp_path: Path) -> None:
        """The study is complete up to there, and the same command continues."""

        def asks(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "judge":
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(InterruptedSearchError, match="stopped after 1 of 6 trials; run the same command"):
            search(tmp_path, FakeRunner(breaks=asks))
        assert len(search(tmp_path, FakeRunner()).trials) == 6

    def test_ctrl_c_in_the_final_comparison_says_what_it_waits_for(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """No trial runs any more."""

        def asks(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "compare":
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(InterruptedSearchError, match="stopped after 6 of 6 trials"):
            search(tmp_path, FakeRunner(breaks=asks, traits=RunnerTraits(final_processes=2)))
        assert "stopping after this part of the final comparison" in caplog.text


class TestFinals:
    """A search returns a result whatever happens to the processes of the final comparison."""

    @staticmethod
    def comparisons(runner: FakeRunner) -> list[int]:
        """Return how many plans each process of the final comparison was given."""
        return [len(plans) for kind, plans in runner.asked if kind == "compare"]

    def test_plans_are_shortlisted_if_there_are_too_many(self, tmp_path: Path) -> None:
        """The fastest are compared; a runner that can hold only few plans is not asked for a shortlist."""
        runner = FakeRunner(traits=RunnerTraits(max_finalists=2, max_shortlisted=4))
        result = search(tmp_path, runner, trials=8)
        (shortlisted,) = [plans for kind, plans in runner.asked if kind == "shortlist"]
        assert len(shortlisted) == 4
        assert self.comparisons(runner) == [2]
        assert len([row for row in result.final if row.name.isdigit()]) == 2
        few = FakeRunner(traits=RunnerTraits(max_finalists=2, max_shortlisted=2))
        search(tmp_path / "few", few, trials=8)
        assert few.count("shortlist") == 0
        assert self.comparisons(few) == [2]

    def test_if_shortlisting_fails_the_trials_order_is_used(self, tmp_path: Path) -> None:
        """The plans that were fastest in their trials are compared."""

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
        assert all(speed <= slowest + 1e-9 for name, speed in speeds.items() if name not in compared)

    @pytest.mark.parametrize(("has_references", "wanted"), [(True, True), (False, False)])
    def test_references_are_requested_if_the_runner_has_some(
        self, tmp_path: Path, has_references: bool, wanted: bool
    ) -> None:
        """In one process."""
        events = Events()
        traits = RunnerTraits(has_references=has_references, max_finalists=3)
        search(tmp_path, FakeRunner(traits=traits), events.append)
        assert of_kind(events, "final_started")[0]["references"] is wanted

    def test_a_plan_that_fails_verification_is_replaced(self, tmp_path: Path) -> None:
        """By the next of those that were compared with it; in the study the plan is now a mismatch."""
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
            rows = [row for row in result.final if row.name == str(number)]
            assert all((row.bit_identical, row.verdict) == (False, "step 40: logits") for row in rows)
        assert result.winner is not None
        assert not holds(result.winner.plan, "1.self_attn")
        space = space_of(result.facts, result.history)
        assert space is not None
        left = PartitionSampler(space, 0).gain_left(result.history, result.winner.plan, result.winner.speedup)
        assert result.gain_left == left, "the bound does not count a rejected plan as one that may win"

    @pytest.mark.parametrize("ahead", [0.001, 0.01, 0.03])
    def test_a_winner_is_verified_whatever_is_rejected_beside_it(self, tmp_path: Path, ahead: float) -> None:
        """Without a plan that was asked for and differs, a simpler one may be tied with the fastest."""
        units = [unit.name for unit in LAYERS.units]
        simple, middle, guilty = (set(units[:count]) for count in (1, 2, 3))

        def latency_ms(plan: Plan) -> float:
            scopes = {scope.first for scope in plan.scopes if scope.first == scope.last}
            if scopes not in (simple, middle, guilty) or len(scopes) != len(plan.scopes):
                return 10.0 if plan.is_baseline else 9.9
            return 9.0 * (1 + ahead * (2 - len(scopes)))

        def difference(plan: Plan) -> str:
            return "step 40: logits" if latency_ms(plan) < 9.0 else ""

        values = dict.fromkeys(("dense.self_attn", "dense.mlp", "moe.self_attn"), "new") | {"moe.mlp": "out"}
        point = StartingPoint("asked", {**values, "layers_per_scope": 1, "matmul": "aten"})
        runner = FakeRunner(latency_ms=latency_ms, difference=difference, traits=RunnerTraits(final_processes=3))
        result = search(tmp_path, runner, trials=24, strategy="grid", points=(point,))
        assert result.winner is not None
        assert not difference(result.winner.plan)
        assert str(result.winner.number) in result.facts.verifications

    def test_others_are_compared_only_if_all_winners_were_rejected(self, tmp_path: Path) -> None:
        """A finalist that breaks, beside others that are no faster, is no reason to compare the rest as well."""
        runner = FakeRunner(difference=lambda plan: "step 40: logits")
        search(tmp_path / "rejected", runner, trials=12)
        assert len(self.comparisons(runner)) > 1

        def breaks(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "compare" and any(holds(plan, "1.self_attn") for plan in plans):
                raise BackendError("the worker was killed by SIGKILL")

        slow = FakeRunner(latency_ms=lambda plan: 10.0, breaks=breaks)
        result = search(tmp_path / "slow", slow, trials=12)
        assert any(row.speedup is None for row in result.final)
        assert result.winner is None
        assert slow.count("verify") == 0
        assert sum(row.name.isdigit() for row in result.final) == 5

    def test_a_plan_that_crashes_does_not_affect_the_others(self, tmp_path: Path) -> None:
        """They are compared without it, with the same figures, in this process and the next."""

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

    def test_if_no_finalist_survives_the_answer_is_no_scope(self, tmp_path: Path) -> None:
        """Only the baseline is measured, once, and every plan has the reason of its failure."""

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

    def test_a_verification_that_the_time_cuts_off_leaves_the_comparison(self, tmp_path: Path) -> None:
        """What the trial has compared stands."""

        def ends(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "verify":
                raise OutOfTimeError

        result = search(tmp_path, FakeRunner(breaks=ends), trials=3, time_budget_s=3600)
        assert result.is_compared and result.winner is not None

    def test_a_verification_that_does_not_run_rejects_no_plan_for_ever(self, tmp_path: Path) -> None:
        """It may be the machine's fault; only bits that differ are a fact about the plan."""

        class Lost(FakeRunner):
            def verify(self, request: Verify, report: Report, /) -> Verification:
                return Verification(difference="verify did not end within 300 s", is_broken=True)

        assert search(tmp_path, Lost(), trials=3).winner is None
        assert search(tmp_path, FakeRunner(), trials=4).winner is not None

    def test_plans_that_were_rejected_do_not_win_for_lack_of_time(self, tmp_path: Path) -> None:
        """Though there is no time left to compare others."""
        comparisons = count()

        class Broken(FakeRunner):
            def verify(self, request: Verify, report: Report, /) -> Verification:
                return Verification(difference="the worker was killed by SIGSEGV", is_broken=True)

        def ends(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "compare" and next(comparisons):
                raise OutOfTimeError

        result = search(tmp_path, Broken(breaks=ends), trials=12, time_budget_s=3600)
        assert result.is_compared and result.winner is None

    def test_what_was_verified_of_other_code_is_no_claim(self, tmp_path: Path) -> None:
        """If there is no time to verify the code that was compared."""

        class Coded(FakeRunner):
            code, has_time = "A", True

            def verify(self, request: Verify, report: Report, /) -> Verification:
                verified = super().verify(request, report)
                if verified is None or not self.has_time:
                    raise OutOfTimeError
                return replace(verified, code_digest=self.code)

            def compare(self, request: Compare, report: Report, /) -> ProcessComparison:
                compared = super().compare(request, report)
                return replace(compared, rows=[replace(row, code_digest=self.code) for row in compared.rows])

        verified = search(tmp_path, Coded(), trials=6).winner
        other = Coded()
        other.code, other.has_time = "B", False
        result = search(tmp_path, other, trials=7, time_budget_s=3600)
        assert verified is not None
        assert next(row for row in result.final if row.name == str(verified.number)).bit_identical is False

    def test_code_that_was_not_written_is_written_by_the_same_command(self, tmp_path: Path) -> None:
        """A search that is killed then has its figures, but not all of its answer."""

        def killed(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "deliver":
                raise KeyboardInterrupt

        with pytest.raises(InterruptedSearchError):
            search(tmp_path, FakeRunner(breaks=killed), trials=3)
        result = search(tmp_path, FakeRunner(), trials=3)
        assert result.winner is not None and result.facts.delivery is not None
        assert result.facts.delivery.trial == result.winner.number
        again = FakeRunner()
        search(tmp_path, again, trials=3)
        assert not again.asked

    def test_a_baseline_that_crashes_ends_the_search(self, tmp_path: Path) -> None:
        """There is nothing to compare with; the trials are stored."""

        def breaks(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "compare":
                raise BackendError("the worker was killed")

        with pytest.raises(BackendError, match="was killed"):
            search(tmp_path, FakeRunner(breaks=breaks), trials=2)
        runner = FakeRunner()
        assert search(tmp_path, runner, trials=2).is_compared
        assert runner.count("judge") == 0

    def test_a_plan_can_win_even_if_its_code_cannot_be_delivered(self, tmp_path: Path) -> None:
        """The study stores the reason."""

        def breaks(kind: str, plans: Sequence[Plan]) -> None:
            if kind == "deliver":
                raise BackendError("the folder cannot be written")

        result = search(tmp_path, FakeRunner(breaks=breaks))
        assert result.winner is not None
        problem = "the folder cannot be written"
        assert result.facts.delivery == DeliveryRecord(result.winner.number, problem=problem)


def test_a_runner_is_made_from_the_request(tmp_path: Path) -> None:
    """Without a time budget it has no deadline."""
    setups: list[RunnerSetup] = []
    runner = FakeRunner()

    def factory(setup: RunnerSetup) -> FakeRunner:
        setups.append(setup)
        return runner

    loop.run(Request("llama", trials=1, runs=tmp_path, compile_timeout_s=7), runner_factory=factory)
    assert (setups[0].spec.source, setups[0].compile_timeout_s) == ("llama", 7)
    assert setups[0].folder.parent == tmp_path
    assert runner.deadline_s == math.inf
    assert runner.clock() - 1000 > TRIAL_S + OPENING_S


@pytest.mark.parametrize(("model", "message"), [("{file}:typo", "has no function"), ("{folder}", "config.json")])
def test_a_model_that_cannot_be_loaded_leaves_no_study(tmp_path: Path, model: str, message: str) -> None:
    """A mistake in the command is not a study; one that exists already stays."""
    path, folder, runs = tmp_path / "own.py", tmp_path / "model", tmp_path / "runs"
    path.write_text("def target(): pass")
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": "many"}')
    words = ("search", "--model", model.format(file=path, folder=folder), "--trials", "1", "--runs", str(runs))
    done = sktune_command(*words)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert [entry.name for entry in runs.iterdir() if entry.name != "cache"] == []
    (runs / "mine").mkdir()
    assert sktune_command(*words, "--study", "mine").returncode == 2
    assert (runs / "mine").exists()
