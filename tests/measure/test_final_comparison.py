"""The final comparison combines the measurements of fresh processes."""

import json
from dataclasses import replace
from math import exp, log
from pathlib import Path

import pytest

from sktune.core.codec import decoded, encoded
from sktune.core.outcome import BASELINE_REPEAT, FARTHEST, FinalRow, Outcome, Speedup
from sktune.core.plan import Plan
from sktune.measure.final_comparison import FinalComparison
from sktune.measure.noise_floor import NoiseFloorSample
from sktune.measure.verdict import FinalPlan, decide
from sktune.reports.study import final_table, verdict_line
from sktune.study.result import result_of, verdict_of_trials
from sktune.study.study import TuningStudy, sqlite_url
from tests.builders import row, study_of


def test_processes_become_one_table() -> None:
    """Ratios are averaged, rounds are added, and a row of one process is as uncertain as that process."""
    first = [row("baseline"), row(BASELINE_REPEAT, 0.004), row("7", 0.10), row("uncompiled", -0.1)]
    second = [row("baseline"), row(BASELINE_REPEAT, -0.002), row("7", 0.12)]
    found = FinalComparison.of([(first, ""), (second, "steal time")], [])
    rows = {each.name: each for each in found.rows}
    assert list(rows) == ["baseline", BASELINE_REPEAT, "7", "uncompiled"]
    plan = rows["7"].speedup
    assert plan is not None
    assert plan.ratio == pytest.approx(exp(0.11))
    assert plan.rounds == 200
    pooled, measured = rows["uncompiled"].speedup, first[-1].speedup
    assert pooled is not None
    assert measured is not None
    assert pooled.ratio == measured.ratio
    assert log(pooled.bounds[1] / pooled.ratio) > 0.04  # a single process is uncertain
    assert found.noise == ("", "steal time")
    assert decoded(FinalComparison, encoded(found)) == found


def test_a_simulated_speedup_has_no_interval() -> None:
    """However many processes computed it, and after a round trip through JSON."""
    simulated = FinalRow("7", Speedup(5.0, 4.0, 1.25, None, 1), "not verified: simulated", None, "abc")
    found = FinalComparison.of([([simulated], ""), ([simulated], "")], [])
    (plan,) = found.rows
    assert plan.speedup is not None
    assert plan.speedup.ci95 is None
    assert plan.speedup.bounds == (plan.speedup.ratio, plan.speedup.ratio)
    assert decoded(FinalComparison, json.loads(json.dumps(encoded(found)))) == found
    assert decide([FinalPlan(7, Plan(), (plan.speedup,), plan.speedup)]).winner is not None


def test_the_floor_is_that_of_all_copies_ever_measured() -> None:
    """Those of the search and of the final processes; a simulation has none."""
    rows = [row("baseline"), row(BASELINE_REPEAT, 0.004)]
    look = NoiseFloorSample(0, Speedup(5.0, 5.0, exp(0.009), (exp(0.008), exp(0.01)), 100))
    assert FinalComparison.of([(rows, "")], []).noise_floor == pytest.approx(exp(0.004) - 1)
    assert FinalComparison.of([(rows, "")], [look]).noise_floor == pytest.approx(exp(0.009) - 1)
    assert FinalComparison.of([([row("baseline")], "")], []).noise_floor == 0.0


def test_a_plan_that_fails_in_one_process_fails() -> None:
    """A single difference of bits counts, and a plan that does not run once is not compared."""
    good = [row("baseline"), row("7", 0.1), row("8", 0.1)]
    bad = [row("baseline"), row("7", 0.1, "logits differ"), FinalRow("8", None, "does not compile: no", False, "")]
    found = {each.name: each for each in FinalComparison.of([(good, ""), (bad, "")], []).rows}
    assert found["7"].bit_identical is False
    assert found["7"].verdict == "logits differ"
    assert found["8"].speedup is None


def test_a_plan_whose_code_differs_between_processes_is_not_the_verified_one() -> None:
    """Only one of them was verified."""
    plan = FinalRow("7", row("7", 0.1).speedup, "identical", True, "abc")
    other = replace(plan, code_digest="def")
    same, differing = (
        FinalComparison.of([([row("baseline"), plan], ""), ([row("baseline"), second], "")], []).rows[1]
        for second in (plan, other)
    )
    assert same.bit_identical
    assert differing.bit_identical is False
    assert differing.verdict == "it compiles to other code from one process to the next"


def test_the_winner_has_one_figure_everywhere(tmp_path: Path) -> None:
    """In the last event, in the report's table and in show --json: corrected for selection bias."""
    study_of(tmp_path, "a", [1.3, 1.35])
    study = TuningStudy.open("a", sqlite_url(tmp_path / "a"), create=False)
    seen = [(0.26, 0.30), (0.28, 0.22), (0.24, 0.30)]
    processes = [([row("baseline"), row("0", first), row("1", second)], "") for first, second in seen]
    study.remember(final=FinalComparison.of(processes, []), uncompared=False)
    result = result_of(study, tmp_path / "a")
    assert result.verdict and result.verdict.winner and result.verdict.selection_bias > 0
    summary, winner = result.summary(), str(result.verdict.winner.number)
    (of_winner,) = [each for each in result.final_rows() if each.name == winner]
    assert (of_winner.speedup, of_winner.ci95) == (result.speedup, result.ci95)
    assert summary["repeatability"] > log(1.3 / 1.22) / 3
    assert f"{summary['speedup']:.3f}" in next(
        cells for cells in final_table(result).rows if ", winner)" in str(cells[0])
    )


@pytest.mark.parametrize("has_final", [True, False])
@pytest.mark.parametrize("is_recipe", [True, False])
def test_a_single_average_is_no_verdict_and_the_report_says_what_helps(
    tmp_path: Path, has_final: bool, is_recipe: bool
) -> None:
    """However fast it looks, with a final comparison of one process and without one."""
    average = Speedup(10.0, 5.0, 2.0, (2.0 / exp(FARTHEST), 2.0 * exp(FARTHEST)), 1)
    study_of(tmp_path, "a", [1.3])
    study = TuningStudy.open("a", sqlite_url(tmp_path / "a"), create=False)
    study.remember(command="python infer.py" if is_recipe else None)
    if has_final:
        rows = [row("baseline"), FinalRow("0", average, "identical", True, "")]
        study.remember(final=FinalComparison.of([(rows, "")], []), uncompared=False)
        result = result_of(study, tmp_path / "a")
    else:
        study.remember(uncompared=True)
        found = result_of(study, tmp_path / "a")
        (record,) = found.trials
        trial = replace(record, outcome=Outcome(speedup=average))
        result = replace(found, trials=[trial], verdict=verdict_of_trials([trial], 0.001))
    assert result.winner is None
    assert verdict_line(result).startswith("No verdict: ")
    assert ("`latency: steps`" if is_recipe else "Run the same command again") in verdict_line(result)
