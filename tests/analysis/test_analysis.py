"""`sktune analyze`: the guide's decision tree, the results of its options, and a report whose figures are all real."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
import pytest

from sktune.analysis.analyze import AnalysisRequest, analyze
from sktune.analysis.decision import (
    BEST,
    FIRST,
    TREE,
    YES,
    Findings,
    ModelType,
    ScopeOption,
    model_type,
    module_shares,
    walk_tree,
)
from sktune.analysis.guide_options import OptionResult, OptionStatus, improvement_percent, option_results
from sktune.analysis.model import SENTENCES, Analysis
from sktune.analysis.model_folder import model_or_recipe, place_of
from sktune.analysis.recommendation import recommend
from sktune.backends import availability
from sktune.backends.availability import best_backend
from sktune.cli.app import load
from sktune.core.errors import BadInputError
from sktune.core.events.analysis import ModuleShares
from sktune.core.events.search import SearchStarted, TargetReady
from sktune.core.language import LANGUAGES, Sentences
from sktune.core.layout import Layer, Layout, Unit
from sktune.core.outcome import FinalRow, Outcome, Reason, Speedup
from sktune.core.plan_file import read_plan_file
from sktune.core.space import OptionRules, SearchSpace, SpaceSpec, bind
from sktune.measure.confidence_sequence import Comparison
from sktune.measure.final_comparison import FinalComparison
from sktune.reports import outputs
from sktune.samplers import find_strategy
from sktune.study.result import SearchResult, result_of
from sktune.study.study import TuningStudy, sqlite_url
from tests.builders import ROOT, checked, decoder_layout, refusal, sktune_command, succeeded
from tests.projects import TEMPLATE
from tests.releases import shapes_only

SHARES = {"embed_tokens": 0.02, "self_attn": 0.11, "mlp": 0.17, "lm_head": 0.06}
HEADINGS = {
    "zh": ["优化配置", "代码修改", "性能测试结果", "基线", "优化后", "提升", "结论", "使用说明"],
    "en": [
        "Optimization configuration", "Code changes", "Performance results", "Baseline", "Optimized", "Improvement",
        "Conclusion", "How to use",
    ],
}  # fmt: skip


def layout_of(*kinds: str) -> Layout:
    """Return a decoder whose units have time shares, equal in all layers."""
    layout = decoder_layout(kinds)
    return layout.with_time_shares({unit.name: SHARES.get(unit.key, 0.01) for unit in layout.units})


def findings(goal: str, kind: ModelType, *, moe: float = 0.2, passed: bool | None = None) -> Findings:
    """Return findings of a model in which attention takes 0.3 of the step."""
    return Findings(goal, kind, {"moe": 3}, ModuleShares(0.3, moe, 0.1, 0.4, "traced"), passed)


@pytest.mark.parametrize(
    ("facts", "answers", "choice"),
    [
        (findings(FIRST, ModelType.MOE, moe=0.5), ["moe", "yes", "no"], ScopeOption.MOE),
        (findings(FIRST, ModelType.MOE), ["moe", "no", "no"], ScopeOption.ATTENTION),
        (findings(BEST, ModelType.MOE, moe=0.5), ["moe", "yes", "yes"], ScopeOption.ALL_LAYERS),
        (findings(FIRST, ModelType.STANDARD), ["standard", "yes", "unknown", "no"], ScopeOption.ATTENTION),
        (findings(FIRST, ModelType.STANDARD, passed=True), ["standard", "yes", "yes", "no"], ScopeOption.ATTENTION),
        (findings(BEST, ModelType.STANDARD, passed=False), ["standard", "no", "no", "yes"], ScopeOption.CUSTOM),
        (findings(FIRST, ModelType.OTHER), ["other"], ScopeOption.CUSTOM),
    ],
)
def test_the_tree_leads_where_the_guide_says(facts: Findings, answers: list[str], choice: ScopeOption) -> None:
    """For every type of model, and for both goals."""
    walk = walk_tree(facts)
    assert [step.answer for step in walk.steps] == answers
    assert walk.choice is choice


def test_an_unknown_bottleneck_leads_to_the_safe_option() -> None:
    """A profile that does not recognize units is no reason to choose MoE."""
    walk = walk_tree(replace(findings(FIRST, ModelType.MOE), shares=ModuleShares(0, 0, 0, 0, "profile")))
    assert [step.answer for step in walk.steps] == ["moe", "unknown", "no"]
    assert walk.choice is ScopeOption.ATTENTION


def test_type_and_shares_come_from_the_units_names() -> None:
    """Norms, embedding and head are neither attention nor feed-forward."""
    layout = layout_of("dense", "moe", "moe")
    shares = module_shares(layout, "traced")
    assert (shares.attention, shares.moe, shares.ffn) == pytest.approx((0.33, 0.34, 0.17))
    assert shares.other == pytest.approx(sum(unit.time_share for unit in layout.units) - 0.84)
    assert shares.largest == "moe"
    assert model_type(layout) is ModelType.MOE
    assert model_type(layout_of("dense", "dense")) is ModelType.STANDARD
    assert model_type(Layout((Unit("layers.0.mix", "mix", 0),), (Layer("layers.0", "dense"),))) is ModelType.OTHER


def space_of(layout: Layout) -> SearchSpace:
    """Return the default space, without options."""
    return bind(SpaceSpec(), layout, {}, OptionRules({}))


def outcome(ratio: float | Reason, *, is_computed: bool = False) -> Outcome:
    """Return a trial's outcome, given its speedup or the reason of its failure."""
    if isinstance(ratio, Reason):
        return Outcome(ratio, "why it failed", blamed="model.layers.1.mlp")
    ci95 = None if is_computed else (ratio * 0.987, ratio * 1.013)
    speedup = Speedup(6.4871, 6.4871 / ratio, ratio, ci95, 40)
    if ratio < 1:
        return Outcome(Reason.SLOWER, f"{ratio:.3f}x the baseline's speed", speedup, comparison=Comparison.SLOWER)
    return Outcome(None, "", speedup, {"compile": 4.25}, comparison=Comparison.FASTER)


