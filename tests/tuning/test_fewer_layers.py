"""Fewer layers first: the search on the whole model learns from them, and only there can a plan win."""

from pathlib import Path
from typing import Any

import pytest

import sktune
from sktune.core.errors import BackendError, BadInputError, TargetError
from sktune.core.outcome import Outcome, Reason, Stage
from sktune.samplers.partition import BY_EARLIER
from sktune.tuning.inspect import inspect_model
from sktune.tuning.request import Request
from sktune.tuning.trials import Trials
from tests.builders import ROOT
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
def test_the_whole_model_learns_from_few_layers(tmp_path: Path) -> None:
    """In five trials of its own, of which the first is the plan that few layers recommend."""
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
    assert result.trials[0].origin == BY_EARLIER
    assert [study.name for study in result.facts.earlier] == ["s-proxy2"]
    assert "4 of 61 layers" in result.facts.description
    assert result.winner is not None
    assert "Learned from study s-proxy2" in (result.folder / "report.md").read_text()
    events.clear()
    again = sktune.search("deepseek-v3", **options)
    assert [event["event"] for event in events] == ["proxy_finished", "study_finished"]
    assert again.best_plan == result.best_plan


def test_few_layers_of_which_no_plan_could_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole model is not searched, and the error is of what was asked for."""
    refused = Outcome(Reason.COMPILE_FAILED, "refused", stage=Stage.COMPILE)
    monkeypatch.setattr(Trials, "_foreseen", lambda *_: refused)
    with pytest.raises(BackendError, match=r"--proxy-layers: no plan of the small model could be measured; see"):
        sktune.search("llama", backend="sim", proxy_layers=1, runs=tmp_path, trials=2, study="s")


@pytest.mark.slow
def test_few_layers_are_not_searched_for_nothing(tmp_path: Path) -> None:
    """Where the whole model has learned from them, or has begun without them, no trial on them would help."""
    options: dict[str, Any] = {"backend": "sim", "proxy_layers": 1, "runs": tmp_path}
    sktune.search("llama", **options, trials=2, study="s")
    with pytest.raises(BadInputError, match="'s' has learned from the 2 trials of 's-proxy1', and learns from no more"):
        sktune.search("llama", **options, trials=3, study="s")
    assert len(sktune.load("s-proxy1", tmp_path).trials) == 2
    sktune.search("llama", backend="sim", runs=tmp_path, trials=1, study="alone")
    with pytest.raises(BadInputError, match="--proxy-layers: study 'alone' has begun without it"):
        sktune.search("llama", **options, trials=2, study="alone")
    assert not (tmp_path / "alone-proxy1").exists()


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
