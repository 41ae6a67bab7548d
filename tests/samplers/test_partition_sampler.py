"""The partition sampler: what it finds, what it never does, and that it only learns from the study."""

import math
import os
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState, create_trial

from benchmarks.landscape import Truth, measured, replay
from benchmarks.landscapes.failing import FailingLandscape
from benchmarks.landscapes.recorded import names, recorded, request_of
from benchmarks.landscapes.simulated import sim_61_bare
from benchmarks.landscapes.synthetic import SYNTHETIC, SyntheticLandscape
from benchmarks.search import landscape_source
from sktune.core.codec import decoded, encoded
from sktune.core.outcome import Outcome, Reason, ScopeTime, Speedup
from sktune.core.plan import Option, Plan, Scope
from sktune.core.space import JOIN, LAYERS_PER_SCOPE, OptionRules, SpaceSpec, StartingPoint, bind
from sktune.learning.attributes import ORIGIN, OUTCOME, PROBE
from sktune.learning.failures import Feasibility
from sktune.learning.history import Learned
from sktune.learning.segments import SegmentCatalogue
from sktune.samplers.partition import PARTITION, WITHOUT_PROBES, PartitionSampler
from sktune.study.strategy import distributions
from tests.builders import decoder_layout
from tests.releases import shapes_only

KEYS = ("norm", "attention", "gate", "mlp")
SPACE = bind(
    SpaceSpec(layers_per_scope=[1, 2, "all"]),
    decoder_layout(("dense", *("moe",) * 5), KEYS),
    {"fast": (False, True)},
    OptionRules({"fast": False}),
)


def landscape(name: str = "coupled", seed: int = 0) -> SyntheticLandscape:
    """Return a synthetic landscape; ``coupled`` is the smallest."""
    land = SYNTHETIC[name](seed)
    assert isinstance(land, SyntheticLandscape)
    return land


def latency_ms(plan: Plan) -> float:
    """Return a latency for which every scope costs time, and scopes of several units save more."""
    inside = sum(int(scope.first != scope.last) for scope in plan.scopes)
    return 10.0 + 0.05 * len(plan.scopes) - 0.2 * inside


def test_the_optimum_of_an_additive_landscape_is_found_soon() -> None:
    """The median gain over seeds is 0.95 after 20 trials, which Optuna's TPE is far from."""
    gains = sorted(
        replay(landscape("synthetic", seed), WITHOUT_PROBES, trials=20, seed=seed).gains[-1] for seed in range(5)
    )
    assert gains[2] >= 0.95


def test_it_begins_with_the_starting_points_and_chooses_their_options() -> None:
    """The first one unchanged; the others in an order that it chooses, with any options that they leave open."""
    land = landscape("synthetic-61")
    points = land.space.starting_points
    exact = {**points[-1].values, "fusion": 1}
    space = replace(land.space, starting_points=(*points[:-1], StartingPoint("mine", exact, sets_options=True)))
    study = optuna.create_study(sampler=PartitionSampler(space, seed=0))
    for _ in points:
        run_trial(study, land)
    plans = {trial.user_attrs[ORIGIN]: space.plan(trial.params) for trial in study.trials if ORIGIN in trial.user_attrs}
    assert next(iter(plans)) == points[0].name
    assert plans[points[0].name] == space.plan(points[0].values)
    assert plans["mine"] == space.plan(exact)
    assert len(plans) > 2
    ranges = {point.name: space.plan(point.values).ranges for point in space.starting_points}
    assert all(plan.ranges == ranges[name] for name, plan in plans.items())
    assert any(plan.scopes[0].options for name, plan in plans.items() if name != "mine")
    left_out = [land.evaluate(space.plan(point.values)).latency_ms for point in points if point.name not in plans]
    assert all(latency and latency > study.best_value for latency in left_out)


def test_a_failed_starting_point_is_tried_without_a_unit_at_an_end() -> None:
    """Until one of these works: the unit that makes a long scope fail is most often at an end."""
    values = {**SPACE.simplest, **{SPACE.parameter(unit): JOIN for unit in SPACE.layout.units}}
    space = replace(SPACE, starting_points=(StartingPoint("each layer", {**values, LAYERS_PER_SCOPE: 1}),))
    study = optuna.create_study(sampler=PartitionSampler(space, seed=0))
    for _ in range(8):
        trial = study.ask(distributions(space))
        plan = space.plan(trial.params)
        fails = any(scope.first.endswith("norm") and scope.last.endswith("5.mlp") for scope in plan.scopes)
        study.tell(trial, None if fails else latency_ms(plan), state=TrialState.PRUNED if fails else None)
    origins = [trial.user_attrs[ORIGIN] for trial in study.trials if ORIGIN in trial.user_attrs]
    assert origins[0] == "each layer"
    assert set(origins[1:]) <= {
        f"each layer without {kind}.{end}" for kind in ("dense", "moe") for end in ("norm", "mlp")
    }
    states = [trial.state for trial in study.trials[: len(origins)]]
    assert states == [TrialState.PRUNED] * (len(origins) - 1) + [TrialState.COMPLETE]


