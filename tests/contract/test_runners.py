"""What a search may rely on, whichever runner it has: a worker, a recipe's program, or a law."""

import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from sktune.core.codec import decoded, encoded
from sktune.core.errors import OutOfTimeError
from sktune.core.outcome import BASELINE, Outcome, Reason, Stage
from sktune.core.plan import Plan, Scope
from sktune.core.space import SpaceSpec
from sktune.measure.noise_floor import Threshold
from sktune.recipes.runner import ProgramRunner
from sktune.targets import RecipeSpec, describe
from sktune.worker import RUNNERS, make_runner
from sktune.worker.jobs import (
    Compare,
    Deliver,
    Judge,
    NamedPlan,
    Runner,
    RunnerSetup,
    SampleNoiseFloor,
    Shortlist,
    Verify,
)
from sktune.worker.runner import WorkerRunner
from tests import warm
from tests.fake_runner import FakeRunner
from tests.recipes.reporting import program_runner, reporting

ROOT = Path(__file__).parent.parent.parent
RECIPE = ROOT / "tests" / "projects" / "slots" / "recipe.yaml"
STEPS = 40


def fake(folder: Path) -> Runner:
    """Return a law."""
    return FakeRunner()


def worker(folder: Path) -> Runner:
    """Return a worker that simulates the example model."""
    spec, _ = describe(f"{ROOT / 'examples' / 'own_model.py'}:target", backend="sim")
    return WorkerRunner(RunnerSetup(spec, SpaceSpec(), folder / "study", folder / "cache", 120))


def program(folder: Path) -> Runner:
    """Return a program that reports as a rank does, without a model."""
    return reporting(folder / "program", command=[sys.executable, "program.py", str(STEPS)])


def project(folder: Path) -> Runner:
    """Return a program that compiles a model."""
    recipe = Path(shutil.copytree(RECIPE.parent, folder / "slots")) / "recipe.yaml"
    values = yaml.safe_load(recipe.read_text()) | {"command": [str(warm.python_in(folder)), "generate.py"]}
    recipe.write_text(yaml.safe_dump(values))
    return program_runner(recipe, folder)


@pytest.fixture(scope="module", params=[fake, worker, program, pytest.param(project, marks=pytest.mark.slow)])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Return each runner; all tests share it, as a search's trials do."""
    make: Callable[[Path], Runner] = request.param
    with make(tmp_path_factory.mktemp(make.__name__)) as made:
        yield made


@pytest.fixture
def plans(runner: Runner) -> list[NamedPlan]:
    """Return two plans: a scope of the first unit, and one of the first two, where there are two."""
    units = [unit.name for unit in runner.open().layout.units]
    return [("1", Plan((Scope(units[0], units[0]),))), ("2", Plan((Scope(units[0], units[:2][-1]),)))]


def silent(stage: str) -> None:
    """Ignore a stage."""


def test_opening_says_what_is_tuned(runner: Runner) -> None:
    """Again, it is the same; traits agree with each other."""
    opened = runner.open()
    assert opened.layout.units
    assert opened.description
    assert set(opened.seconds) == {"load", "baseline"}
    traits = opened.traits
    assert traits.max_shortlisted >= traits.max_finalists >= 1 <= traits.final_processes
    assert runner.open().layout == opened.layout


def test_a_trial_ends_in_an_outcome(runner: Runner, plans: list[NamedPlan]) -> None:
    """Its stages are known, its seconds are listed by stage, and it survives the study's JSON."""
    stages: list[str] = []
    outcome = runner.run(Judge(plans[0][1], "trial-0000.log"), stages.append)
    assert outcome.is_feasible, outcome.detail
    assert outcome.speedup is not None
    assert stages[0] == Stage.COMPILE
    assert set(stages) | set(outcome.seconds) <= set(Stage)
    assert (outcome.stage is None) is (outcome.reason is None)
    assert decoded(Outcome, json.loads(json.dumps(encoded(outcome)))) == replace(outcome, seconds=dict(outcome.seconds))


def test_a_plan_is_held_to_its_threshold(runner: Runner, plans: list[NamedPlan]) -> None:
    """A difference below the noise floor is no win."""
    request = Judge(plans[0][1], "trial-0001.log", threshold=Threshold(noise_floor=5.0))
    outcome = runner.run(request, silent)
    assert outcome.noise_floor == 5.0
    assert outcome.comparison != "faster"
    assert outcome.reason in (None, Reason.SLOWER)


