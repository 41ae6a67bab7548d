"""`sktune analyze`: where the guide leads, what its options came to, what is recommended; and no figure is made up."""

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
import typer.main

from sktune.analysis.analyze import AnalysisRequest, analyze
from sktune.analysis.decision import (
    BEST,
    FIRST,
    TREE,
    YES,
    Findings,
    ModelType,
    ModuleShares,
    ScopeOption,
    model_type,
    module_shares,
    walk,
)
from sktune.analysis.guide_options import OptionResult, Status, improvement_percent, option_results
from sktune.analysis.model import Analysis
from sktune.analysis.model_folder import place_of, searched_on, settings_of
from sktune.analysis.recommendation import recommend
from sktune.analysis.sentences import LANGUAGES, SENTENCES, Sentences
from sktune.backends import availability
from sktune.backends.availability import best_backend
from sktune.cli import app
from sktune.core.errors import BadInputError
from sktune.core.events.search import SearchStarted, TargetReady
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
from tests.builders import ROOT, checked, decoder_layout, sktune_command
from tests.projects import TEMPLATE

SHARES = {"embed_tokens": 0.02, "self_attn": 0.11, "mlp": 0.17, "lm_head": 0.06}
GUIDE = ("attention only", "MoE only", "attention + MoE", "each layer", "all layers")
HEADINGS = {
    "zh": ["优化配置", "代码修改", "性能测试结果", "基线", "优化后", "提升", "结论", "使用说明"],
    "en": [
        "Optimization configuration", "Code changes", "Performance results", "Baseline", "Optimized", "Improvement",
        "Conclusion", "How to use",
    ],
}  # fmt: skip


def layout_of(*kinds: str) -> Layout:
    """Return a decoder whose units have shares of the step, equal in all layers."""
    layout = decoder_layout(kinds)
    return layout.with_time_shares({unit.name: SHARES.get(unit.key, 0.01) for unit in layout.units})


def findings(goal: str, kind: ModelType, *, moe: float = 0.2, passed: bool | None = None) -> Findings:
    """Return findings of a model in which attention takes 0.3 of the step."""
    return Findings(goal, kind, {"moe": 3}, ModuleShares(0.3, moe, 0.1, 0.4, "traced"), passed)