def test_no_plan_is_proposed_twice_even_by_four_workers() -> None:
    """All plans of a run differ, whichever worker asks."""
    run = replay(landscape(), WITHOUT_PROBES, trials=24, seed=1, workers=4)
    assert len(set(run.plans)) == 24


def test_workers_that_start_together_begin_with_different_starting_points() -> None:
    """Optuna only stores a trial's parameters after the sampler has returned, so the sampler does not see them."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=PartitionSampler(SPACE, seed=0))
    for _ in range(3):
        study._storage.create_new_trial(study._study_id)
    sampler, trials = PartitionSampler(SPACE, seed=0), study.get_trials(deepcopy=False)
    points = [sampler.sample_relative(study, trial, distributions(SPACE)) for trial in trials]
    assert len({SPACE.plan(point) for point in points}) == 3


def test_plans_that_start_before_anything_is_known_differ_in_their_scopes() -> None:
    """After the starting points; neighbours of the first one would often have the same scopes."""
    run = replay(landscape(), WITHOUT_PROBES, trials=10, seed=1, workers=10)
    assert len({plan.ranges for plan in run.plans}) == 10


def test_a_probe_that_runs_counts_as_one() -> None:
    """Otherwise every free die would get one until the first has ended."""
    learned, probe = Learned(SPACE), Plan((Scope(SPACE.layout.units[0].name, SPACE.layout.units[1].name),))
    point = {name: choices[0] for name, choices in SPACE.choices.items()}
    running = create_trial(state=TrialState.RUNNING, params=point, distributions=distributions(SPACE),
                           user_attrs={PROBE: encoded(probe)})  # fmt: skip
    for _ in range(2):
        assert learned.read([running]) == [probe]
        assert learned.probes == 1


def test_it_works_in_any_optuna_study() -> None:
    """A plain objective in a plain study is enough; trials without a value count as failures."""

    def objective(trial: optuna.Trial) -> float:
        for name, choices in SPACE.choices.items():
            trial.suggest_categorical(name, choices)
        plan = SPACE.plan(trial.params)
        if any("gate" in scope.first for scope in plan.scopes):
            raise optuna.TrialPruned
        return latency_ms(plan)

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=PartitionSampler(SPACE, seed=0))
    study.optimize(objective, n_trials=16)
    assert study.best_value < latency_ms(Plan())
    assert len({SPACE.plan(trial.params) for trial in study.trials}) == 16


def run_trial(study: optuna.Study, land: SyntheticLandscape) -> Plan:
    """Run one trial of ``study`` on ``land``, and return its plan."""
    trial = study.ask(distributions(land.space))
    attributes = study.get_trials(deepcopy=False)[trial.number].user_attrs
    plan = decoded(Plan, attributes[PROBE]) if PROBE in attributes else land.space.plan(trial.params)
    outcome = measured(land, plan, land.evaluate(plan), seed=0)
    trial.set_user_attr(OUTCOME, encoded(outcome))
    if outcome.is_complete and outcome.speedup and PROBE not in attributes:
        study.tell(trial, outcome.speedup.latency_ms)
    else:
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    return plan


def test_killed_after_every_trial_it_proposes_the_same() -> None:
    """A new sampler for each trial proposes the same plans as one that keeps running."""
    land = landscape("failing", seed=2)
    plans = []
    for is_killed in (False, True):
        study = optuna.create_study(sampler=PARTITION.factory(land.space, 3))
        proposed = []
        for _ in range(14):
            if is_killed:
                study.sampler = PARTITION.factory(land.space, 3)
            proposed.append(run_trial(study, land))
        plans.append(proposed)
    assert plans[0] == plans[1]


def test_a_scope_that_is_known_to_fail_is_not_tried_again() -> None:
    """Neither alone nor in any combination, once it has been blamed."""
    land = landscape("failing", seed=1)
    catalogue = Learned(land.space).catalogue
    run = replay(land, WITHOUT_PROBES, trials=36, seed=1)
    known: set[int] = set()
    for plan, failed in zip(run.plans, run.failed, strict=True):
        segments = {int(catalogue.class_of[pair]) for pair in catalogue.positions(plan)}
        assert not segments & known
        truth: Truth = land.evaluate(plan)
        labels = [scope.label for scope in plan.scopes]
        if failed and truth.blamed in labels:
            known.add(int(catalogue.class_of[catalogue.positions(plan)[labels.index(truth.blamed)]]))
    assert known


@pytest.mark.parametrize("seed", [1, 4, 12])
def test_failures_are_kept_within_their_budget(seed: int) -> None:
    """Although half of all plans and a fifth of the segments fail, at most 15% of the later trials do."""
    land = FailingLandscape(recorded("deepseek-v3-bfloat16"), seed)
    run = replay(land, PARTITION, trials=30, seed=seed)
    assert sum(run.failed[10:]) <= 3
    assert run.gains[-1] > 0.9


def feasibility() -> tuple[Feasibility, SegmentCatalogue]:
    """Return an untrained model of failures, and its segments."""
    catalogue = SegmentCatalogue(SPACE.layout, 2)
    return Feasibility(catalogue, {"fast": False}), catalogue


def test_wrong_blame_is_withdrawn() -> None:
    """A blamed scope that works later is safe again; of two suspects, the other one is then to blame."""
    learned, _ = feasibility()
    learned.failed([(3, ()), (7, ())], blamed=(3, ()))
    assert learned.log_safe([()])[3, 0] == -float("inf")
    learned.succeeded([(3, ())])
    assert learned.log_safe([()])[3, 0] == 0.0

    learned, _ = feasibility()
    learned.failed([(3, ()), (7, ())], blamed=None)
    assert learned.blamed() == []
    assert learned.log_safe([()])[3, 0] < -0.1
    learned.succeeded([(3, ())])
    assert learned.blamed() == [(7, ())]


@pytest.mark.parametrize("working", [0, 2, 6])
def test_the_more_scopes_fail_the_less_safe_are_untried_ones(working: int) -> None:
    """Also when so many fail that full steps of Newton's method oscillate."""
    learned, catalogue = feasibility()
    last = len(catalogue.first) - working
    for segment in range(last, len(catalogue.first)):
        learned.succeeded([(segment, ())])
    safe = []
    for segment in range(24):
        learned.failed([(segment, ())], blamed=(segment, ()))
        safe.append(float(learned.log_safe([()])[24:last].mean()))
    assert safe == sorted(safe, reverse=True)


