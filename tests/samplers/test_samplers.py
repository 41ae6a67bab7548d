"""The scope guide's procedures: what each proposes, and that it only needs the study's trials."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from sktune.core.errors import BadInputError
from sktune.core.outcome import Outcome, Reason, Speedup
from sktune.core.plan import Plan
from sktune.core.space import OptionRules, SearchSpace, SpaceSpec, bind
from sktune.samplers import STRATEGIES, find_strategy
from sktune.study.strategy import distributions
from sktune.study.study import TuningStudy, sqlite_url
from tests.builders import CHILDREN, decoder_layout

BASELINE_MS = 100.0
KINDS = ("dense", "moe", "moe", "moe")
Judge = Callable[[Plan], Outcome]


def space_of(
    kinds: tuple[str, ...] = KINDS,
    children: tuple[str, ...] = CHILDREN,
    options: Mapping[str, tuple[bool, ...]] | None = None,
    outside: bool = True,
    per_layer: bool = False,
) -> SearchSpace:
    """Return the space of a decoder."""
    chosen = options if options is not None else {"fast": (False, True)}
    rules = OptionRules(dict.fromkeys(chosen, False))
    return bind(SpaceSpec(per_layer=per_layer), decoder_layout(kinds, children, outside), chosen, rules)


def took(latency_ms: float) -> Outcome:
    """Return the outcome of a plan that passed."""
    ratio = BASELINE_MS / latency_ms
    speedup = Speedup(BASELINE_MS, latency_ms, ratio, (ratio, ratio), 40)
    return Outcome(Reason.SLOWER if ratio < 1 else None, speedup=speedup)


def ratio(outcome: Outcome) -> float:
    """Return a plan's speedup; 0 if it fails."""
    return outcome.speedup.ratio if outcome.speedup else 0.0


def units_in_scopes(space: SearchSpace, plan: Plan) -> list[list[str]]:
    """Return the units of each scope."""
    names = [unit.name for unit in space.layout.units]
    return [names[names.index(scope.first) : names.index(scope.last) + 1] for scope in plan.scopes]


def wider_is_faster(space: SearchSpace) -> Judge:
    """Every unit in a scope saves 1 ms, and so does every border between units of one scope."""

    def judge(plan: Plan) -> Outcome:
        scopes = units_in_scopes(space, plan)
        saved = sum(2 * len(scope) - 1 for scope in scopes)
        return took(BASELINE_MS - saved - 0.5 * any(dict(scope.options) for scope in plan.scopes))

    return judge


def run_trial(study: TuningStudy, space: SearchSpace, strategy: str, judge: Judge) -> Plan:
    """Run one trial and return its plan."""
    proposal = study.ask(space, find_strategy(strategy), seed=0)
    assert proposal.known is None
    outcome = judge(proposal.plan)
    study.tell(proposal, outcome, outcome.speedup.latency_ms if outcome.speedup else None)
    return proposal.plan


def proposed(folder: Path, space: SearchSpace, strategy: str, judge: Judge, trials: int) -> list[Plan]:
    """Return the plans that a strategy proposes, one after the other."""
    folder.mkdir(exist_ok=True)
    study = TuningStudy.open("study", sqlite_url(folder), create=True)
    return [run_trial(study, space, strategy, judge) for _ in range(trials)]


def abbreviated(plans: list[Plan]) -> list[str]:
    """Return each plan as the number of its scopes, and first and last unit of the first two."""
    lines = []
    for plan in plans:
        scopes = [f"{scope.first}..{scope.last}".replace("model.", "").replace("layers.", "") for scope in plan.scopes]
        lines.append(f"{len(scopes)}: " + ", ".join(scopes[:2]))
    return lines