def test_the_noise_floor_is_sampled_where_time_is_measured(runner: Runner) -> None:
    """Nowhere else is there noise."""
    sample = runner.run(SampleNoiseFloor(0))
    assert (sample is not None) is runner.open().traits.measures_time
    assert sample is None or (sample.before_trial == 0 and sample.speedup.ratio > 0)


def test_a_shortlist_is_an_order(runner: Runner, plans: list[NamedPlan]) -> None:
    """Of all plans."""
    assert sorted(runner.run(Shortlist(plans))) == ["1", "2"]


def test_a_sound_plan_is_verified(runner: Runner, plans: list[NamedPlan]) -> None:
    """It is identical on the steps that were compared; what is computed has no bits."""
    found = runner.run(Verify(*plans[0], STEPS), silent)
    assert (found is not None) is runner.open().traits.measures_time
    assert found is None or (found.is_identical and found.steps > 0)


def test_a_comparison_has_a_row_for_each(runner: Runner, plans: list[NamedPlan]) -> None:
    """The baseline's first, to which all are compared, and whose bits are its own."""
    found = runner.run(Compare(plans, process=2), silent)
    assert found.rows[0].name == BASELINE
    assert {"1", "2"} <= {row.name for row in found.rows}
    assert all(row.speedup is not None for row in found.rows), found.rows
    same = True if runner.open().traits.measures_time else None
    assert found.rows[0].bit_identical is same
    if torch.__version__ >= "2.10":  # Inductor of torch 2.8 changes bits of the second plan, as the row says
        assert {row.bit_identical for row in found.rows} == {same}


def test_what_is_delivered_can_be_checked(runner: Runner, plans: list[NamedPlan], tmp_path: Path) -> None:
    """Or nothing is."""
    delivery = runner.run(Deliver(plans[0][1], tmp_path / "artifacts"))
    assert delivery is None or delivery.contents(tmp_path / "artifacts")


def test_durations_follow_what_was_seen(runner: Runner) -> None:
    """All take some time; the final comparison holds as many plans, in as many processes, as the traits say."""
    opened = runner.open()
    found = opened.traits.estimate(opened, [{"compile": 3.0, "measure": 1.0}] * 3)
    assert min(found.opening_s, found.trial_s, found.finalist_s) > 0
    assert (found.max_finalists, found.processes) == (opened.traits.max_finalists, opened.traits.final_processes)
    assert found.final_s == found.processes * (found.opening_s + found.max_finalists * found.finalist_s)


def test_a_deadline_ends_a_request_and_not_the_runner(runner: Runner, plans: list[NamedPlan]) -> None:
    """It says nothing about the plan, which is judged once there is time again."""
    runner.open()
    runner.deadline_s = min(time.monotonic(), 0.0)
    with pytest.raises(OutOfTimeError):
        runner.run(Judge(plans[0][1], "trial-0002.log"), silent)
    runner.deadline_s = math.inf
    assert runner.run(Judge(plans[0][1], "trial-0002.log"), silent).is_feasible


def test_a_closed_runner_opens_again(runner: Runner, plans: list[NamedPlan]) -> None:
    """With the same layout."""
    layout = runner.open().layout
    runner.close()
    runner.close()
    assert runner.run(Judge(plans[0][1], "trial-0003.log"), silent).is_feasible
    assert runner.open().layout == layout


@pytest.mark.parametrize(("name", "kind"), [("worker", WorkerRunner), ("program", ProgramRunner)])
def test_a_targets_spec_says_what_runs_it(name: str, kind: type[Runner], tmp_path: Path) -> None:
    """In one place; nothing is started before it is entered or asked."""
    spec = (
        RecipeSpec.of_file(RECIPE, 0, lambda backend: "cpu")
        if name == "program"
        else describe("llama", backend="sim")[0]
    )
    assert spec.runner == name
    assert isinstance(make_runner(RunnerSetup(spec, SpaceSpec(), tmp_path / "s", tmp_path / "c")), kind)
    assert name in RUNNERS
    assert not list(tmp_path.iterdir())