@pytest.mark.parametrize(
    ("found", "answers", "choice"),
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
def test_the_tree_leads_where_the_guide_says(found: Findings, answers: list[str], choice: ScopeOption) -> None:
    """For every type of model, and for a first attempt as for the best performance."""
    way = walk(found)
    assert [step.answer for step in way.steps] == answers
    assert way.choice is choice


def test_a_bottleneck_that_nobody_knows_leads_to_the_safe_option() -> None:
    """A profile that tells no units is no reason for MoE."""
    way = walk(replace(findings(FIRST, ModelType.MOE), shares=ModuleShares(0, 0, 0, 0, "profile")))
    assert [step.answer for step in way.steps] == ["moe", "unknown", "no"]
    assert way.choice is ScopeOption.ATTENTION


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
    """Return a trial's outcome by its speedup, or by the reason of its failure."""
    if isinstance(ratio, Reason):
        return Outcome(ratio, "why it failed", blamed="model.layers.1.mlp")
    ci95 = None if is_computed else (ratio * 0.987, ratio * 1.013)
    speedup = Speedup(6.4871, 6.4871 / ratio, ratio, ci95, 40)
    if ratio < 1:
        return Outcome(Reason.SLOWER, f"{ratio:.3f}x the baseline's speed", speedup, comparison=Comparison.SLOWER)
    return Outcome(None, "", speedup, {"compile": 4.25}, comparison=Comparison.FASTER)


@dataclass
class Made:
    """A study made by hand."""

    study: TuningStudy
    space: SearchSpace
    folder: Path

    @property
    def result(self) -> SearchResult:
        """What the study says now."""
        return result_of(self.study, self.folder)

    def compare(self, ratios: Mapping[int, float], *, differs: tuple[int, ...] = ()) -> None:
        """Store a final comparison of trials in two processes, with its samples."""
        processes = []
        for number, luck in ((1, 1.0), (2, 1.004)):
            rows = [FinalRow("baseline", Speedup(6.5, 6.5, 1.0, (1.0, 1.0), 60), "identical", True, "")]
            for trial, ratio in ratios.items():
                own = ratio * luck
                speedup = Speedup(6.5, 6.5 / own, own, (own * 0.99, own * 1.01), 60)
                rows.append(FinalRow(str(trial), speedup, "identical", trial not in differs, "digest"))
            processes.append((rows, ""))
            path = self.folder / "samples" / f"final-{number}.npz"
            path.parent.mkdir(exist_ok=True)
            seconds = np.full((60, len(rows)), 6.5e-3) + 1e-5 * np.arange(60)[:, None]
            np.savez(path, names=[row.name for row in rows], seconds=seconds, disturbed=np.zeros(60, bool))
        self.study.remember(final=FinalComparison.of(processes, ()), uncompared=False)


def made(runs: Path, ratios: Mapping[str, float | Reason], *, layout: Layout | None = None, **made_with: str) -> Made:
    """Return a study whose starting points have ended as ``ratios`` says, by name; ``grid`` is a plan after them."""
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
        told = outcome(ratio, is_computed=made_with.get("backend") == "sim")
        study.tell(proposal, told, told.speedup.latency_ms if told.speedup else None)
    return Made(study, space, folder)


ALL_PASS = {"attention only": 1.08, "MoE only": 1.05, "attention + MoE": 1.15, "each layer": 1.22, "all layers": 1.31}


def test_every_option_has_its_own_result_or_the_reason_why_not(tmp_path: Path) -> None:
    """Failed, slower, not reached; and the best of all others is the custom one."""
    ratios: dict[str, float | Reason] = {
        "attention only": 1.08,
        "MoE only": Reason.MISMATCH,
        "attention + MoE": 0.97,
        "each layer": Reason.TIMEOUT,
    }
    study = made(tmp_path, ratios | {"grid": 1.02})
    rows = option_results(study.result, study.study.space())
    assert [row.status for row in rows] == [
        Status.PASSED, Status.MISMATCH, Status.SLOWER, Status.TIMEOUT, Status.NOT_REACHED, Status.PASSED,
    ]  # fmt: skip
    assert [row.trial for row in rows] == [0, 1, 2, 3, None, 4]
    assert rows[2].speedup is not None
    assert rows[1].detail == "why it failed"
    assert all(row.exists for row in rows)


@pytest.mark.parametrize(
    ("layout", "missing"),
    [
        (layout_of("dense", "dense"), {ScopeOption.MOE: Status.NO_MOE, ScopeOption.ATTENTION_MOE: Status.NO_MOE}),
        (
            decoder_layout(("dense",), ("norm", "mix")),
            {
                ScopeOption.ATTENTION: Status.NO_ATTENTION,
                ScopeOption.MOE: Status.NO_MOE,
                ScopeOption.ATTENTION_MOE: Status.NO_ATTENTION,
            },
        ),
        (
            Layout((Unit("a", "a"), Unit("b", "b")), ()),
            dict.fromkeys([option for option in ScopeOption if option is not ScopeOption.CUSTOM], Status.NO_LAYERS),
        ),
    ],
)
def test_what_the_model_lacks_is_no_option(tmp_path: Path, layout: Layout, missing: dict[ScopeOption, Status]) -> None:
    """And the row says what it lacks."""
    study = made(tmp_path, {"whole step": 1.1}, layout=layout)
    rows = option_results(study.result, study.study.space())
    assert {row.option: row.status for row in rows if not row.exists} == missing


def test_bits_that_differ_in_a_fresh_process_end_an_option(tmp_path: Path) -> None:
    """Whatever its trial had said."""
    study = made(tmp_path, ALL_PASS)
    study.compare({0: 1.08, 4: 1.3}, differs=(0,))
    rows = option_results(study.result, study.study.space())
    assert rows[0].status is Status.MISMATCH
    assert not rows[0].is_faster
    assert rows[4].is_faster and rows[4].final == study.result.winner.speedup  # type: ignore[union-attr]


def recommended(study: Made, goal: str) -> tuple[ScopeOption | None, str]:
    """Return what is recommended, and why."""
    options = option_results(study.result, study.study.space())
    way = walk(Findings.of(study.space.layout, goal, "traced"))
    found = recommend(study.result, options, way, goal)
    return found.option, found.why


def test_the_best_is_the_searchs_winner_and_a_first_attempt_what_the_tree_leads_to(tmp_path: Path) -> None:
    """MoE takes most of the step."""
    study = made(tmp_path, ALL_PASS)
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
def test_where_the_tree_fails_a_first_attempt_takes_the_narrowest_that_is_faster(
    tmp_path: Path, ratios: dict[str, float | Reason], expected: tuple[ScopeOption | None, str]
) -> None:
    """And nothing where nothing is."""
    option, why = recommended(made(tmp_path, ratios), FIRST)
    assert option is expected[0]
    assert why.startswith(expected[1])


def test_both_languages_say_the_same_with_the_same_values() -> None:
    """No sentence lacks a figure in one of them, and all that can be asked for is there."""
    for key, sentences in SENTENCES.items():
        values = [{name for _, name, _, _ in Formatter().parse(text) if name} for text in sentences]
        assert len(sentences) == len(LANGUAGES) and values[0] == values[1], key
    words = Sentences("zh")
    for key in (*(f"option.{one}" for one in ScopeOption), *(f"status.{one}" for one in Status)):
        assert words(key)
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
def test_the_backend_is_the_nearest_to_an_npu_that_is_there(
    monkeypatch: pytest.MonkeyPatch, usable: tuple[str, ...], gpu: bool, full: bool, expected: tuple[Any, ...]
) -> None:
    """A model at its published size is simulated where there is no NPU."""
    monkeypatch.setattr(availability, "examine", lambda: ())
    monkeypatch.setattr(availability, "usable", lambda findings: usable)
    monkeypatch.setattr(availability, "_has_cuda", lambda: gpu)
    choice = best_backend(is_full_scale=full)
    assert (choice.backend, choice.device, choice.why) == expected


def test_settings_are_found_wherever_the_yaml_keeps_them(tmp_path: Path) -> None:
    """Old and new layouts of cann-recipes-infer; what is not there is not made up."""
    path = tmp_path / "decode.yaml"
    path.write_text(
        "model_config:\n  exe_mode: ge_graph\n  next_n: 1\n  custom_params: {enable_superkernel: true}\n"
        "scheduler_config: {batch_size: 96}\n"
    )
    assert settings_of(path) == {"exe_mode": "ge_graph", "enable_superkernel": True, "batch_size": 96, "next_n": 1}
    path.write_text("exe_mode: eager\n")
    assert settings_of(path) == {"exe_mode": "eager"}
    with pytest.raises(BadInputError, match="is no YAML"):
        path.write_text("a: [")
        settings_of(path)


def test_a_folder_is_searched_where_it_can_be_built_and_else_asks_for_a_model(tmp_path: Path) -> None:
    """One line, with the mend."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(BadInputError, match=r"no config\.json.*--model"):
        searched_on(None, None, folder)
    assert searched_on("llama", None, folder) == ("llama", None)
    (folder / "config.json").write_text("{}")
    assert searched_on(None, None, folder) == (str(folder), None)
    (folder / "recipe.yaml").write_text("")
    assert searched_on(None, None, folder) == ("", folder / "recipe.yaml")
    assert searched_on("llama", None, folder) == ("llama", None)
    with pytest.raises(BadInputError, match="--model"):
        searched_on(None, None, None)
    with pytest.raises(BadInputError, match="belongs to a model's folder"):
        place_of(None, tmp_path / "a.yaml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the model's folder in a copy of the project in the recipes' layout."""
    shutil.copytree(TEMPLATE.root, tmp_path / "project")
    return tmp_path / "project" / TEMPLATE.model


def analysis_of(
    study: Made,
    monkeypatch: pytest.MonkeyPatch,
    *,
    language: str = "en",
    goal: str = BEST,
    folder: Path | None = None,
    model: str = "deepseek-v3",
    **search: Any,
) -> tuple[Analysis, list[dict[str, Any]]]:
    """Analyze a study made by hand in the place of a search; return the events, too."""
    events: list[dict[str, Any]] = []

    def searched(request: Any, listener: Any, began_s: Any) -> SearchResult:
        listener(SearchStarted(study="s", trials=None, time_budget_s=None, done=0, folder=str(study.folder)))
        listener(TargetReady(description="", space_size=1, model_difference="", seconds={}))
        outputs.write(study.result, study.folder)
        return study.result

    monkeypatch.setattr("sktune.tuning.fewer_layers.search", searched)
    given: dict[str, Any] = {
        "backend": "inductor",
        "device": "cpu",
        "runs": study.folder.parent,
        "time_budget_s": 60.0,
    } | search
    asked = AnalysisRequest.of(model, None, folder, None, goal, language, **given)
    return analyze(asked, lambda event: events.append(event.to_dict())), events


Figures = dict[str, list[float]]
_FIGURE = re.compile(r"(-?\d+(?:\.\d+)?)\s?(ms|x|%)(?![A-Za-z])")
CONSTANTS = {("95", "%"), ("10", "%")}
"""The interval's level, and the guide's bar."""


def recorded(folder: Path) -> Figures:
    """Return all figures that the study in ``folder`` holds, read anew, by unit."""
    study = TuningStudy.open(folder.name, sqlite_url(folder.resolve()), create=False)
    result = result_of(study, folder)
    speedups = [record.outcome.speedup for record in result.trials if record.outcome and record.outcome.speedup]
    speedups += [row.speedup for row in result.final if row.speedup]
    speedups += [result.winner.speedup] if result.winner else []
    assert study.facts.layout
    shares = module_shares(study.facts.layout, "")
    profile = study.facts.profile or {}
    found: Figures = {"ms": [profile.get("step_ms", 0.0)], "x": [], "%": [100 * profile.get("gap_share", 0.0)]}
    found["ms"] += [] if result.baseline_ms is None else [result.baseline_ms]
    found["%"] += [100 * share for share in (shares.attention, shares.moe, shares.ffn, shares.other)]
    for one in speedups:
        found["ms"] += [one.baseline_ms, one.latency_ms]
        found["x"] += [one.ratio, *one.bounds]
        found["%"].append(improvement_percent(one))
    return found


def printed(text: str) -> Iterator[tuple[str, str]]:
    """Yield each figure in ``text`` with its unit; code blocks hold none."""
    for part in re.split(r"^```.*$", text, flags=re.MULTILINE)[::2]:
        yield from _FIGURE.findall(part)


def check_figures(analysis_folder: Path, study: Path) -> int:
    """Check that every figure of the report is in the study, at the printed precision; return how many there are."""
    found = recorded(study)
    figures = list(printed((analysis_folder / "superkernel_optimization_report.md").read_text()))
    for number, unit in figures:
        digits = len(number.partition(".")[2])
        known = {f"{value:.{digits}f}" for value in found[unit]}
        assert number in known or (number, unit) in CONSTANTS, f"{number} {unit} is not in the study"
    return len(figures)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("goal", [BEST, FIRST])
def test_every_figure_of_the_report_is_in_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str, goal: str
) -> None:
    """At the precision that is printed; and a figure that is not would be found."""
    study = made(tmp_path, {**ALL_PASS, "grid": Reason.MISMATCH})
    study.compare({4: 1.29, 3: 1.2})
    found, _ = analysis_of(study, monkeypatch, language=language, goal=goal)
    assert check_figures(study.folder, study.folder) > 25
    text = (study.folder / "superkernel_optimization_report.md").read_text()
    headings = [line.strip("# ") for line in text.splitlines() if line.startswith("##")]
    assert [heading for heading in headings if heading in HEADINGS[language]] == HEADINGS[language]
    assert found.recommendation.speedup is not None
    (study.folder / "superkernel_optimization_report.md").write_text(text + "\n7.777 ms\n")
    with pytest.raises(AssertionError, match=r"7\.777 ms"):
        check_figures(study.folder, study.folder)