def test_bottom_up_widens_scopes_that_passed(tmp_path: Path) -> None:
    """Attention, MoE, FFN, together, a layer, all layers, the whole step; options come after the scopes."""
    space = space_of()
    plans = proposed(tmp_path, space, "bottom-up", wider_is_faster(space), 9)
    assert abbreviated(plans) == [
        "4: 0.self_attn..0.self_attn, 1.self_attn..1.self_attn",
        "3: 1.mlp..1.mlp, 2.mlp..2.mlp",
        "1: 0.mlp..0.mlp",
        "7: 0.self_attn..0.self_attn, 1.self_attn..1.self_attn",
        "8: 0.self_attn..0.self_attn, 0.mlp..0.mlp",
        "4: 0.input_layernorm..0.mlp, 1.input_layernorm..1.mlp",
        "2: 0.input_layernorm..1.mlp, 2.input_layernorm..3.mlp",
        "1: 0.input_layernorm..3.mlp",
        "1: embed_tokens..lm_head",
    ]
    last = proposed(tmp_path, space, "bottom-up", wider_is_faster(space), 1)[0]
    assert last.scopes[0].options == (("fast", True),)
    assert (last.scopes[0].first, last.scopes[0].last) == (plans[-1].scopes[0].first, plans[-1].scopes[0].last)


def test_bottom_up_keeps_only_what_was_faster(tmp_path: Path) -> None:
    """If a norm in a scope fails, widening stops, and options are tried on attention and FFN."""
    space = space_of()

    def judge(plan: Plan) -> Outcome:
        if any("norm" in unit for scope in units_in_scopes(space, plan) for unit in scope):
            return Outcome(Reason.MISMATCH, "a norm")
        return wider_is_faster(space)(plan)

    plans = proposed(tmp_path, space, "bottom-up", judge, 7)
    assert abbreviated(plans)[5] == "4: 0.input_layernorm..0.mlp, 1.input_layernorm..1.mlp"
    assert abbreviated(plans)[6] == abbreviated(plans)[4]
    assert plans[6].scopes[0].options == (("fast", True),)


def test_top_down_begins_with_the_whole_step_and_stops_when_narrowing_is_slower(tmp_path: Path) -> None:
    """One step narrower is slower here, so options follow immediately."""
    space = space_of()
    plans = proposed(tmp_path, space, "top-down", wider_is_faster(space), 3)
    assert abbreviated(plans) == ["1: embed_tokens..lm_head", "1: 0.input_layernorm..3.mlp", "1: embed_tokens..lm_head"]
    assert plans[2].scopes[0].options == (("fast", True),)


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("is_blamed", [False, True])
def test_top_down_narrows_until_plans_pass(tmp_path: Path, is_blamed: bool, per_layer: bool) -> None:
    """If experts fail, everything else ends up in scopes, whether or not the backend blames a scope."""
    space = space_of(per_layer=per_layer)

    def judge(plan: Plan) -> Outcome:
        for scope, units in zip(plan.scopes, units_in_scopes(space, plan), strict=True):
            if {"model.layers.2.mlp"} & set(units):
                return Outcome(Reason.COMPILE_FAILED, "no", blamed=scope.label if is_blamed else "")
        return wider_is_faster(space)(plan)

    found = proposed(tmp_path / "a", space, "top-down", judge, 30)
    best = max(found, key=lambda plan: ratio(judge(plan)))
    covered = {unit for units in units_in_scopes(space, best) for unit in units}
    assert {"model.layers.0.mlp", "model.layers.2.self_attn", "model.layers.3.post_attention_layernorm"} <= covered
    assert "model.layers.2.mlp" not in covered


def test_a_blamed_scope_is_left_out_first(tmp_path: Path) -> None:
    """After a blamed failure of each layer, the next plan has all other layer kinds."""
    space = space_of(outside=False)

    def judge(plan: Plan) -> Outcome:
        for scope, units in zip(plan.scopes, units_in_scopes(space, plan), strict=True):
            if any("layers.1.self_attn" in unit for unit in units):
                return Outcome(Reason.MISMATCH, "no", blamed=scope.label)
        return wider_is_faster(space)(plan)

    plans = proposed(tmp_path, space, "top-down", judge, 4)
    assert abbreviated(plans)[2] == "4: 0.input_layernorm..0.mlp, 1.input_layernorm..1.mlp"
    assert abbreviated(plans)[3] == "1: 0.input_layernorm..0.mlp"