@dataclass
class FakeStudy:
    """A study whose trials were never run."""

    study: TuningStudy
    space: SearchSpace
    folder: Path

    @property
    def result(self) -> SearchResult:
        """The current result of the study."""
        return result_of(self.study, self.folder)

    def compare(self, ratios: Mapping[int, float], *, differs: tuple[int, ...] = ()) -> None:
        """Store a final comparison of trials in two processes, with its samples."""
        processes = []
        for number, process_effect in ((1, 1.0), (2, 1.004)):
            rows = [FinalRow("baseline", Speedup(6.5, 6.5, 1.0, (1.0, 1.0), 60), "identical", True, "")]
            for trial, ratio in ratios.items():
                measured = ratio * process_effect
                speedup = Speedup(6.5, 6.5 / measured, measured, (measured * 0.99, measured * 1.01), 60)
                rows.append(FinalRow(str(trial), speedup, "identical", trial not in differs, "digest"))
            processes.append((rows, ""))
            path = self.folder / "samples" / f"final-{number}.npz"
            path.parent.mkdir(exist_ok=True)
            seconds = np.full((60, len(rows)), 6.5e-3) + 1e-5 * np.arange(60)[:, None]
            np.savez(path, names=[row.name for row in rows], seconds=seconds, disturbed=np.zeros(60, bool))
        self.study.remember(final=FinalComparison.of(processes, ()), uncompared=False)


def fake_study(
    runs: Path, ratios: Mapping[str, float | Reason], *, layout: Layout | None = None, **made_with: str
) -> FakeStudy:
    """Return a study whose starting points have the outcomes in ``ratios``, by name; ``grid`` is a plan after them."""
    layout = layout or layout_of("dense", "moe", "moe")
    space, folder = space_of(layout), runs / "s"
    folder.mkdir(parents=True)
    study = TuningStudy.open("s", sqlite_url(folder), create=True)
    fingerprint = {
        "backend": "inductor",
        "device": "a CPU, 2 cores",
        "scale": "tiny",
        "dtype": "bfloat16",
        "torch": "2",
    }
    study.remember(fingerprint=fingerprint | made_with, description="a model", layout=layout, uncompared=True)
    study.queue([point for point in space.starting_points if point.name in ratios])
    for name, ratio in ratios.items():
        proposal = study.ask(space, find_strategy("grid"), seed=0)
        assert proposal.origin == (name if name in {point.name for point in space.starting_points} else "grid")
        ended = outcome(ratio, is_computed=made_with.get("backend") == "sim")
        study.tell(proposal, ended, ended.speedup.latency_ms if ended.speedup else None)
    return FakeStudy(study, space, folder)


ALL_PASS = {"attention only": 1.08, "MoE only": 1.05, "attention + MoE": 1.15, "each layer": 1.22, "all layers": 1.31}


