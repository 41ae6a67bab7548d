"""A search has its answer, whatever the processes do that compare its best plans."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import sktune
from sktune.core.errors import BackendError
from sktune.runners.worker.client import Supervisor

Dies = Callable[[str, Mapping[str, Any]], bool]


def search(runs: Path, monkeypatch: pytest.MonkeyPatch, dies: Dies, trials: int) -> sktune.SearchResult:
    """Search a simulation whose worker does not survive the requests that ``dies`` tells, in three processes."""
    answer = Supervisor._answer

    def mortal(self: Supervisor, key: str, *arguments: Any, log: str, **request: Any) -> dict[str, Any]:
        if dies(log, request):
            raise BackendError(f"the comparison failed: the worker was killed; see logs/{log}")
        return answer(self, key, *arguments, log=log, **request)

    monkeypatch.setattr(Supervisor, "_answer", mortal)
    monkeypatch.setattr("sktune.backends.info.BackendInfo.final_processes", 3)
    return sktune.search("llama", backend="sim", trials=trials, runs=runs)


def winner_of(result: sktune.SearchResult) -> int | None:
    """Return the number of the winning trial."""
    return result.winner.number if result.winner else None


@pytest.mark.slow
def test_finalists_that_do_not_fit_one_process_are_compared_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same winner, and the same figures, as side by side."""
    together = search(tmp_path / "together", monkeypatch, lambda log, request: False, trials=8)
    apart = search(tmp_path / "apart", monkeypatch, lambda log, request: len(request.get("plans", ())) > 1, trials=8)
    assert together.winner is not None
    assert apart.is_compared
    assert winner_of(apart) == winner_of(together)
    figures = [{row.name: row.speedup and row.speedup.ratio for row in result.final} for result in (together, apart)]
    assert figures[0] == pytest.approx(figures[1])
    assert len(figures[1]) == 6  # the baseline and five plans


def test_one_that_dies_alone_costs_no_further_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have measured the baseline, and come before it in the table."""
    asked: list[int] = []

    def dies(log: str, request: Mapping[str, Any]) -> bool:
        if "plans" in request:
            asked.append(len(request["plans"]))
        return log in ("final-1.log", "final-1-0.log")

    result = search(tmp_path, monkeypatch, dies, trials=3)
    assert 0 not in asked
    names = [row.name for row in result.final]
    assert (names[0], names[-1]) == ("baseline", "0")


def test_where_no_finalist_survives_the_answer_is_no_scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The baseline alone was measured, and every plan says why it was not."""
    asked: list[int] = []

    def dies(log: str, request: Mapping[str, Any]) -> bool:
        if not log.startswith("final-"):
            return False
        asked.append(len(request["plans"]))
        return bool(request["plans"])

    result = search(tmp_path, monkeypatch, dies, trials=3)
    assert asked.count(0) == 1  # once is enough: no plan is left to compare with
    assert result.winner is None
    assert result.is_compared
    rows = {row.name: row for row in result.final}
    assert rows.pop("baseline").speedup is not None
    assert rows
    assert all(row.speedup is None and "was killed" in row.verdict for row in rows.values())


def test_qualifying_that_ends_its_process_leaves_the_trials_own_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those fastest by their own figures are compared."""
    result = search(tmp_path, monkeypatch, lambda log, request: log == "qualifying.log", trials=12)
    speeds = {
        str(record.number): record.outcome.speedup.ratio
        for record in result.trials
        if record.outcome and record.outcome.speedup and record.outcome.is_feasible
    }
    assert len(speeds) > 5
    fastest = sorted(speeds, key=lambda name: -speeds[name])[:5]
    assert {row.name for row in result.final} == {"baseline", *fastest}


def test_a_baseline_that_does_not_survive_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to compare with; the trials are kept."""
    with pytest.raises(BackendError, match="was killed"):
        search(tmp_path, monkeypatch, lambda log, request: log.startswith("final-"), trials=2)