def test_profile_puts_the_hottest_unit_in_first(tmp_path: Path) -> None:
    """By share of the step over all layers; neighbours join, and slower units are left out."""
    space = space_of(outside=False)
    shares = {"mlp": 0.15, "self_attn": 0.07, "post_attention_layernorm": 0.02, "input_layernorm": 0.01}
    units = tuple(replace(unit, time_share=shares[unit.key]) for unit in space.layout.units)
    space = replace(space, layout=replace(space.layout, units=units))

    def judge(plan: Plan) -> Outcome:
        spoilt = any("0.self_attn" in unit for scope in units_in_scopes(space, plan) for unit in scope)
        speedup = wider_is_faster(space)(plan).speedup
        assert speedup
        return took(speedup.latency_ms + 50 * spoilt)

    plans = proposed(tmp_path, space, "profile", judge, 5)
    assert abbreviated(plans) == [
        "3: 1.mlp..1.mlp, 2.mlp..2.mlp",
        "6: 1.self_attn..1.self_attn, 1.mlp..1.mlp",
        "7: 0.mlp..0.mlp, 1.self_attn..1.self_attn",
        "8: 0.self_attn..0.self_attn, 0.mlp..0.mlp",
        "4: 0.mlp..0.mlp, 1.self_attn..1.mlp",
    ]


def test_grid_goes_from_simple_to_complex(tmp_path: Path) -> None:
    """In the same order, whatever the outcomes."""
    space = space_of(("dense", "moe"), ("self_attn", "mlp"))
    plans = proposed(tmp_path / "a", space, "grid", wider_is_faster(space), 40)
    again = proposed(tmp_path / "b", space, "grid", lambda plan: Outcome(Reason.CRASHED, "no"), 40)
    assert plans == again
    assert len(set(plans)) == 40
    assert [len(plan.scopes) for plan in plans[:7]] == [1] * 7


@pytest.mark.parametrize("strategy", sorted(STRATEGIES.keys() - {"gp"}))  # which takes long
def test_a_study_is_continued_with_another_strategy(tmp_path: Path, strategy: str) -> None:
    """No plan is proposed twice across strategies, and earlier trials count."""
    space = space_of()
    first = proposed(tmp_path, space, "random", wider_is_faster(space), 8)
    then = proposed(tmp_path, space, strategy, wider_is_faster(space), 6)
    last = proposed(tmp_path, space, "tpe", wider_is_faster(space), 2)
    assert len({*first, *then, *last}) == 16


@pytest.mark.parametrize("strategy", ["bottom-up", "top-down", "profile", "grid"])
def test_a_procedure_does_not_depend_on_the_process(tmp_path: Path, strategy: str) -> None:
    """Reopened before every trial, it proposes the same as in one run; after its end, too."""
    space = space_of()
    judge = wider_is_faster(space)
    in_one_run = proposed(tmp_path / "a", space, strategy, judge, 25)
    reopened = [plan for _ in range(25) for plan in proposed(tmp_path / "b", space, strategy, judge, 1)]
    assert reopened == in_one_run


def test_strategies_are_ordinary_samplers() -> None:
    """In any Optuna study; a trial that another process runs counts as not passed."""
    space = space_of()
    study = optuna.create_study(sampler=find_strategy("bottom-up").factory(space, 0))
    running = study.ask(distributions(space))
    assert space.plan(running.params) == space.plan(space.starting_points[0].values)
    other = study.ask(distributions(space))
    assert space.plan(other.params) == space.plan(space.starting_points[1].values)


def test_an_unknown_strategy_is_rejected_with_the_closest_name() -> None:
    """In one line."""
    with pytest.raises(BadInputError, match="unknown strategy 'botom-up'; did you mean 'bottom-up'"):
        find_strategy("botom-up")


@pytest.mark.parametrize("name", [":", ":x", "random:", "os:system", "math:pow", "math:pi", "json:dumps", "no.such:x"])
def test_what_is_no_strategy_is_refused_before_a_search(name: str) -> None:
    """Also on a study that is done, which asks no strategy."""
    with pytest.raises(BadInputError, match="give module:function, a function of a space and a seed"):
        find_strategy(name)


def test_a_function_that_makes_no_sampler_is_refused() -> None:
    """What it returns is known only when a search asks it."""
    strategy = find_strategy("os.path:join")
    with pytest.raises(BadInputError, match=r"--strategy os.path:join: .*; return a sampler of Optuna"):
        strategy.factory(space_of(), 0)