def test_every_option_has_its_own_result_or_the_reason_why_not(tmp_path: Path) -> None:
    """Failed, slower, not reached; the custom option is the best of all other plans."""
    ratios: dict[str, float | Reason] = {
        "attention only": 1.08,
        "MoE only": Reason.MISMATCH,
        "attention + MoE": 0.97,
        "each layer": Reason.TIMEOUT,
    }
    study = fake_study(tmp_path, ratios | {"grid": 1.02})
    rows = option_results(study.result, study.study.space())
    assert [row.status for row in rows] == [
        OptionStatus.PASSED, OptionStatus.MISMATCH, OptionStatus.SLOWER, OptionStatus.TIMEOUT, OptionStatus.NOT_REACHED,
        OptionStatus.PASSED,
    ]  # fmt: skip
    assert [row.trial for row in rows] == [0, 1, 2, 3, None, 4]
    assert rows[2].speedup is not None
    assert rows[1].detail == "why it failed"
    assert all(row.exists for row in rows)


@pytest.mark.parametrize(
    ("layout", "missing"),
    [
        (
            layout_of("dense", "dense"),
            {ScopeOption.MOE: OptionStatus.NO_MOE, ScopeOption.ATTENTION_MOE: OptionStatus.NO_MOE},
        ),
        (
            decoder_layout(("dense",), ("norm", "mix")),
            {
                ScopeOption.ATTENTION: OptionStatus.NO_ATTENTION,
                ScopeOption.MOE: OptionStatus.NO_MOE,
                ScopeOption.ATTENTION_MOE: OptionStatus.NO_ATTENTION,
            },
        ),
        (
            Layout((Unit("a", "a"), Unit("b", "b")), ()),
            dict.fromkeys(
                [option for option in ScopeOption if option is not ScopeOption.CUSTOM], OptionStatus.NO_LAYERS
            ),
        ),
    ],
)
def test_an_option_needs_its_modules(tmp_path: Path, layout: Layout, missing: dict[ScopeOption, OptionStatus]) -> None:
    """The status says what the model lacks."""
    study = fake_study(tmp_path, {"whole step": 1.1}, layout=layout)
    rows = option_results(study.result, study.study.space())
    assert {row.option: row.status for row in rows if not row.exists} == missing


def test_an_option_whose_bits_differ_in_a_fresh_process_fails(tmp_path: Path) -> None:
    """Even if its trial passed."""
    study = fake_study(tmp_path, ALL_PASS)
    study.compare({0: 1.08, 4: 1.3}, differs=(0,))
    rows = option_results(study.result, study.study.space())
    assert rows[0].status is OptionStatus.MISMATCH
    assert not rows[0].is_faster
    assert rows[4].is_faster and rows[4].final == study.result.winner.speedup  # type: ignore[union-attr]


def recommended(study: FakeStudy, goal: str) -> tuple[ScopeOption | None, str]:
    """Return the recommended option, and the key of the reason."""
    options = option_results(study.result, study.study.space())
    walk = walk_tree(Findings.of(study.space.layout, goal, "traced"))
    recommendation = recommend(study.result, options, walk, goal)
    return recommendation.option, recommendation.why


def test_the_best_goal_takes_the_winner_and_a_first_attempt_the_trees_choice(tmp_path: Path) -> None:
    """MoE takes most of the step."""
    study = fake_study(tmp_path, ALL_PASS)
    assert recommended(study, BEST) == (ScopeOption.ALL_LAYERS, "why.winner")
    assert recommended(study, FIRST) == (ScopeOption.MOE, "why.first")


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ({"attention only": 1.08, "MoE only": Reason.MISMATCH, "each layer": 1.2}, (ScopeOption.ATTENTION, "why.next")),
        ({"attention only": 0.9, "MoE only": 0.9, "each layer": 1.2}, (ScopeOption.LAYER, "why.next")),
        ({"attention only": 0.9, "MoE only": Reason.CRASHED}, (None, "why.none")),
    ],
)
def test_if_the_trees_choice_fails_a_first_attempt_takes_the_narrowest_faster_option(
    tmp_path: Path, ratios: dict[str, float | Reason], expected: tuple[ScopeOption | None, str]
) -> None:
    """If no option is faster, it takes none."""
    option, why = recommended(fake_study(tmp_path, ratios), FIRST)
    assert option is expected[0]
    assert why.startswith(expected[1])