def test_a_scope_that_failed_with_an_inexact_value_is_tried_with_an_exact_one() -> None:
    """The best scope of a model is not given up because of the first options that it was tried with."""
    catalogue = SegmentCatalogue(SPACE.layout, 2)
    learned = Feasibility(catalogue, {"reductions": "fused"}, frozenset({("reductions", "fused")}))
    exact = (("reductions", "aten"),)
    learned.failed([(3, ())], blamed=(3, ()))
    fused, aten = learned.log_safe([(), exact])[3]
    assert fused == -float("inf")
    assert aten > -1.0
    learned.failed([(3, exact)], blamed=(3, exact))
    assert learned.log_safe([(), exact])[3].max() == -float("inf")


@pytest.mark.parametrize("name", [name for name in names() if request_of(name).batch is None])
def test_on_recorded_landscapes_the_optimum_is_near_after_twenty_trials(name: str) -> None:
    """Real latencies, real mismatches; benchmarks/search.py has a hundred seeds. Those of shapes are smaller."""
    gains = [replay(recorded(name), WITHOUT_PROBES, 20, seed).gains[-1] for seed in range(5)]
    assert sorted(gains)[2] >= 0.95, gains


@shapes_only
@pytest.mark.slow
def test_expensive_options_do_not_keep_the_search_from_its_first_values() -> None:
    """With a single belief about how much options matter, these seeds stay at 0.31 to 0.43."""
    gains = [replay(sim_61_bare(seed), PARTITION, 20, seed).gains[-1] for seed in (13, 18)]
    assert min(gains) >= 0.85, gains


def test_no_risk_is_taken_while_plans_of_working_scopes_are_left() -> None:
    """Once the budget of failures is spent, working scopes are recombined; without that, six of these trials failed."""
    run = replay(FailingLandscape(recorded("llama-float32"), seed=4), PARTITION, trials=30, seed=4)
    assert sum(run.failed[10:]) <= 3


