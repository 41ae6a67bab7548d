"""Where a study's time went: no stretch is lost, counted twice, or longer than its trial."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

from sktune.reports.time_spent import FINAL_STAGES, PAUSE_S, STAGES, stretches, totals
from sktune.study.result import result_of
from tests.reports.page_studies import at_fixed_times, on_three_dies, study_in


def test_stages_lie_within_their_trials_and_add_up(tmp_path: Path) -> None:
    """In order, and the final comparison behind them."""
    result = at_fixed_times(study_in(tmp_path, trials=8))
    found = stretches(result)
    for record in result.trials:
        of_trial = [each for each in found if each.trial == record.number]
        assert [each.stage for each in of_trial if each.stage in STAGES] == list(STAGES)
        assert sum(each.end_s - each.begin_s for each in of_trial) == 5
        assert all(one.end_s == other.begin_s for one, other in pairwise(of_trial))
    assert {each.stage for each in found if each.trial is None} <= set(FINAL_STAGES)
    assert found[-1].end_s - min(each.begin_s for each in found if each.trial is None) == result.facts.final_s
    spent = totals(result)
    assert spent["compile"] == 2.0 * len(result.trials)
    assert sum(spent.values()) == 5.0 * len(result.trials) + result.facts.final_s


def test_a_pause_between_searches_is_cut_out(tmp_path: Path) -> None:
    """A study that was continued on the next day does not show the night."""
    result = study_in(tmp_path, trials=4, final=False)
    night = timedelta(days=1)
    later = [replace(record, began=record.began + night, ended=record.ended + night) if record.number >= 2 else record
             for record in result.trials if record.began and record.ended]  # fmt: skip
    assert max(each.end_s for each in stretches(replace(result, trials=later))) < PAUSE_S


def test_workers_have_lanes_of_their_own(tmp_path: Path) -> None:
    """Trials that ran at the same time do not follow each other."""
    result = study_in(tmp_path, trials=4, final=False)
    began = result.trials[0].began
    assert began
    together = [replace(record, began=began, ended=began + timedelta(seconds=4), worker=f"host:{record.number}")
                for record in result.trials]  # fmt: skip
    found = stretches(replace(result, trials=together))
    assert {each.worker for each in found} == {f"host:{number}" for number in range(4)}
    assert {each.begin_s for each in found if each.stage == "compile"} == {0.0}


def test_dies_have_lanes_of_their_own(tmp_path: Path) -> None:
    """One process led them all."""
    with on_three_dies(tmp_path) as study:
        assert {each.worker for each in stretches(result_of(study, tmp_path))} == {"npu 0", "npu 1", "npu 2"}