def test_both_languages_say_the_same_with_the_same_values() -> None:
    """No sentence lacks a figure in one language, and no key is missing."""
    for key, sentences in SENTENCES.items():
        values = [{name for _, name, _, _ in Formatter().parse(sentence) if name} for sentence in sentences]
        assert len(sentences) == len(LANGUAGES) and values[0] == values[1], key
    text = Sentences(SENTENCES, "zh")
    for key in (*(f"option.{option}" for option in ScopeOption), *(f"status.{status}" for status in OptionStatus)):
        assert text(key)
    for kind, questions in TREE.items():
        assert f"tree.model_type.{kind}" in SENTENCES
        assert all(f"tree.{question.name}.{YES}" in SENTENCES for question in questions)


@pytest.mark.parametrize(
    ("usable", "gpu", "full", "expected"),
    [
        (("inductor", "npu", "sim"), True, False, ("npu", "npu", "npu")),
        (("inductor", "sim"), True, False, ("inductor", "cuda", "cuda")),
        (("inductor", "sim"), False, False, ("inductor", "cpu", "cpu")),
        (("inductor", "sim"), True, True, ("sim", None, "full_scale")),
        (("sim",), False, False, ("sim", None, "no_compiler")),
    ],
)
def test_the_backend_is_the_closest_to_an_npu_that_is_available(
    monkeypatch: pytest.MonkeyPatch, usable: tuple[str, ...], gpu: bool, full: bool, expected: tuple[Any, ...]
) -> None:
    """Without an NPU, a model at its published size is simulated."""
    monkeypatch.setattr(availability, "examine", lambda: ())
    monkeypatch.setattr(availability, "usable", lambda findings: usable)
    monkeypatch.setattr(availability, "_has_cuda", lambda: gpu)
    choice = best_backend(is_full_scale=full)
    assert (choice.backend, choice.device, choice.why) == expected


@pytest.mark.parametrize("usable", [("npu", "npugraph-ex"), ("npu",)])
def test_a_program_that_uses_npugraph_ex_gets_a_plan_for_it(
    monkeypatch: pytest.MonkeyPatch, usable: tuple[str, ...]
) -> None:
    """If that can be used here."""
    monkeypatch.setattr(availability, "examine", lambda: ())
    monkeypatch.setattr(availability, "usable", lambda findings: usable)
    assert best_backend(is_full_scale=False, is_captured=True).backend == usable[-1]


def test_settings_are_found_at_any_depth_of_the_yaml(tmp_path: Path) -> None:
    """Old and new layouts of cann-recipes-infer; missing settings stay missing."""
    path = tmp_path / "decode.yaml"

    def settings(text: str) -> Any:
        path.write_text(text)
        place = place_of(tmp_path, path)
        assert place
        return place.settings

    text = (
        "model_config:\n  exe_mode: ge_graph\n  next_n: 1\n  custom_params: {enable_superkernel: true}\n"
        "scheduler_config: {batch_size: 96}\n"
    )
    assert settings(text) == {"exe_mode": "ge_graph", "enable_superkernel": True, "batch_size": 96, "next_n": 1}
    assert settings("exe_mode: eager\n") == {"exe_mode": "eager"}
    with pytest.raises(BadInputError, match="is not YAML"):
        settings("a: [")


@pytest.mark.parametrize(
    ("sizes", "batch"),
    [
        ("world_size: 16, attn_tp_size: 1", 4),
        ("world_size: 16, attn_tp_size: 8", 32),
        ("world_size: 1", 64),
        ("world_size: 16", 0),
        ("world_size: 16, attn_tp_size: 3", 0),
        ("other: 1", 64),
    ],
)
def test_the_batch_of_a_yaml_is_shared_out_among_the_ranks(sizes: str, batch: int, tmp_path: Path) -> None:
    """``batch_size`` is that of all data-parallel groups, as `recipe init` says; 0 where the YAML does not say it."""
    path = tmp_path / "decode.yaml"
    path.write_text(f"parallel_config: {{{sizes}}}\nscheduler_config: {{batch_size: 64}}\n")
    place = place_of(tmp_path, path)
    assert place and place.batch == batch


