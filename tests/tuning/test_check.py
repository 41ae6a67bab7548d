"""`sktune check`: what becomes of a plan's scopes, and what is refused, without a compile."""

import importlib.util
from pathlib import Path

import pytest

from sktune.ascend.scope_check import CheckedScope
from sktune.core.errors import BackendError, BadInputError, ExitCode, PlanError
from sktune.core.plan import Options, Plan, Scope
from sktune.core.plan_file import write_plan
from sktune.tuning.check import PlanCheck, check_plan, lines
from sktune.tuning.request import Request
from tests.builders import sktune_command

SIM = Request("llama", backend="sim")
NOT_BUILT = "kernel not built for SuperKernels"


def plan_file(folder: Path, *options: Options, backend: str = "npu") -> Path:
    """Write a plan with one scope for each set of options, a layer each."""
    scopes = tuple(
        Scope(f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp", each)
        for layer, each in enumerate(options)
    )
    path = folder / "plan.yaml"
    path.write_text(write_plan(Plan(scopes), {}, backend))
    return path


@pytest.mark.slow
def test_the_simulated_compiler_says_which_operators_cut_a_scope_and_why(tmp_path: Path) -> None:
    """Alike scopes are one line; the last line says that it is simulated."""
    checked = check_plan(plan_file(tmp_path, (), ()), SIM)
    assert not checked.is_refused
    first, verdict = lines(checked)
    assert first.startswith("model.layers.0.self_attn..model.layers.0.mlp and 1 like it: ")
    assert "SuperKernels; cut at " in first and f"({NOT_BUILT})" in first
    assert verdict.startswith("no refusal is foreseen; `sktune doctor` lists what is not modelled (simulated")


@pytest.mark.slow
def test_what_the_simulated_compiler_refuses_is_refused(tmp_path: Path) -> None:
    """With the operator, the rule and the fix, and an exit code for scripts."""
    checked = check_plan(plan_file(tmp_path, (), (("strict-scope-check", "abort"),)), SIM)
    assert checked.exit_code is ExitCode.REFUSED
    refused, verdict = lines(checked)
    assert f"cuts scope model.layers.1.self_attn..model.layers.1.mlp: {NOT_BUILT}; end the scope before it" in refused
    assert verdict.startswith("the compiler would refuse this plan (simulated")


def test_a_doubtful_refusal_is_no_failure() -> None:
    """It is told apart in the lines, and the exit code is 0."""
    checked = PlanCheck((CheckedScope("s", 2, refusal="why"), CheckedScope("t", 2, 1)))
    assert checked.exit_code is ExitCode.DONE
    assert lines(checked) == [
        "s: refused if its operators can be fused, which only a compile shows: why",
        "t: 2 operators; 1 SuperKernel",
        "nothing is certain to be refused; 1 of 2 scopes may be",
    ]


def test_only_plans_of_superkernels_are_checked(tmp_path: Path) -> None:
    """One line that says what to give instead."""
    with pytest.raises(PlanError, match="is for inductor; check is for plans of SuperKernel scopes"):
        check_plan(plan_file(tmp_path, (), backend="inductor"), SIM)
    with pytest.raises(BadInputError, match="add --backend npu or --backend sim"):
        check_plan(plan_file(tmp_path, ()), Request("llama", backend="inductor"))
    with pytest.raises(PlanError, match="does not say which model the plan is for; add --model"):
        check_plan(plan_file(tmp_path, ()))


@pytest.mark.skipif(importlib.util.find_spec("torch_npu") is not None, reason="torch_npu is there")
def test_without_torchair_the_line_says_how_to_get_it(tmp_path: Path) -> None:
    """Before a model is loaded."""
    with pytest.raises(BackendError, match=r"torch_npu cannot be imported .* see `sktune doctor`"):
        check_plan(plan_file(tmp_path, ()), Request("llama", backend="npu"))


def test_options_that_describe_a_model_need_one(tmp_path: Path) -> None:
    """Otherwise they would have no effect."""
    done = sktune_command("check", str(plan_file(tmp_path, ())), "--scale", "small", folder=tmp_path)
    assert done.returncode == 2
    assert "--scale describes the model; add --model, or leave it out" in done.stderr


def test_a_plan_is_checked_by_the_rules_of_its_own_path(tmp_path: Path) -> None:
    """GE's say nothing about captured graphs."""
    with pytest.raises(BadInputError, match=r"not for sim; add --backend npugraph-ex or --backend sim-npugraph-ex"):
        check_plan(plan_file(tmp_path, (), backend="npugraph-ex"), SIM)
    found = check_plan(plan_file(tmp_path, (), backend="npugraph-ex"), Request("llama", backend="sim-npugraph-ex"))
    assert not found.is_refused and all(scope.superkernels for scope in found.scopes)