def test_an_option_that_fails_everywhere_is_distinguished_from_a_scope_that_fails() -> None:
    """Scopes that work without the option stay safe, and other scopes are expected to fail with it."""
    learned, _ = feasibility()
    fast = (("fast", True),)
    for segment in range(6):
        learned.succeeded([(segment, ())])
        learned.failed([(segment, fast)], blamed=(segment, fast))
    table = learned.log_safe([(), fast])
    assert (table[:6, 0] == 0.0).all()
    assert table[8, 1] < table[8, 0] - 0.3


@pytest.mark.parametrize("name", ["synthetic-61", "cliff"])
def test_a_probe_tries_many_partitions_and_is_never_the_incumbent(name: str) -> None:
    """In a probe the layers of a kind differ, also in options; its scopes are learned from, its latency is ignored."""
    land = landscape(name, seed=0)
    run = replay(land, PARTITION, trials=10, seed=0)
    probes = [plan for plan, is_probe in zip(run.plans, run.probe, strict=True) if is_probe]
    assert probes
    learned = Learned(land.space)
    kinds = {int(learned.catalogue.class_of[pair]) for pair in learned.catalogue.positions(probes[0])}
    others = [plan for plan, is_probe in zip(run.plans, run.probe, strict=True) if not is_probe]
    largest = max(
        len({int(learned.catalogue.class_of[p]) for p in learned.catalogue.positions(plan)}) for plan in others
    )
    assert len(kinds) > largest
    assert len({scope.options for scope in probes[0].scopes}) > 4
    land.space.layout.check(probes[0])


def test_a_probe_has_no_option_that_often_changes_bits() -> None:
    """A single failure would spoil dozens of scopes in one compile."""
    land = landscape("synthetic-61", seed=0)
    suspects = frozenset(("split", value) for value in (1, 2, 8))
    land.space = replace(land.space, options=replace(land.space.options, changes_bits=suspects))
    run = replay(land, PARTITION, trials=8, seed=0)
    probes = [plan for plan, is_probe in zip(run.plans, run.probe, strict=True) if is_probe]
    assert probes
    assert suspects.isdisjoint(option for plan in probes for scope in plan.scopes for option in scope.options)


def test_a_default_of_the_compiler_may_change_bits() -> None:
    """Although a plan does not list it."""
    often = frozenset({("fast", False)})
    learned = Feasibility(SegmentCatalogue(SPACE.layout, 2), {"fast": False}, often)
    assert learned.changes_bits(()) == often
    assert not learned.changes_bits((("fast", True),))


def test_a_probe_of_a_study_does_not_become_its_result() -> None:
    """Optuna sees it as a pruned trial without a value."""
    land = landscape("synthetic-61", seed=0)
    study = optuna.create_study(sampler=PARTITION.factory(land.space, 0))
    for point in land.space.starting_points:
        study.enqueue_trial(dict(point.values))
    for _ in range(8):
        run_trial(study, land)
    probes = [trial for trial in study.trials if PROBE in trial.user_attrs]
    assert probes
    assert all(trial.value is None for trial in probes)


def test_scopes_of_a_plan_that_changes_bits_are_learned_from() -> None:
    """Those that change bits are known to fail, the others to work, and the times of all are learned."""
    point = {name: choices[0] for name, choices in SPACE.choices.items()}
    point |= {"dense.attention": "new", "moe.attention": "new", "moe.gate": "new"}
    plan = SPACE.plan(point)
    unsound = tuple(scope.label for scope in plan.scopes if "gate" in scope.label)
    times = tuple(ScopeTime(scope.first, scope.last, True, 1.0, 0.5) for scope in plan.scopes)
    outcome = Outcome(Reason.MISMATCH, "bits differ", blamed=unsound[0], changes_bits=unsound, scope_times=times)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.enqueue_trial(point)
    trial = study.ask(distributions(SPACE))
    trial.set_user_attr(OUTCOME, encoded(outcome))
    study.tell(trial, state=TrialState.PRUNED)
    learned = Learned(SPACE)
    learned.read(study.trials)
    assert [learned.catalogue.name(segment) for segment, _ in learned.feasibility.blamed()] == ["moe.gate"]
    attention = SPACE.plan({**point, "moe.gate": "out"})
    assert learned.log_safe([attention]) == [0.0]
    mean, _ = learned.posterior().predict_plans(learned.model.describe([attention]))
    assert mean[0] > 0.2
    assert not learned.ranked