def test_a_folder_without_a_loadable_model_needs_a_model_to_search_on(tmp_path: Path) -> None:
    """The message is one line, with the fix."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(BadInputError, match=r"no config\.json.*--model"):
        model_or_recipe(None, None, folder)
    assert model_or_recipe("llama", None, folder) == ("llama", None)
    (folder / "config.json").write_text("{}")
    assert model_or_recipe(None, None, folder) == (str(folder), None)
    (folder / "recipe.yaml").write_text("")
    assert model_or_recipe(None, None, folder) == ("", folder / "recipe.yaml")
    assert model_or_recipe("llama", None, folder) == ("llama", None)
    with pytest.raises(BadInputError, match="--model"):
        model_or_recipe(None, None, None)
    with pytest.raises(BadInputError, match="needs the model's folder"):
        place_of(None, tmp_path / "a.yaml")


def test_the_yaml_may_be_relative_to_the_folder(folder: Path) -> None:
    """As for `apply` and `recipe init`; a path from the working directory is meant first."""
    yaml_file = next(folder.rglob("*.yaml"))
    for named in (yaml_file, yaml_file.relative_to(folder)):
        place = place_of(folder, named)
        assert place and place.yaml == yaml_file and place.settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the model's folder in a copy of a project with the layout of the recipes."""
    shutil.copytree(TEMPLATE.root, tmp_path / "project")
    return tmp_path / "project" / TEMPLATE.model


def analysis_of(
    study: FakeStudy,
    monkeypatch: pytest.MonkeyPatch,
    *,
    language: str = "en",
    goal: str = BEST,
    folder: Path | None = None,
    model: str = "deepseek-v3",
    **search: Any,
) -> tuple[Analysis, list[dict[str, Any]]]:
    """Analyze a fake study instead of a search; return the analysis and its events."""
    events: list[dict[str, Any]] = []

    def fake_search(request: Any, listener: Any, began_s: Any) -> SearchResult:
        listener(SearchStarted(study="s", trials=None, time_budget_s=None, done=0, folder=str(study.folder)))
        listener(TargetReady(description="", space_size=1, units=1, model_difference="", seconds={}))
        outputs.write(study.result, study.folder)
        return study.result

    monkeypatch.setattr("sktune.tuning.loop.search", fake_search)
    settings: dict[str, Any] = {
        "backend": "inductor",
        "device": "cpu",
        "runs": study.folder.parent,
        "time_budget_s": 60.0,
    } | search
    request = AnalysisRequest.of(model, None, folder, None, goal, language, **settings)
    return analyze(request, lambda event: events.append(event.to_dict())), events


Figures = dict[str, list[float]]
_FIGURE = re.compile(r"(-?\d+(?:\.\d+)?)\s?(ms|x|%)(?![A-Za-z])")
CONSTANTS = {("95", "%"), ("10", "%")}
"""The interval's level, and the guide's threshold."""


def recorded(folder: Path) -> Figures:
    """Return all figures in the study in ``folder``, read again from its file, by unit."""
    study = TuningStudy.open(folder.name, sqlite_url(folder.resolve()), create=False)
    result = result_of(study, folder)
    speedups = [record.outcome.speedup for record in result.trials if record.outcome and record.outcome.speedup]
    speedups += [row.speedup for row in result.final if row.speedup]
    speedups += [result.winner.speedup] if result.winner else []
    assert study.facts.layout
    shares = module_shares(study.facts.layout, "")
    profile = study.facts.profile
    figures: Figures = {
        "ms": [profile.step_ms if profile else 0.0], "x": [], "%": [100 * profile.gap_share if profile else 0.0],
    }  # fmt: skip
    figures["ms"] += [] if result.baseline_ms is None else [result.baseline_ms]
    figures["%"] += [100 * share for share in (shares.attention, shares.moe, shares.ffn, shares.other)]
    for speedup in speedups:
        figures["ms"] += [speedup.baseline_ms, speedup.latency_ms]
        figures["x"] += [speedup.ratio, *speedup.bounds]
        figures["%"].append(improvement_percent(speedup))
    return figures


def printed(text: str) -> Iterator[tuple[str, str]]:
    """Yield each figure in ``text`` with its unit, except in code blocks."""
    for part in re.split(r"^```.*$", text, flags=re.MULTILINE)[::2]:
        yield from _FIGURE.findall(part)


def check_figures(analysis_folder: Path, study: Path) -> int:
    """Check that every figure of the report is in the study, at the printed precision; return their number."""
    in_study = recorded(study)
    figures = list(printed((analysis_folder / "superkernel_optimization_report.md").read_text()))
    for number, unit in figures:
        digits = len(number.partition(".")[2])
        known = {f"{value:.{digits}f}" for value in in_study[unit]}
        assert number in known or (number, unit) in CONSTANTS, f"{number} {unit} is not in the study"
    return len(figures)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("goal", [BEST, FIRST])