def test_the_jsons_hold_the_studys_figures_and_null_for_what_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the skill's formats."""
    study = made(tmp_path, ALL_PASS)
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


def test_no_scope_is_an_answer_with_a_baseline_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """The files are there, what a plan would have is null, and no change is proposed."""
    study = made(tmp_path, {"attention only": 0.9, "MoE only": Reason.COMPILE_FAILED})
    study.study.remember(baseline_ms=6.4871)
    found, _ = analysis_of(study, monkeypatch, folder=folder)
    assert (found.recommendation.option, found.plan, found.change) == (None, None, None)
    compared = json.loads((study.folder / "performance_comparison.json").read_text())
    assert compared["baseline"]["decode_latency_ms"] == 6.4871
    assert set(compared["optimized"].values()) == {None}
    assert compared["improvements"]["decode_latency_ms"]["improvement_percent"] is None
    assert check_figures(study.folder, study.folder) > 5
    assert not any("apply" in command.line for command in found.commands)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_model_folder_gets_the_change_of_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, language: str
) -> None:
    """As `sktune apply` makes it, with the YAML's settings; nothing is written there."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    study = made(tmp_path, ALL_PASS)
    out = tmp_path / "out" / "deep"
    found, _ = analysis_of(study, monkeypatch, language=language, folder=folder, batch=2)
    assert found.change is not None and "with superkernel_scope(" in found.change.diff
    text = (study.folder / "superkernel_optimization_report.md").read_text()
    assert found.change.diff.strip() in text
    assert "| exe_mode | ge_graph |" in text
    assert "| batch_size | 2 |" in text
    assert f"| next_n | {Sentences(found.words.language)('not_known')} |" in text
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in report_files(found, out)] == [
        "superkernel_optimization_report.md", "baseline_performance.json", "performance_comparison.json",
    ]  # fmt: skip


def report_files(found: Analysis, out: Path) -> tuple[Path, ...]:
    """Write the files of an analysis into another folder."""
    from sktune.analysis.report import write

    files = write(found, out)
    assert all(path.is_file() and path.parent == out for path in files)
    return files


def test_a_plan_that_the_source_cannot_say_is_told_with_the_other_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """The reason, and `sktune.apply`, which needs no source."""
    source = folder / "models" / "modeling_tiny.py"
    source.write_text(source.read_text().replace("is_prefill", "early"))
    found, _ = analysis_of(made(tmp_path, {"whole step": 1.4}), monkeypatch, folder=folder)
    assert found.change is not None and found.change.refused
    text = found.files[0].read_text()
    assert "cannot be written into this source" in text
    assert "sktune.apply(model," in text


def test_risks_say_what_the_figures_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Of a stand-in, a small model, failures, another batch, a mode without scopes, and draft layers."""
    path = folder / "config.yaml"
    path.write_text(
        path.read_text().replace("batch_size: 2", "batch_size: 96\n  next_n: 1").replace("ge_graph", "eager")
    )
    study = made(tmp_path, {"attention only": 1.048, "MoE only": Reason.MISMATCH, "attention + MoE": Reason.TIMEOUT})
    found, _ = analysis_of(study, monkeypatch, folder=folder)
    assert [risk.name for risk in found.risks] == [
        "stand_in", "not_compared", "small_model", "other_model", "mode", "batch", "draft", "below_bar", "mismatch",
        "failed", "not_reached", "prefill", "one_device",
    ]  # fmt: skip
    assert "model.layers.1.mlp" in next(risk.text for risk in found.risks if risk.name == "mismatch")
    assert found.change is not None and "exe_mode is 'eager'" in found.change.refused


