"""The final comparison combines what fresh processes have measured."""

from dataclasses import asdict
from math import exp

import pytest

from sktune.final import FinalComparison
from sktune.noise_floor import FloorLook
from sktune.outcome import Speedup
from sktune.supervisor import FinalRow
from sktune.verdict import AGAIN


def row(name: str, log_ratio: float = 0.0, verdict: str = "identical") -> FinalRow:
    """Return what one process found."""
    bounds = (exp(log_ratio - 0.001), exp(log_ratio + 0.001))
    return FinalRow(name, Speedup(5.0, 5.0, exp(log_ratio), bounds, 100), verdict, verdict == "identical", "abc")


def test_processes_become_one_table() -> None:
    """Ratios are averaged, rounds added, and what only the first process has keeps its own figures."""
    first = [row("baseline"), row(AGAIN, 0.004), row("7", 0.10), row("uncompiled", -0.1)]
    second = [row("baseline"), row(AGAIN, -0.002), row("7", 0.12)]
    found = FinalComparison.of([(first, ""), (second, "steal time")], [])
    rows = {one.name: one for one in found.rows}
    assert list(rows) == ["baseline", AGAIN, "7", "uncompiled"]
    plan = rows["7"].speedup
    assert plan is not None
    assert plan.ratio == pytest.approx(exp(0.11))
    assert plan.rounds == 200
    assert rows["uncompiled"] == first[-1]
    assert found.noise == ("", "steal time")
    assert FinalComparison.from_dict(found.to_dict()) == found


def test_the_floor_is_that_of_all_copies_ever_seen() -> None:
    """Of the search's looks and of the final processes; a simulation has none."""
    rows = [row("baseline"), row(AGAIN, 0.004)]
    look = FloorLook(0, Speedup(5.0, 5.0, exp(0.009), (exp(0.008), exp(0.01)), 100))
    assert FinalComparison.of([(rows, "")], []).noise_floor == pytest.approx(exp(0.004) - 1)
    assert FinalComparison.of([(rows, "")], [look]).noise_floor == pytest.approx(exp(0.009) - 1)
    assert FinalComparison.of([([row("baseline")], "")], []).noise_floor == 0.0


def test_a_plan_that_fails_in_one_process_fails() -> None:
    """Bits that differ once differ, and a plan that does not run once is not compared."""
    good = [row("baseline"), row("7", 0.1), row("8", 0.1)]
    bad = [row("baseline"), row("7", 0.1, "logits differ"), FinalRow("8", None, "does not compile: no", False, "")]
    found = {one.name: one for one in FinalComparison.of([(good, ""), (bad, "")], []).rows}
    assert found["7"].bit_identical is False
    assert found["7"].verdict == "logits differ"
    assert found["8"].speedup is None


def test_studies_of_one_process_can_still_be_read() -> None:
    """As sktune stored them before."""
    stored = {"rows": [asdict(row("baseline")), asdict(row("7", 0.1))], "samples_us": {"baseline": [1.0], "7": [0.9]}}
    found = FinalComparison.from_dict(stored)
    assert len(found.speedups["7"]) == 1
    assert found.speedups["7"][0] == found.rows[1].speedup