def test_every_figure_of_the_report_is_in_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str, goal: str
) -> None:
    """At the printed precision; and an invented figure is noticed."""
    study = fake_study(tmp_path, {**ALL_PASS, "grid": Reason.MISMATCH})
    study.compare({4: 1.29, 3: 1.2})
    analysis, _ = analysis_of(study, monkeypatch, language=language, goal=goal)
    assert check_figures(study.folder, study.folder) > 25
    text = (study.folder / "superkernel_optimization_report.md").read_text()
    headings = [line.strip("# ") for line in text.splitlines() if line.startswith("##")]
    assert [heading for heading in headings if heading in HEADINGS[language]] == HEADINGS[language]
    assert analysis.recommendation.speedup is not None
    (study.folder / "superkernel_optimization_report.md").write_text(text + "\n7.777 ms\n")
    with pytest.raises(AssertionError, match=r"7\.777 ms"):
        check_figures(study.folder, study.folder)


def test_the_json_files_contain_the_studys_figures_and_null_if_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the skill's formats."""
    study = fake_study(tmp_path, ALL_PASS)
    study.compare({4: 1.29, 3: 1.2})
    analysis_of(study, monkeypatch)
    winner = study.result.winner
    assert winner is not None
    speedup = winner.speedup
    baseline = json.loads((study.folder / "baseline_performance.json").read_text())
    assert list(baseline) == ["test_info", "performance", "statistics"]
    assert baseline["test_info"]["cann_version"] is None
    assert baseline["performance"] == {
        "decode_latency_ms": speedup.baseline_ms,
        "throughput_tokens_per_sec": 4 * 1e3 / speedup.baseline_ms,
        "prefill_latency_ms": None,
        "memory_usage_gb": None,
        "compile_time_sec": None,
    }
    assert baseline["statistics"]["runs"] == 120
    assert baseline["statistics"]["decode_latency_std"] == pytest.approx(0.174, abs=0.001)
    compared = json.loads((study.folder / "performance_comparison.json").read_text())
    assert list(compared) == ["baseline", "optimized", "improvements"]
    assert compared["baseline"] == baseline["performance"]
    assert compared["optimized"]["decode_latency_ms"] == speedup.latency_ms
    assert compared["optimized"]["compile_time_sec"] == 4.25
    assert compared["improvements"]["decode_latency_ms"] == {
        "baseline": speedup.baseline_ms,
        "optimized": speedup.latency_ms,
        "improvement_percent": 100 * (speedup.baseline_ms - speedup.latency_ms) / speedup.baseline_ms,
    }


def test_the_answer_no_scope_has_figures_of_the_baseline_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """The files exist, the plan's values are null, and no change is proposed."""
    study = fake_study(tmp_path, {"attention only": 0.9, "MoE only": Reason.COMPILE_FAILED})
    study.study.remember(baseline_ms=6.4871)
    analysis, _ = analysis_of(study, monkeypatch, folder=folder)
    assert (analysis.recommendation.option, analysis.plan, analysis.change) == (None, None, None)
    compared = json.loads((study.folder / "performance_comparison.json").read_text())
    assert compared["baseline"]["decode_latency_ms"] == 6.4871
    assert set(compared["optimized"].values()) == {None}
    assert compared["improvements"]["decode_latency_ms"]["improvement_percent"] is None
    assert check_figures(study.folder, study.folder) > 5
    assert not any("apply" in command.line for command in analysis.commands)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_model_folder_gets_a_diff_of_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, language: str
) -> None:
    """As `sktune apply` makes it, with the YAML's settings; nothing is written there."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    study = fake_study(tmp_path, ALL_PASS)
    out = tmp_path / "out" / "deep"
    analysis, _ = analysis_of(study, monkeypatch, language=language, folder=folder, batch=2)
    assert analysis.change is not None and "with superkernel_scope(" in analysis.change.diff
    text = (study.folder / "superkernel_optimization_report.md").read_text()
    assert analysis.change.diff.strip() in text
    assert "| exe_mode | ge_graph |" in text
    assert "| batch_size | 2 |" in text
    assert f"| next_n | {Sentences(SENTENCES, analysis.text.language)('not_known')} |" in text
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in report_files(analysis, out)] == [
        "superkernel_optimization_report.md", "baseline_performance.json", "performance_comparison.json",
    ]  # fmt: skip


def report_files(analysis: Analysis, out: Path) -> tuple[Path, ...]:
    """Write the files of an analysis into another folder."""
    from sktune.analysis.report import write

    files = write(analysis, out)
    assert all(path.is_file() and path.parent == out for path in files)
    return files


def test_a_plan_that_cannot_be_written_into_the_source_is_reported_with_an_alternative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """The reason, and `sktune.apply`, which needs no source."""
    source = folder / "models" / "modeling_tiny.py"
    source.write_text(source.read_text().replace("is_prefill", "early"))
    analysis, _ = analysis_of(fake_study(tmp_path, {"whole step": 1.4}), monkeypatch, folder=folder)
    assert analysis.change is not None and analysis.change.refused
    text = analysis.files[0].read_text()
    assert "cannot be written into this source" in text
    assert "sktune.apply(model," in text


def test_risks_name_what_the_figures_leave_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Of a stand-in, a small model, failures, another batch, a mode without scopes, and draft layers."""
    path = folder / "config.yaml"
    path.write_text(
        path.read_text().replace("batch_size: 2", "batch_size: 96\n  next_n: 1").replace("ge_graph", "eager")
        + "parallel_config: {world_size: 16, attn_tp_size: 1}\n"
    )
    study = fake_study(
        tmp_path, {"attention only": 1.048, "MoE only": Reason.MISMATCH, "attention + MoE": Reason.TIMEOUT}
    )
    analysis, _ = analysis_of(study, monkeypatch, folder=folder)
    assert [risk.risk for risk in analysis.risks] == [
        "stand_in", "not_compared", "small_model", "other_model", "mode", "batch", "draft", "below_bar", "mismatch",
        "failed", "not_reached", "prefill", "one_device",
    ]  # fmt: skip
    texts = {risk.risk: risk.text for risk in analysis.risks}
    assert "model.layers.1.mlp" in texts["mismatch"]
    assert texts["batch"].endswith("batch_size 96, 6 on each die, and the search used 4: pass --batch 6.")
    assert analysis.change is not None and "exe_mode is 'eager'" in analysis.change.refused


