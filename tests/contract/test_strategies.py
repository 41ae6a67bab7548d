"""What holds for every strategy, those of other packages included; a new one joins by its line of ``STRATEGIES``."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState

from sktune.core.errors import BadInputError
from sktune.core.outcome import Outcome, Reason, Speedup
from sktune.core.plan import Plan, Scope
from sktune.core.space import OptionRules, SearchSpace, SpaceSpec, bind
from sktune.reports.comparison import Curve
from sktune.samplers import STRATEGIES, find_strategy, strategy_names
from sktune.study.study import Proposal, TuningStudy, sqlite_url
from sktune.tuning.loop import run
from sktune.tuning.request import Request
from tests.builders import decoder_layout, install_toy, one_line_error

Judge = Callable[[Plan], Outcome]

SPACE = bind(
    SpaceSpec(), decoder_layout(("dense", "moe", "moe")), {"fast": (False, True)}, OptionRules({"fast": False})
)
SMALL = bind(SpaceSpec(), decoder_layout(("dense",), ("a", "b"), outside=False), {}, OptionRules({}))
SLOW = ("gp",)
BLIND = ("grid", "random")
"""Strategies that no outcome changes: they are there to compare with."""

every_strategy = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in STRATEGIES]
)


def units_of(scope: Scope) -> list[str]:
    """Return the names of the units in a scope."""
    names = [unit.name for unit in SPACE.layout.units]
    return names[names.index(scope.first) : names.index(scope.last) + 1]


def passes(plan: Plan) -> Outcome:
    """Judge a plan by what is in scopes: each unit saves 1 ms of 100."""
    ratio = 100.0 / (100.0 - sum(len(units_of(scope)) for scope in plan.scopes))
    return Outcome(speedup=Speedup(100.0, 100.0 / ratio, ratio, (ratio, ratio), 40))


def without_attention(plan: Plan) -> Outcome:
    """Fail what has attention in a scope."""
    blamed = [scope.label for scope in plan.scopes if any("self_attn" in unit for unit in units_of(scope))]
    return Outcome(Reason.MISMATCH, "bits differ", blamed=blamed[0]) if blamed else passes(plan)


def opened(folder: Path) -> TuningStudy:
    """Open or create the study in ``folder``."""
    folder.mkdir(exist_ok=True)
    return TuningStudy.open("study", sqlite_url(folder), create=True)


def ask(study: TuningStudy, name: str, space: SearchSpace = SPACE) -> Proposal:
    """Ask for the next trial."""
    return study.ask(space, find_strategy(name), seed=3)


def tell(study: TuningStudy, proposal: Proposal, judge: Judge = passes) -> None:
    """Store what a judge says."""
    outcome = judge(proposal.plan)
    study.tell(proposal, outcome, outcome.speedup.latency_ms if outcome.speedup else None)


def proposed(
    study: TuningStudy, name: str, trials: int, space: SearchSpace = SPACE, judge: Judge = passes
) -> list[Plan]:
    """Run so many trials and return their plans."""
    plans = []
    for _ in range(trials):
        proposal = ask(study, name, space)
        tell(study, proposal, judge)
        plans.append(proposal.plan)
    return plans


@every_strategy
def test_it_has_the_name_that_it_is_found_by(name: str) -> None:
    """Trials and reports show where a plan comes from."""
    assert find_strategy(name).name == name


@every_strategy
def test_it_proposes_points_of_the_space(tmp_path: Path, name: str) -> None:
    """Every parameter, with one of its values; only a probe runs another plan than they stand for."""
    study = opened(tmp_path)
    for _ in range(8):
        proposal = ask(study, name)
        assert proposal.trial.params.keys() == SPACE.choices.keys()
        assert all(value in SPACE.choices[own] for own, value in proposal.trial.params.items())
        assert proposal.is_probe or proposal.plan == SPACE.plan(proposal.trial.params)
        tell(study, proposal)


@every_strategy
def test_it_works_with_one_trial(tmp_path: Path, name: str) -> None:
    """Which tries something."""
    [plan] = proposed(opened(tmp_path), name, 1)
    assert plan.scopes


@every_strategy
def test_no_plan_is_proposed_twice_while_others_are_left(tmp_path: Path, name: str) -> None:
    """A small space is tried to its last plan."""
    plans = proposed(opened(tmp_path), name, SMALL.size - 1, SMALL, lambda plan: Outcome(Reason.SLOWER))
    assert len(set(plans)) == SMALL.size - 1
    assert Plan() not in plans


@every_strategy
def test_a_killed_search_proposes_what_it_would_have_proposed(tmp_path: Path, name: str) -> None:
    """Whether it dies between two trials or in the middle of one: nothing but the study's trials is needed."""
    at_once = proposed(opened(tmp_path / "a"), name, 9)
    proposed(opened(tmp_path / "b"), name, 4)
    interrupted = ask(opened(tmp_path / "b"), name)
    again = ask(opened(tmp_path / "b"), name)
    assert (again.number, again.plan) == (interrupted.number, interrupted.plan)
    study = opened(tmp_path / "b")
    resumed = proposed(study, name, 5)
    assert [record.plan for record in study.records()] == at_once
    assert resumed == at_once[4:]


