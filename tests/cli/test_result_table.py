"""The table that ends a search: plans by their shapes, figures whole, in 80 columns."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sktune.cli.views.search import result_table
from sktune.core.outcome import BASELINE_REPEAT, FinalRow, Speedup
from sktune.core.plan import Plan, Scope
from sktune.measure.final_comparison import FinalComparison
from sktune.measure.verdict import FinalPlan, Verdict
from sktune.reports.study import final_table, report_markdown
from sktune.study.result import SearchResult
from tests.builders import decoder_layout, row, study_of

LAYOUT = decoder_layout(("dense",) * 3 + ("moe",) * 58)
EACH = Plan(tuple(Scope(f"{layer.name}.input_layernorm", f"{layer.name}.mlp") for layer in LAYOUT.layers))
ATTENTION = Plan(tuple(Scope(f"{layer.name}.self_attn", f"{layer.name}.self_attn") for layer in LAYOUT.layers))
PLANS = (ATTENTION, EACH.with_option("cpp_wrapper", False), EACH.with_option("cpp_wrapper", True))
SPEEDUP = Speedup(130.0, 100.0, 1.3, (1.299, 1.301), 100)
FINALISTS = tuple(FinalPlan(number, plan, (SPEEDUP,), SPEEDUP) for number, plan in enumerate(PLANS))


@pytest.fixture
def result(tmp_path: Path) -> SearchResult:
    """Return a study of three plans, the last of which wins, with all references."""
    found = study_of(tmp_path, "a", [1.1, 1.2, 1.3])
    trials = [replace(record, plan=plan) for record, plan in zip(found.trials, PLANS, strict=True)]
    rows = [
        *(row("baseline"), row("0", 0.1), row("1", 0.2), row("2", 0.3)),
        *(row(BASELINE_REPEAT), row("uncompiled", -0.5, "differ")),
        FinalRow("torch.compile(mode='max-autotune')", None, "does not compile: out of memory", None, ""),
    ]
    comparison, verdict = FinalComparison.of([(rows, "")], []), Verdict(FINALISTS[2], FINALISTS[:2])
    facts = replace(found.facts, layout=LAYOUT, description="a model")
    return replace(found, trials=trials, comparison=comparison, verdict=verdict, facts=facts)


def printed(result: SearchResult, width: int) -> list[str]:
    """Return the lines that a terminal of this width shows."""
    console = Console(width=width)
    with console.capture() as captured:
        console.print(result_table(result))
    return captured.get().splitlines()


def test_the_final_table_fits_80_columns_and_breaks_no_figure(result: SearchResult) -> None:
    """Names may have two lines."""
    lines = printed(result, 80)
    assert max(map(len, lines)) <= 80
    table = lines[: next(index for index, line in enumerate(lines) if line.startswith("3 trials"))]
    assert len(table) <= 2 + 2 * (len(result.final) + 1)
    text = "\n".join(table)
    for figures in ("  2  100.000    1.300  1.299 to 1.301  identical", "5.000    0.607  0.581 to 0.633  differ"):
        assert figures in text


def test_the_final_table_tells_plans_by_their_shapes(result: SearchResult) -> None:
    """Those of one shape, by the options in which they differ; each with its trial."""
    text = "\n".join(printed(result, 120))
    assert "self_attn of each layer, 61 scopes" in text
    assert "each layer, 61 scopes; cpp_wrapper=true (winner)" in text
    assert "each layer, 61 scopes; cpp_wrapper=false " in text
    assert 'The plan "each layer, 61 scopes" (trial 2) is 1.300 times as fast as the baseline' in text
    assert 'torch.compile(mode="max-autotune") of the whole step: does not compile: out of memory' in text


def test_ties_are_told_by_shape_and_only_a_few(result: SearchResult) -> None:
    """The others are counted."""
    few = "\n".join(printed(result, 200))
    assert "not simpler: self_attn of each layer, 61 scopes (trial 0), each layer, 61 scopes (trial 1)\n" in few
    many = replace(result, verdict=Verdict(FINALISTS[2], FINALISTS[:2] * 3))
    assert " and 3 more" in "\n".join(printed(many, 200))


@pytest.mark.parametrize("width", [20, 40, 60])
def test_a_narrow_terminal_gets_fewer_columns(result: SearchResult, width: int) -> None:
    """Speedups stay, whole and beside the names."""
    lines = printed(result, width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines[: lines.index(next(line for line in lines if line.startswith("3 trials")))])
    assert "1.105" in text
    assert "baseline" in text
    assert "…" not in text


def test_the_reports_table_has_shape_and_trial(result: SearchResult) -> None:
    """In one cell."""
    names = [cells[0] for cells in final_table(result).rows]
    assert "self_attn of each layer, 61 scopes (trial 0)" in names
    assert "each layer, 61 scopes; cpp_wrapper=true (trial 2, winner)" in names


def test_a_difference_reads_as_it_is_in_a_terminal_and_is_text_in_markdown(result: SearchResult) -> None:
    """Brackets are escaped where they might be a link's, and nowhere else."""
    differing = replace(result, facts=replace(result.facts, model_difference="step 6: logits[0, 1] is 2 | [x](y)"))
    console = Console(width=200, record=True, quiet=False, file=io.StringIO())
    console.print(result_table(differing))
    assert "(step 6: logits[0, 1] is 2 | [x](y))" in console.export_text()
    assert r"logits\[0, 1\] is 2 \| \[x\](y)" in report_markdown(differing)