def test_simulated_figures_are_marked_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No interval, no bits, no statistics; report, event and files say that they are simulated."""
    study = fake_study(tmp_path, ALL_PASS, backend="sim", device="simulated Atlas A3, one die")
    analysis, _ = analysis_of(study, monkeypatch, language="zh", backend="sim", device=None)
    summary = analysis.event.to_dict()
    assert (summary["simulated"], summary["stand_in"]) == (True, False)
    assert summary["recommendation"]["bit_identical"] is None
    assert "| 通过" not in analysis.files[0].read_text()
    assert all(row["ci95"] is None for row in summary["options"])
    text = (study.folder / "superkernel_optimization_report.md").read_text()
    assert "仿真数据" in text and "95%" not in text
    baseline = json.loads((study.folder / "baseline_performance.json").read_text())
    assert baseline["test_info"]["simulated"] is True
    assert set(baseline["statistics"].values()) == {None}
    assert summary["risks"][0]["risk"] == "simulated"


def test_a_first_attempt_that_is_not_the_winner_gets_a_separate_plan_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own evidence; the winner's plan stays, and the report mentions it."""
    study = fake_study(tmp_path, ALL_PASS)
    analysis, events = analysis_of(study, monkeypatch, goal=FIRST)
    assert analysis.plan == study.folder / "first_attempt_plan.yaml"
    file = read_plan_file(analysis.plan)
    assert {(scope.first, scope.last) for scope in file.to_plan().scopes} == {
        (f"model.layers.{index}.mlp", f"model.layers.{index}.mlp") for index in (1, 2)
    }
    assert file.evidence["speedup"] == 1.05
    assert "1.310x" in analysis.reason_text
    assert [event["event"] for event in events] == [
        "analysis_started", "search_started", "target_ready", "guide_walked",
    ]  # fmt: skip
    assert events[-1]["guide_choice"] == "moe_only"
    assert any("--goal best" in command.line for command in analysis.commands)


@pytest.mark.parametrize("goal", [BEST, FIRST])
def test_the_next_commands_are_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, goal: str
) -> None:
    """The command line parses each of them."""
    study = fake_study(tmp_path, ALL_PASS)
    analysis, _ = analysis_of(study, monkeypatch, folder=folder, goal=goal, batch=2, seed=3)
    group = load()
    names = [shlex.split(command.line)[1] for command in analysis.commands]
    assert names[0] == "apply" and names[-2:] == ["search", "show"]
    for command in analysis.commands:
        program, name, *arguments = shlex.split(command.line)
        assert program == "sktune"
        group.commands[name].make_context(name, arguments)
    assert "--seed 3" in analysis.commands[-2].line