@every_strategy
def test_a_failure_violates_a_constraint(tmp_path: Path, name: str) -> None:
    """It is no plan that a search may end with, and whatever learns from outcomes goes on in another way."""
    study = opened(tmp_path / "failing")
    found = proposed(study, name, 11, judge=without_attention)
    for trial, plan in zip(study.trials(), found, strict=True):
        has_failed = not without_attention(plan).is_feasible
        assert (trial.constraints["feasible"] > 0) is has_failed
        assert not has_failed or trial.state is TrialState.PRUNED
    assert all(without_attention(record.plan).is_complete for record in study.best_first(SPACE))
    assert (found != proposed(opened(tmp_path / "passing"), name, 11)) is (name not in BLIND)


TOY = '''
import numpy as np
from optuna.samplers import BaseSampler

from sktune.samplers import Strategy
from sktune.study.strategy import distributions


class OneMore(BaseSampler):
    """The simplest point, with one more parameter changed in each trial."""

    def __init__(self, space, seed):
        self.space, self.rng = space, np.random.default_rng(seed)

    def infer_relative_search_space(self, study, trial):
        return distributions(self.space)

    def sample_relative(self, study, trial, search_space):
        names = self.rng.permutation(list(search_space))[: trial.number + 1]
        return self.space.simplest | {name: self.space.choices[name][-1] for name in names}

    def sample_independent(self, study, trial, name, distribution):
        raise NotImplementedError


STRATEGY = Strategy("toy", OneMore, starts_alone=True)
'''.lstrip()


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package with a strategy, and one that is broken; return a folder for studies."""
    install_toy(tmp_path / "site", TOY, "[sktune.samplers]\ntoy = toy:STRATEGY\nbroken = toy:MISSING\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield tmp_path
    sys.modules.pop("toy", None)  # other tests have other packages of that name


def test_another_package_adds_a_strategy_in_25_lines(toy: Path) -> None:
    """A search finds it by its name and uses it; reports know what proposed the plans."""
    assert len(list(filter(None, TOY.splitlines()))) < 25
    assert strategy_names() == (*STRATEGIES, "broken", "toy")
    result = run(Request("llama", backend="sim", strategy="toy", trials=3, study="toy", runs=toy / "runs"))
    assert [record.origin for record in result.trials] == ["toy"] * 3
    assert len({record.plan for record in result.trials}) == 3
    assert Curve(result).strategies == ("toy",)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", r"--strategy broken: .* has no attribute 'MISSING'"),
        ("tyo", "unknown strategy 'tyo'; did you mean 'toy'"),
        ("toy:MISSING", "--strategy toy:MISSING: .*give module:function"),
        ("no_such_module:make", "--strategy no_such_module:make: No module named"),
    ],
)
def test_a_strategy_that_cannot_be_had_is_refused_in_one_line(toy: Path, name: str, message: str) -> None:
    """With what is wrong, and the nearest name."""
    with one_line_error(BadInputError, message):
        find_strategy(name)
