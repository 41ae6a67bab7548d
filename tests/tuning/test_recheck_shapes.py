"""Rechecks of a plan for several shapes: each in turn, with what was found before one fails."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sktune.cli import app
from sktune.core.errors import BackendError
from sktune.core.outcome import Speedup
from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import PlanFile, plan_values, write_plan
from sktune.core.verification import Verification
from sktune.tuning import recheck as rechecks
from tests.builders import refusal

PLAN = Plan((Scope("a", "a"),))


def plan_file(folder: Path, plans: dict[str, Plan]) -> Path:
    """Write the plans of recipes."""
    entries = [{"recipe": name, **plan_values(plan, {"study": name})} for name, plan in plans.items()]
    path = folder / "best_plan.yaml"
    path.write_text(write_plan(Plan(), {}, "npu", 3, shapes=entries))
    return path


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shapes whose plans were checked: they hold, but for one that no longer runs."""
    names: list[str] = []

    def recheck(_request: Any, file: PlanFile, _report: Any) -> rechecks.Recheck:
        names.append(str(file.evidence["study"]))
        if names[-1] == "broken":
            raise BackendError("the plan no longer runs")
        speedup = Speedup(10.0, 8.0, 1.25, (1.2, 1.3), 60)
        return rechecks.Recheck(rechecks.RecheckVerdict.KEEP, "as verified", (), Verification(), speedup)

    monkeypatch.setattr(rechecks, "_recheck", recheck)
    return names


def run(*words: str) -> tuple[int, list[dict[str, Any]], str]:
    """Return exit code, events and text of a recheck."""
    done = CliRunner().invoke(app, ["recheck", *words, "--json"])
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return done.exit_code, events, done.output + str(done.exception or "")


def test_a_shape_without_scopes_has_nothing_to_check(tmp_path: Path, checked: list[str]) -> None:
    """Neither in turn, nor when it is named."""
    path = plan_file(tmp_path, {"one": PLAN, "none": Plan()})
    code, events, text = run(str(path))
    assert [(event["shape"], event["verdict"]) for event in events] == [("one", "keep"), ("none", "no scope")]
    assert (code, checked) == (0, ["one"])
    assert "none: no scope" in text
    code, (event,), text = run(str(path), "--shape", "none")
    assert (code, event["verdict"]) == (0, "no scope")
    assert "none: no scope" in text


def test_the_others_are_checked_where_one_fails(tmp_path: Path, checked: list[str]) -> None:
    """Their events and tables come at once, and the error at the end names the shape."""
    code, events, text = run(str(plan_file(tmp_path, {"one": PLAN, "broken": PLAN, "later": PLAN})))
    assert code != 0
    assert [event["shape"] for event in events] == ["one", "later"]
    assert "broken: the plan no longer runs" in text
    assert checked == ["one", "broken", "later"]


def test_a_recipe_is_given_for_one_shape(tmp_path: Path, checked: list[str]) -> None:
    """For all it would be that of the wrong program."""
    path = plan_file(tmp_path, {"one": PLAN, "a,b": PLAN})
    _, _, text = run(str(path), "--model", "recipe.yaml")
    assert "name its shape with --shape" in text
    assert not checked
    run(str(path), "--model", "recipe.yaml", "--shape", "a,b")
    assert checked == ["a,b"]


def test_a_single_plan_without_scopes_is_not_all_that_is_checked(tmp_path: Path) -> None:
    """``check`` and ``apply`` name the shapes whose plans have some."""
    path = plan_file(tmp_path, {"one": PLAN, "none": Plan()})
    assert "with --shape: one" in refusal("check", str(path), "--backend", "sim", "--model", "llama")
    assert "the plans for one have some" in refusal("apply", str(path), "--to", str(tmp_path))
