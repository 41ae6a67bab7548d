"""`show --why`: what a study has learned, for people and for programs."""

import json

import optuna
import pytest
from typer.testing import CliRunner

import sktune
from sktune.cli import app
from sktune.core.codec import decoded
from sktune.core.events.studies import Experiment
from sktune.core.plan import Plan
from sktune.core.space import NEW, OptionRules, SpaceSpec, bind
from sktune.reports.why import explain
from sktune.samplers.partition import Outlook
from sktune.study.strategy import distributions
from tests.builders import decoder_layout
from tests.projects import long_gaps

RUNNER = CliRunner()
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> sktune.SearchResult:
    """Return a simulated search of the tiny model."""
    runs = tmp_path_factory.mktemp("why")
    return sktune.search("deepseek-v3", trials=8, backend="sim", study="a<b>", runs=runs, constants=long_gaps(runs))


def test_why_shows_effects_failures_and_the_next_experiment(study: sktune.SearchResult) -> None:
    """Every unit type and border has a saving within its interval, and a number of trials."""
    done = RUNNER.invoke(app, ["show", "a<b>", "--runs", str(study.folder.parent), "--why", "--json"])
    assert done.exit_code == 0, done.output
    why = json.loads(done.stdout.strip().splitlines()[-1])["why"]
    names = {effect["name"] for effect in why["units"]}
    assert {"moe.self_attn", "dense.mlp", "step.lm_head"} <= names
    for effect in why["units"] + why["borders"] + why["options"]:
        low, high = effect["ci95"]
        assert low <= effect["saving_ms"] <= high
        assert 0 <= effect["trials"] <= 8
    assert any(
        "self_attn | post_attention_layernorm" in effect["name"].replace("moe.", "") for effect in why["borders"]
    )
    assert why["expected_gain_left"] >= 0.0
    tried = {trial.plan for trial in study.trials}
    assert decoded(sktune.Plan, why["next_experiment"]["plan"]) not in tried


def test_attention_is_estimated_to_save_more_than_a_norm(study: sktune.SearchResult) -> None:
    """As in the simulation, where attention has many operators and a norm has few."""
    done = RUNNER.invoke(app, ["show", "a<b>", "--runs", str(study.folder.parent), "--why", "--json"])
    why = json.loads(done.stdout.strip().splitlines()[-1])["why"]
    saves = {effect["name"]: effect["saving_ms"] for effect in why["units"]}
    assert saves["moe.self_attn"] > saves["moe.post_attention_layernorm"]


def test_the_page_shows_layers_and_escapes_names(study: sktune.SearchResult) -> None:
    """It is the study's report, written again, in which its name is text."""
    done = RUNNER.invoke(app, ["show", "a<b>", "--runs", str(study.folder.parent), "--why"])
    assert done.exit_code == 0, done.output
    assert "simulated ms" in done.output
    page = (study.folder / "report.html").read_text(encoding="utf-8")
    assert "input_layernorm" in page
    assert "a<b>" not in page


def test_without_a_plan_that_may_win_there_is_no_next_experiment() -> None:
    """A plan that is known to save less than the best is not worth a trial."""
    space = bind(SpaceSpec(), decoder_layout(("dense", "moe", "moe")), {}, OptionRules({}))
    trials = optuna.create_study()
    for name, latency_ms in {
        "moe.mlp": 5.0, "moe.self_attn": 10.0, "moe.input_layernorm": 10.0, "dense.self_attn": 10.0,
        "dense.input_layernorm": 10.0,
    }.items():  # fmt: skip
        trials.enqueue_trial({**space.simplest, name: NEW})
        trials.tell(trials.ask(distributions(space)), latency_ms)
    hopeless = space.plan({**space.simplest, "moe.self_attn": NEW, "moe.input_layernorm": NEW})
    unknown = space.plan({**space.simplest, "moe.post_attention_layernorm": NEW})

    def next_experiment(*candidates: Plan) -> Experiment | None:
        why = explain(space, trials.trials, 10.0, outlook=Outlook(0.0, candidates))
        assert why
        return why.next_experiment

    assert next_experiment(hopeless) is None
    experiment = next_experiment(hopeless, unknown)
    assert experiment and experiment.plan == unknown
