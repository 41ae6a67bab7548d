"""Fewer layers first: the best plans are tried on the whole model, and only there can a plan win."""

from pathlib import Path
from typing import Any

import pytest

import sktune
from sktune.core.errors import BadInputError, TargetError
from sktune.core.outcome import FinalRow, Speedup
from sktune.core.space import LAYERS_PER_SCOPE
from sktune.measure.final_comparison import FinalComparison
from sktune.reports.study import proxy_line
from sktune.study.facts import CarriedPlan, ProxyFindings
from sktune.study.result import result_of
from sktune.study.study import TuningStudy, sqlite_url
from sktune.tuning.inspect import inspect_model
from sktune.tuning.request import Request
from tests.builders import ROOT, study_of
from tests.projects import long_gaps
from tests.releases import as_recorded


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "kinds"), [(1, ["dense", "moe"]), (2, ["dense", "moe", "moe"])])
def test_a_model_is_reduced_to_layers_of_each_kind(layers: int, kinds: list[str]) -> None:
    """DeepSeek-V3, tiny, has one dense and three MoE layers."""
    inspection = inspect_model(Request("deepseek-v3", backend="sim", layers=layers))
    assert [layer.kind for layer in inspection.layout.layers] == kinds
    assert f"{len(kinds)} of 61 layers" in inspection.description


@as_recorded
@pytest.mark.slow
def test_the_best_plans_of_few_layers_are_tried_on_all(tmp_path: Path) -> None:
    """And no others; the winner is one of the whole model, and the report says how well few layers ranked."""
    events: list[dict[str, Any]] = []
    options: dict[str, Any] = {
        "backend": "sim", "trials": 7, "proxy_layers": 2, "runs": tmp_path, "study": "s", "listener": events.append,
    }  # fmt: skip
    result = sktune.search("deepseek-v3", **options)
    small = [event for event in events if event["event"] == "proxy_finished"]
    assert [event["study"] for event in small] == ["s-proxy2"]
    assert small[0]["trials"] == 7
    assert result.study == "s"
    assert len(result.trials) == 5
    assert all(record.origin.startswith("proxy trial") for record in result.trials)
    assert "4 of 61 layers" in result.facts.description
    assert result.winner is not None
    assert -1 <= events[-1]["proxy_rank_correlation"] <= 1
    assert "2 layers of each kind in 7 trials (study s-proxy2)" in (result.folder / "report.md").read_text()
    events.clear()
    again = sktune.search("deepseek-v3", **options)
    assert [event["event"] for event in events] == ["proxy_finished", "study_finished"]
    assert again.best_plan == result.best_plan


@pytest.mark.slow
def test_limits_beyond_the_small_model_are_carried_over(tmp_path: Path) -> None:
    """The widest scopes of the small model become the widest that the space allows in the whole model."""
    (tmp_path / "space.yaml").write_text("version: 1\nspace: {layers_per_scope: [2, 4]}\n")
    result = sktune.search(
        "llama", backend="sim", trials=3, proxy_layers=2, space=tmp_path / "space.yaml", runs=tmp_path,
        constants=long_gaps(tmp_path),
    )  # fmt: skip
    assert result.trials
    assert {record.values[LAYERS_PER_SCOPE] for record in result.trials} == {4}


def ranked(runs: Path, on_proxy: list[float], on_whole: list[float | None]) -> sktune.SearchResult:
    """Return a study of plans that were carried over."""
    study_of(runs, "a", on_whole)
    study = TuningStudy.open("a", sqlite_url(runs / "a"), create=False)
    carried = [
        CarriedPlan(number, ratio, dict(record.values))
        for number, (ratio, record) in enumerate(zip(on_proxy, study.records(), strict=True))
    ]
    study.remember(proxy=ProxyFindings("a-proxy1", 1, 20, tuple(carried)))
    return result_of(study, runs / "a")


@pytest.mark.parametrize(
    ("on_whole", "correlation", "text"),
    [
        ([1.1, 1.2, 1.3, 1.4], -1.0, "4 passed on the whole model: Spearman's rank correlation"),
        ([1.4, 1.3, None, 1.1], 1.0, "3 passed"),
        ([1.4, None, None, 1.1], None, "2 passed on the whole model: too few to rank"),
    ],
)
def test_ranks_are_compared_over_the_plans_that_passed(
    tmp_path: Path, on_whole: list[float | None], correlation: float | None, text: str
) -> None:
    """By Spearman's correlation; two plans are too few."""
    result = ranked(tmp_path, [1.8, 1.6, 1.4, 1.2], on_whole)
    assert result.proxy_rank_correlation == pytest.approx(correlation)
    assert text in proxy_line(result)


def test_the_final_comparison_decides_which_plans_are_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial's figure may be luck; for a plan that changed bits in the comparison, only the trial's figure counts."""
    study_of(tmp_path, "a", [1.1, 1.2, 1.3, 1.4, 1.15])
    study = TuningStudy.open("a", sqlite_url(tmp_path / "a"), create=False)
    rows = [
        FinalRow(name, Speedup(10, 10 / ratio, ratio, (ratio, ratio), 40), "", same, "")
        for name, ratio, same in [("baseline", 1.0, True), ("1", 1.25, True), ("2", 1.22, True), ("3", 1.5, False)]
    ]
    study.remember(final=FinalComparison.of([(rows, "")], []))
    carried: list[ProxyFindings] = []

    def run(request: Request, listener: Any, began_s: float, findings: ProxyFindings | None = None, **_: Any) -> Any:
        carried.extend([findings] if findings else [])
        return result_of(study, tmp_path / "a")

    monkeypatch.setattr("sktune.tuning.loop.run", run)
    sktune.search("llama", proxy_layers=1, runs=tmp_path)
    plans = carried[0].carried
    assert [(plan.trial, plan.speedup) for plan in plans] == [(1, 1.25), (2, 1.22), (3, 1.4), (4, 1.15), (0, 1.1)]


def test_a_custom_model_cannot_be_reduced(tmp_path: Path) -> None:
    """Only models that are built from a configuration can have fewer layers."""
    with pytest.raises(TargetError, match="--proxy-layers cuts models that are built from a configuration"):
        sktune.search(str(ROOT / "examples" / "own_model.py") + ":target", proxy_layers=1, runs=tmp_path)


def test_layers_with_their_own_parameters_cannot_be_carried_over(tmp_path: Path) -> None:
    """The small model's layers do not represent others."""
    (tmp_path / "space.yaml").write_text("version: 1\nspace: {per_layer: true}\n")
    with pytest.raises(BadInputError, match="each layer has its own parameters"):
        sktune.search("llama", proxy_layers=1, space=tmp_path / "space.yaml", runs=tmp_path)
    with pytest.raises(BadInputError, match="--proxy-layers must be at least 1"):
        sktune.search("llama", proxy_layers=0)