def test_simulated_figures_are_marked_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No interval, no bits, no statistics; the word in report, event and file."""
    study = made(tmp_path, ALL_PASS, backend="sim", device="simulated Atlas A3, one die")
    found, _ = analysis_of(study, monkeypatch, language="zh", backend="sim", device=None)
    summary = found.summary()
    assert (summary["simulated"], summary["stand_in"]) == (True, False)
    assert summary["recommendation"]["bit_identical"] is None
    assert "| 通过" not in found.files[0].read_text()
    assert all(row["ci95"] is None for row in summary["options"])
    text = (study.folder / "superkernel_optimization_report.md").read_text()
    assert "仿真数据" in text and "95%" not in text
    baseline = json.loads((study.folder / "baseline_performance.json").read_text())
    assert baseline["test_info"]["simulated"] is True
    assert set(baseline["statistics"].values()) == {None}
    assert summary["risks"][0]["risk"] == "simulated"


def test_a_first_attempt_that_is_not_the_winner_gets_a_plan_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own evidence; the winner's plan stays, and the reader hears of it."""
    study = made(tmp_path, ALL_PASS)
    found, events = analysis_of(study, monkeypatch, goal=FIRST)
    assert found.plan == study.folder / "first_attempt_plan.yaml"
    file = read_plan_file(found.plan)
    assert {(scope.first, scope.last) for scope in file.to_plan().scopes} == {
        (f"model.layers.{index}.mlp", f"model.layers.{index}.mlp") for index in (1, 2)
    }
    assert file.evidence["speedup"] == 1.05
    assert "1.310x" in found.reason_told
    assert [event["event"] for event in events] == [
        "analysis_started", "search_started", "target_ready", "guide_walked",
    ]  # fmt: skip
    assert events[-1]["guide_choice"] == "moe_only"
    assert any("--goal best" in command.line for command in found.commands)


