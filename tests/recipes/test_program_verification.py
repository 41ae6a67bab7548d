"""Verification of a program: how many steps were compared, and what could not be compared."""

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from sktune.core.errors import BackendError, NotDeterministicError
from sktune.core.outcome import Outcome, Reason
from sktune.core.plan import Plan, Scope
from sktune.program.sktune_program.rank import GatedMarks, MarkedStep
from sktune.program.sktune_program.reporter import Reporter
from sktune.program.sktune_program.task import VERIFIED_STEPS, RankTask, is_baselines_turn
from sktune.recipes.rank_reports import RankReport, draw_turns, read_reports
from sktune.recipes.runner import ProgramRunner
from sktune.targets.marks import InductorScope
from sktune.worker.jobs import Judge, Verify
from tests import warm
from tests.builders import TESTS
from tests.recipes.reporting import program_runner, reporting
from tests.releases import keeps_bits

STEPS = 40
PLAN = Plan((Scope("a", "a"),))
PROJECT = TESTS / "projects" / "slots"


def faulty_program(folder: Path, fault: str, steps: int = STEPS, **keys: object) -> ProgramRunner:
    """Return the runner of a program that reports ``steps`` decode steps and has a fault."""
    command = [sys.executable, "program.py", str(steps)]
    return reporting(folder, command=command, environment={"FAULT": fault}, **keys)


def silent(stage: str) -> None:
    """Ignore a stage."""


class TestNothingToCompare:
    """A run without anything to compare does not pass as identical."""

    def test_a_step_that_returns_nothing_fails_by_name(self, tmp_path: Path) -> None:
        """With the type that it returns, and the fix."""
        with (
            faulty_program(tmp_path, "returns nothing") as runner,
            pytest.raises(
                BackendError,
                match=r"rank 0: decode step Model.forward returns nothing that sktune can compare \(it returns Foo\); "
                "return tensors",
            ),
        ):
            runner.open()

    def test_a_step_without_state_fails_by_name(self, tmp_path: Path) -> None:
        """Unless the recipe says that it is stateless."""
        with (
            faulty_program(tmp_path, "keeps nothing") as runner,
            pytest.raises(
                BackendError, match=r"rank 0: sktune finds no tensor that outlives decode step Model.forward"
            ),
        ):
            runner.open()
        with faulty_program(tmp_path / "stateless", "keeps nothing", stateless=True) as runner:
            assert runner.run(Judge(PLAN, "trial.log"), silent).is_feasible

    def test_state_that_never_changes_is_reported(self, tmp_path: Path) -> None:
        """As the cache is then where sktune does not look, unless the recipe says that the step is stateless."""
        with faulty_program(tmp_path, "writes nothing") as runner:
            assert "no tensor that sktune can see changes from step to step" in runner.open().description
        for folder, fault, keys in (("fine", "", {}), ("stateless", "writes nothing", {"stateless": True})):
            with faulty_program(tmp_path / folder, fault, **keys) as runner:
                assert "changes from step to step" not in runner.open().description