def test_an_option_without_a_trial_has_no_figures() -> None:
    """Null rather than zero."""
    row = OptionResult(ScopeOption.MOE, OptionStatus.NO_MOE).shown("MoE only")
    assert not row.exists
    assert {row.trial, row.latency_ms, row.baseline_ms, row.speedup, row.improvement_percent} == {None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a model with --model"),
        (["--model", "llama", "--goal", "fastest"], "--goal must be first or best"),
        (["--model", "llama", "--language", "fr"], "--language must be en or zh"),
        (["--model", "llama", "--dir", "nowhere"], "--dir nowhere is not a folder"),
        (["--dir", "."], "name a model to search on with --model"),
        (["--model", "llama", "--time-budget", "soon"], "--time-budget must be a time such as"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    """Before anything is loaded."""
    assert message in refusal("analyze", *arguments, folder=tmp_path)


def analyzed(*arguments: str) -> list[dict[str, Any]]:
    """Run the command with --json, and return its events."""
    done = succeeded("analyze", *arguments, "--json")
    return checked(done.stdout)


def check_analysis(events: list[dict[str, Any]], out: Path, runs: Path) -> dict[str, Any]:
    """Check what holds for every analysis; return its last event."""
    names = [event["event"] for event in events]
    last = events[-1]
    assert names[:2] == ["analysis_started", "search_started"]
    assert names[-2:] == ["study_finished", "analysis_finished"]
    assert names.count("guide_walked") == 1
    assert [row["option"] for row in last["options"]] == list(ScopeOption)
    for row in last["options"]:
        assert (row["trial"] is None) == (row["status"] in ("not_reached", "none_passed", "no_moe"))
        assert (row["latency_ms"] is not None) == (row["status"] in ("passed", "slower"))
    assert [Path(path).parent for path in last["files"]] == [out] * 3
    assert check_figures(out, runs / last["study"]) > 5
    assert last["decision"] and last["next"] and last["risks"]
    return last


@shapes_only
@pytest.mark.slow
def test_the_published_model_is_analyzed_by_simulation(tmp_path: Path) -> None:
    """Every option of the guide has a figure, all are marked as simulated, and the study can be shown."""
    model = ["--model", "deepseek-v3", "--scale", "full", "--backend", "sim", "--goal", "first", "--language", "zh"]
    events = analyzed(*model, "--time-budget", "5m", "--runs", str(tmp_path), "--out", str(tmp_path / "out"))
    last = check_analysis(events, tmp_path / "out", tmp_path)
    assert last["simulated"] and not last["stand_in"]
    assert last["model_type"] == "moe"
    assert last["shares"]["source"] == "simulated"
    assert all(row["trial"] is not None for row in last["options"])
    assert last["recommendation"]["option"] == last["guide_choice"]
    assert Path(last["recommendation"]["plan"]).is_file()
    assert "仿真" in (tmp_path / "out" / "superkernel_optimization_report.md").read_text()
    succeeded(*shlex.split(last["next"][-1])[1:])


@pytest.mark.slow
def test_a_model_with_the_layout_of_the_recipes_is_analyzed_on_this_machine(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verified options, and the change of the model's own source."""
    monkeypatch.setattr("sktune.analysis.analyze.FIRST_TRIALS", 2)
    model = tmp_path / "model.py"
    model.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom tests.projects import TEMPLATE\n\n\n"
        "def target():\n    return TEMPLATE.target(TEMPLATE.root)\n"
    )
    arguments = ["--model", f"{model}:target", "--dir", str(folder), "--backend", "inductor", "--device", "cpu"]
    runs, out = tmp_path / "runs", tmp_path / "out"
    arguments += ["--goal", "first", "--time-budget", "5m"]
    events = analyzed(*arguments, "--runs", str(runs), "--out", str(out))
    last = check_analysis(events, out, runs)
    assert last["stand_in"] and not last["simulated"]
    assert (last["model_type"], last["shares"]["source"]) == ("moe", "traced")
    assert last["options"][0]["trial"] is not None
    recommendation = last["recommendation"]
    assert recommendation["bit_identical"] is (True if recommendation["trial"] is not None else None)
    text = (out / "superkernel_optimization_report.md").read_text()
    if recommendation["plan"]:
        assert "superkernel_scope(" in text or "cannot be written into this source" in text
        applied = sktune_command(*shlex.split(last["next"][0])[1:])
        assert applied.returncode == (2 if "cannot be written" in text else 0), applied.stderr