def test_a_search_in_which_every_plan_changes_bits_goes_on() -> None:
    """Scope times are learned before anything works, without a best plan to judge options by."""
    options: dict[str, tuple[Option, ...]] = {"first": (0, 1, 2, 3), "second": (0, 1, 2, 3), "third": (0, 1, 2, 3)}
    layout = decoder_layout(("dense", *("moe",) * 5), KEYS)
    space = bind(SpaceSpec(), layout, options, OptionRules(dict.fromkeys(options, 0)))
    study = optuna.create_study(sampler=PARTITION.factory(space, 0))
    plans = []
    for _ in range(8):
        trial = study.ask(distributions(space))
        plans.append(plan := space.plan(trial.params))
        labels = tuple(scope.label for scope in plan.scopes)
        times = tuple(ScopeTime(scope.first, scope.last, True, 1.0, 0.5) for scope in plan.scopes)
        outcome = Outcome(Reason.MISMATCH, "bits differ", blamed=labels[0], changes_bits=labels, scope_times=times)
        trial.set_user_attr(OUTCOME, encoded(outcome))
        study.tell(trial, state=TrialState.PRUNED)
    assert len(set(plans)) == 8
    assert PartitionSampler(space, seed=0).outlook(study.trials).expected_gain_left > 0


def test_what_is_left_does_not_depend_on_who_proposed() -> None:
    """Nor on whether the search was killed meanwhile; where the final comparison shows less of it, more is left."""
    landscape = landscape_source("sim-8")(0)
    sampler = PartitionSampler(landscape.space, 0, probes=True)
    trials = replay(landscape, replace(PARTITION, factory=lambda *_: sampler), 6, 0).trials
    fresh = PartitionSampler(landscape.space, 0)
    left = fresh.gain_left(trials)
    assert sampler.gain_left(trials) == left
    named = max(expected := sampler.expected_savings(trials), key=lambda plan: expected[plan])
    assert fresh.gain_left(trials, named) == left
    for saving, is_more in ((0.5 * expected[named], True), (expected[named] + 0.01, False)):
        compared = Speedup(1.0, 1 - saving, 1 / (1 - saving), None, 10)
        assert (fresh.gain_left(trials, named, compared) > left) is is_more


def test_failures_of_other_strategies_are_learned_from() -> None:
    """Outcomes are read whatever proposed the trial; a slower plan is feasible."""
    outcome = Outcome(Reason.MISMATCH, "bits differ", blamed="model.layers.0.attention")
    point = {name: choices[0] for name, choices in SPACE.choices.items()} | {"dense.attention": "new"}
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.enqueue_trial(point)
    trial = study.ask(distributions(SPACE))
    trial.set_user_attr(OUTCOME, encoded(outcome))
    study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    learned = Learned(SPACE)
    learned.read(study.trials)
    assert [learned.catalogue.name(segment) for segment, _ in learned.feasibility.blamed()] == ["dense.attention"]
    slower = replace(outcome, reason=Reason.SLOWER, blamed="")
    assert asdict(decoded(Outcome, encoded(slower))) == asdict(slower)


RISKS = """
from sktune.core.layout import Layer, Layout, Unit
from sktune.learning.history import Learned
from sktune.core.plan import Plan, Scope
from sktune.core.space import OptionRules, SpaceSpec, bind

names = [f"option-{number}" for number in range(9)]
keys = [f"unit-{number}" for number in range(9)]
layout = Layout(tuple(Unit(key, key, 0) for key in keys), (Layer("layer", "dense"),))
choices = {name: (0, 1) for name in names[:2]}
learned = Learned(bind(SpaceSpec(), layout, choices, OptionRules(dict.fromkeys(names, 0))))
for number in range(1, 9):
    key = (number, tuple((name, 1) for name in names[:number]))
    learned.feasibility.failed([key], key)
    learned.feasibility.succeeded([(number // 2, key[1][1:])])
scopes = [Scope(key, key, ((names[number], 1),)) for number, key in enumerate(keys)]
plans = [Plan(tuple(scopes[:count])) for count in range(1, 10)]
table = learned.feasibility.log_safe([scope.options for scope in scopes])
print(learned.log_safe(plans).tolist(), table.tolist())
"""
"""Prints the probabilities that plans and scopes with many options work."""