class TestBounds:
    """The number of compared steps bounds the claim."""

    def test_a_trial_reports_how_much_it_compared(self, tmp_path: Path) -> None:
        """Eight steps, with the elements of outputs and state."""
        with faulty_program(tmp_path, "") as runner:
            outcome = runner.run(Judge(PLAN, "trial.log"), silent)
        assert outcome.verification is not None
        assert str(outcome.verification) == "identical on 8 steps; at 95% fewer than 1 step in 3 differs"
        assert (outcome.verification.contexts, outcome.verification.elements) == (1, 8 * 5 + 3)

    def test_finalists_are_compared_on_all_steps(self, tmp_path: Path) -> None:
        """Or on the requested number."""
        with faulty_program(tmp_path, "") as runner:
            verified = [runner.run(Verify(name, PLAN, 2048), silent) for name in "12"]
            fewer = runner.run(Verify("1", PLAN, 20), silent)
        assert [each and each.steps for each in verified] == [STEPS, STEPS]
        assert verified[0] and verified[0].is_identical
        assert verified[0].elements == STEPS * 5 + 2 * 3  # the state after the first steps and after the last
        assert fewer and fewer.steps == 20

    @pytest.mark.parametrize(
        ("fault", "difference"),
        [
            ("output:20", "rank 0, step 20: output differs from the baseline's"),
            ("state:20", "rank 0: state model.cache differs from the baseline's after 40 steps"),
        ],
    )
    def test_verification_finds_what_differs_late(self, tmp_path: Path, fault: str, difference: str) -> None:
        """The trial compares eight steps; a verification compares them all."""
        with faulty_program(tmp_path, fault) as runner:
            outcome = runner.run(Judge(PLAN, "trial.log"), silent)
            verified = runner.run(Verify("1", PLAN, 2048), silent)
        assert outcome.is_feasible
        assert verified and str(verified) == difference
        assert outcome.after(verified).reason is Reason.MISMATCH
        assert outcome.after(verified).blamed == PLAN.scopes[0].label

    def test_a_run_that_ends_early_gives_no_figure(self, tmp_path: Path) -> None:
        """Its script may hide a crash, and its first steps are equal; every run of the baseline has made more."""
        with faulty_program(tmp_path, "end:5") as runner:
            outcome = runner.run(Judge(PLAN, "trial.log"), silent)
        assert (outcome.reason, outcome.detail) == (Reason.CRASHED, "rank 0 ended after 35 of 40 decode steps")

    def test_what_differs_early_is_a_mismatch(self, tmp_path: Path) -> None:
        """The verification has the difference."""
        with faulty_program(tmp_path, "output:3") as runner:
            outcome = runner.run(Judge(PLAN, "trial.log"), silent)
        assert outcome.reason is Reason.MISMATCH
        assert outcome.verification is not None
        assert str(outcome.verification) == outcome.detail == "rank 0, step 3: output differs from the baseline's"

    def test_a_baseline_that_is_not_deterministic_blames_no_plan(self, tmp_path: Path) -> None:
        """It runs again if a plan differs; if its outputs differ, the search ends; state that differs is ignored."""
        with faulty_program(tmp_path, "unsteady output:20") as runner:
            runner.open()
            with pytest.raises(NotDeterministicError, match=r"not deterministic.*step 20"):
                for name in "12":
                    runner.run(Verify(name, PLAN, 2048), silent)
        with faulty_program(tmp_path / "state", "unsteady state:20") as runner:
            verified = [runner.run(Verify(name, PLAN, 2048), silent) for name in "12"]
        assert all(each and each.is_identical for each in verified)
        assert verified[-1] and verified[-1].elements == STEPS * 5  # none of the state is left

    def test_without_time_nothing_more_is_compared(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """The trial's verification and its bound stand."""
        with faulty_program(tmp_path, "") as runner, caplog.at_level(logging.WARNING):
            assert runner.run(Verify("1", PLAN, 2048, seconds=0.001), silent) is None
        assert "no time is left to compare plan 1 on 40 steps" in caplog.text

    def test_a_program_of_eight_steps_has_no_more_to_compare(self, tmp_path: Path) -> None:
        """Every run compares all of them."""
        with faulty_program(tmp_path, "", steps=VERIFIED_STEPS) as runner:
            assert runner.run(Verify("1", PLAN, 2048), silent) is None

    def test_a_plan_that_fails_in_its_verification_is_rejected(self, tmp_path: Path) -> None:
        """With the reason."""
        with faulty_program(tmp_path, "") as runner:
            runner.open()
            program = tmp_path / "program.py"
            program.write_text(program.read_text().replace("if task[", "if has_scopes: sys.exit(3)\nif task[", 1))
            verified = runner.run(Verify("1", PLAN, 2048), silent)
        assert verified and not verified.is_identical
        assert "exit code 3" in str(verified)


@dataclass(slots=True)
class Output:
    """An output without a ``__dict__``."""

    logits: torch.Tensor
    token_ids: list[int]


class Stepping:
    """A decode step whose cache is in the slots of an object in its closure, and its report."""

    def __init__(self, folder: Path, task: RankTask, *, flips_at: int | None = None, writes_state: bool = True) -> None:
        cache = Output(torch.zeros(4), [])
        self.called: list[str] = []
        module = nn.Linear(4, 4)

        def decode(name: str) -> Any:
            def step(hidden_states: torch.Tensor) -> Output:
                number = len(self.called)
                self.called.append(name)
                if writes_state:
                    cache.logits[number % 4] += 1
                logits = hidden_states + cache.logits
                return Output(-logits if number == flips_at else logits, [number])

            return step

        folder.mkdir(exist_ok=True)
        reporter = Reporter(folder)
        reporter.begin()
        step, marks = decode("plan"), GatedMarks(module, task.scopes)
        marks.attach()
        marks.make(InductorScope)
        self._step = MarkedStep(step, decode("baseline"), module, step, task, lambda: marks, reporter)
        self._folder = folder

    def report(self, steps: int) -> RankReport:
        """Run ``steps`` steps and read the report."""
        for _ in range(steps):
            self._step(torch.ones(1, 4))
        self._step._flush()
        return read_reports(self._folder)[0]


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the reports of this process, which is rank 0 and reports nothing when it exits."""
    monkeypatch.setattr("sktune.program.sktune_program.rank.atexit.register", lambda *_: None)
    monkeypatch.delenv("RANK", raising=False)
    yield tmp_path


class TestReports:
    """Reports of a step that keeps everything in slots."""

    def test_digests_of_outputs_and_state_show_every_bit(self, reports: Path) -> None:
        """Such a step was once reported with eight empty digests and no state, and called identical."""
        task = RankTask(False, "inductor")
        one, same = (Stepping(reports / name, task).report(10) for name in ("one", "same"))
        assert [sorted(output.digests) for output in one.outputs] == [["output.logits", "output.token_ids"]] * 8
        assert {output.kind for output in one.outputs} == {"Output"}
        assert "step.cache.logits" in one.states[8].digests
        assert one.outputs == same.outputs
        assert one.states == same.states
        other = Stepping(reports / "other", task, flips_at=5).report(10)
        assert [number for number in range(8) if other.outputs[number] != one.outputs[number]] == [5]

    def test_a_verification_reports_every_step(self, reports: Path) -> None:
        """With one digest for each later step, its number of elements, and the state after the last step."""
        task = RankTask(False, "inductor", steps=20)
        one = Stepping(reports / "one", task).report(25)
        assert len(one.outputs) == 20
        assert sorted(one.states) == [8, 20]
        assert list(one.outputs[12].digests) == ["output"]
        assert one.outputs[12].digests["output"].endswith("/5")
        other = Stepping(reports / "other", task, flips_at=12).report(25)
        assert [number for number in range(20) if other.outputs[number] != one.outputs[number]] == [12]

    def test_the_first_run_reports_whether_the_state_changes(self, reports: Path) -> None:
        """From the first step to the eighth; later runs do not check it."""
        watching = RankTask(False, "inductor", watches_state=True)
        assert Stepping(reports / "one", watching).report(10).is_written is True
        assert Stepping(reports / "other", watching, writes_state=False).report(10).is_written is False
        assert Stepping(reports / "later", RankTask(False, "inductor")).report(10).is_written is None

    def test_reported_turns_are_those_that_ran(self, reports: Path) -> None:
        """They follow from the run's seed, which is in the task."""
        task = RankTask(False, "inductor", turns=draw_turns())
        task.write(reports)
        stepping = Stepping(reports / "one", task)
        report = stepping.report(60)
        assert report.turns == [name == "baseline" for name in stepping.called]
        turns = RankTask.read(reports).turns
        assert turns is not None
        assert report.turns == [is_baselines_turn(step, turns) for step in range(60)]
        assert any(report.turns)


@keeps_bits
@pytest.mark.slow
def test_a_program_that_keeps_everything_in_slots_is_compared(tmp_path: Path) -> None:
    """Its cache differs after the last step, which no output shows; each run has another order of turns."""
    recipe = yaml.safe_load((PROJECT / "recipe.yaml").read_text())
    recipe |= {"command": [str(warm.python_in(tmp_path)), "generate.py"], "environment": {"FAULT": "cache"}}
    recipe |= {"directory": str(PROJECT)}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    plan = Plan((Scope("blocks.0", "blocks.0", (("emulate_precision_casts", True),)),))
    with program_runner(path, tmp_path) as runner:
        assert runner.open().facts["alternates"]
        outcome = runner.run(Judge(plan, "trial.log"), silent)
        assert outcome.is_feasible, outcome.detail
        verified = runner.run(Verify("1", plan, 2048), silent)
    assert str(verified) == "rank 0: state model.cache.sums[2] differs from the baseline's after 90 steps"
    tasks = [json.loads(path.read_text()) for path in (tmp_path / "study" / "work").glob("run-*/task.json")]
    drawn = [task["turns"] for task in tasks if task["turns"] is not None]
    assert len(drawn) == len(set(drawn)) == 2


def test_a_plan_that_no_longer_runs_has_not_other_bits(tmp_path: Path) -> None:
    """As after an upgrade: a recheck tells the one from the other, and so does a study."""
    with faulty_program(tmp_path, "refuse") as runner:
        verified = runner.run(Verify("1", PLAN, 2048), silent)
    assert verified is not None and verified.is_broken
    assert Outcome().after(verified).reason is Reason.CRASHED