@pytest.mark.parametrize("goal", [BEST, FIRST])
def test_the_next_commands_are_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, goal: str
) -> None:
    """Each is parsed by the command line itself."""
    study = made(tmp_path, ALL_PASS)
    found, _ = analysis_of(study, monkeypatch, folder=folder, goal=goal, batch=2, seed=3)
    group: Any = typer.main.get_command(app)
    names = [shlex.split(command.line)[1] for command in found.commands]
    assert names[0] == "apply" and names[-2:] == ["search", "show"]
    for command in found.commands:
        program, name, *words = shlex.split(command.line)
        assert program == "sktune"
        group.commands[name].make_context(name, words)
    assert "--seed 3" in found.commands[-2].line


def test_an_option_without_a_trial_has_no_figures() -> None:
    """Null, and not zero."""
    row = OptionResult(ScopeOption.MOE, Status.NO_MOE).to_dict()
    assert row["exists"] is False
    assert {row[name] for name in ("trial", "latency_ms", "baseline_ms", "speedup", "improvement_percent")} == {None}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a model with --model"),
        (["--model", "llama", "--goal", "fastest"], "--goal is first or best"),
        (["--model", "llama", "--language", "fr"], "--language is en or zh"),
        (["--model", "llama", "--dir", "nowhere"], "--dir nowhere is no folder"),
        (["--dir", "."], "name a model to search on with --model"),
        (["--model", "llama", "--time-budget", "soon"], "--time-budget is a time such as"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(tmp_path: Path, words: list[str], message: str) -> None:
    """Before anything is loaded."""
    done = sktune_command("analyze", *words, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def analyzed(*words: str) -> list[dict[str, Any]]:
    """Run the command with --json, and return its events."""
    done = sktune_command("analyze", *words, "--json")
    assert done.returncode == 0, done.stderr
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


@pytest.mark.slow
def test_the_published_model_is_analyzed_by_simulation(tmp_path: Path) -> None:
    """Every option of the guide has its figure, the word is everywhere, and the study can be shown."""
    words = ["--model", "deepseek-v3", "--scale", "full", "--backend", "sim", "--goal", "first", "--language", "zh"]
    events = analyzed(*words, "--time-budget", "5m", "--runs", str(tmp_path), "--out", str(tmp_path / "out"))
    last = check_analysis(events, tmp_path / "out", tmp_path)
    assert last["simulated"] and not last["stand_in"]
    assert last["model_type"] == "moe"
    assert last["shares"]["source"] == "simulated"
    assert all(row["trial"] is not None for row in last["options"])
    assert last["recommendation"]["option"] == last["guide_choice"]
    assert Path(last["recommendation"]["plan"]).is_file()
    assert "仿真" in (tmp_path / "out" / "superkernel_optimization_report.md").read_text()
    shown = sktune_command(*shlex.split(last["next"][-1])[1:])
    assert shown.returncode == 0, shown.stderr


@pytest.mark.slow
def test_a_model_in_the_recipes_layout_is_analyzed_on_this_machine(tmp_path: Path, folder: Path) -> None:
    """Verified options within the budget, and the change of the model's own source."""
    model = tmp_path / "model.py"
    model.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom tests.projects import TEMPLATE\n\n\n"
        "def target():\n    return TEMPLATE.target(TEMPLATE.root)\n"
    )
    words = ["--model", f"{model}:target", "--dir", str(folder), "--backend", "inductor", "--device", "cpu"]
    runs, out = tmp_path / "runs", tmp_path / "out"
    events = analyzed(*words, "--time-budget", "60s", "--runs", str(runs), "--out", str(out))
    last = check_analysis(events, out, runs)
    assert last["stand_in"] and not last["simulated"]
    assert (last["model_type"], last["shares"]["source"]) == ("moe", "traced")
    assert last["options"][0]["trial"] is not None
    told = last["recommendation"]
    assert told["bit_identical"] is (True if told["trial"] is not None else None)
    text = (out / "superkernel_optimization_report.md").read_text()
    if told["plan"]:
        assert "superkernel_scope(" in text or "cannot be written into this source" in text
        applied = sktune_command(*shlex.split(last["next"][0])[1:])
        assert applied.returncode == (2 if "cannot be written" in text else 0), applied.stderr