def test_a_resumed_search_has_the_same_beliefs_to_the_last_bit() -> None:
    """In a process whose sets have another order."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", RISKS],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(3)
    }
    assert len(outputs) == 1


def learned_of(*trials: tuple[dict[str, Option], Outcome | None, float | None]) -> Learned:
    """Return what is learned from trials with these choices, outcomes and latencies."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for chosen, outcome, latency in trials:
        study.enqueue_trial({**SPACE.simplest, **chosen})
        trial = study.ask(distributions(SPACE))
        if outcome:
            trial.set_user_attr(OUTCOME, encoded(outcome))
        if latency is not None and math.isnan(latency):
            trial.report(latency, step=0)
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, latency, state=TrialState.PRUNED if latency is None else None)
    learned = Learned(SPACE)
    learned.read(study.trials)
    return learned


def test_scopes_without_operators_work_and_save_nothing() -> None:
    """Their plan may be used: it has the baseline's kernels, and was never measured."""
    outcome = Outcome(Reason.SLOWER, "its scopes contain no operators: it has the same kernels as the baseline")
    learned = learned_of(({"moe.gate": "new"}, outcome, None))
    assert learned.failures == [False]
    assert not learned.feasibility.has_failures
    assert [complete.saving for complete in learned.ranked] == [0.0]
    mean, sd = learned.posterior().predict_plans(learned.model.describe([learned.incumbent]))
    assert abs(mean[0]) < 1e-3
    assert sd[0] < 2e-3


def test_the_baseline_as_a_trial_is_neither_a_failure_nor_a_plan() -> None:
    """Nothing ran."""
    outcome = Outcome(Reason.SLOWER, "the plan has no scope: it is the baseline")
    learned = learned_of(({}, outcome, None))
    assert not learned.failures
    assert not learned.feasibility.has_failures
    assert not learned.ranked


def noisy(ratio: float, noise: float) -> Outcome:
    """Return the outcome of a plan measured with this noise."""
    halfwidth = 1.96 * noise * ratio
    return Outcome(speedup=Speedup(10, 10 / ratio, ratio, (ratio - halfwidth, ratio + halfwidth), 60))


@pytest.mark.parametrize(("noise", "best"), [(0.01, "all"), (0.0, "gate")])
def test_a_figure_that_contradicts_all_others_was_luck_unless_it_is_exact(noise: float, best: str) -> None:
    """The plan with the largest expected saving is the one that all other trials support."""
    trials: list[tuple[dict[str, Option], float]] = [
        ({f"{kind}.{unit}": "new"}, 0.01) for kind in ("dense", "moe") for unit in KEYS if unit != "gate"
    ]
    trials += [({f"dense.{unit}": "join" for unit in KEYS if unit != "gate"}, 0.04)]
    trials += [({"moe.gate": "new"}, 0.081)]
    trials += [({f"{kind}.{unit}": "join" for kind in ("dense", "moe") for unit in KEYS}, 0.08)]
    learned = learned_of(*((values, noisy(1 / (1 - saving), noise), 10 * (1 - saving)) for values, saving in trials))
    expected = learned.expected_savings()
    found = max(expected, key=lambda plan: expected[plan])
    assert len(expected) == len(trials)
    assert all("gate" in scope.first for scope in found.scopes) == (best == "gate")
    if noise == 0.0:
        assert list(expected.values()) == pytest.approx([complete.saving for complete in learned.ranked])


@pytest.mark.slow
def test_the_largest_expected_saving_is_a_better_answer_than_the_lowest_figure() -> None:
    """By true latency, where figures are noisy."""
    noisy = recorded("deepseek-v3-bfloat16")
    by_figure, expected = (
        [replay(noisy, WITHOUT_PROBES, 20, seed, by_figure=by_figure) for seed in range(12)]
        for by_figure in (True, False)
    )
    assert [run.plans for run in by_figure] == [run.plans for run in expected]
    assert np.mean([run.gains[-1] for run in by_figure]) < np.mean([run.gains[-1] for run in expected])


@pytest.mark.parametrize("wrong", [float("inf"), float("nan")])
def test_a_latency_that_is_not_finite_is_a_failure(wrong: float) -> None:
    """Other trials are never compared with it, and are learned from as usual."""
    learned = learned_of(
        ({"moe.gate": "new"}, None, wrong), ({"moe.mlp": "new"}, None, 10.0), ({"moe.norm": "new"}, None, 9.0)
    )
    assert learned.failures == [True, False, False]
    assert [complete.saving for complete in learned.ranked] == pytest.approx([0.1, 0.0])
    assert np.isfinite(learned.posterior().mean).all()
