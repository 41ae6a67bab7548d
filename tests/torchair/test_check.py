"""What a plan's scopes become, foreseen from the graph that the true TorchAir builds."""

import json
from pathlib import Path

import pytest
import torch

from sktune.ascend.scope_check import CheckedScope, operators_of_graph, operators_of_layout
from sktune.backends.npu.backend import NpuBackend
from sktune.backends.npu.info import foresee
from sktune.core.fused_scopes import SeenTypes
from sktune.core.layout import Layout
from sktune.core.plan import Options, Plan, Scope
from sktune.core.plan_file import write_plan
from sktune.core.space import SpaceSpec
from sktune.targets.base import Target, decode_inputs
from sktune.targets.tracing import trace_layout
from tests.builders import sktune_command
from tests.torchair import side_stream

ABORT: Options = (("strict-scope-check", "abort"),)
FUSION: Options = (("stream-fusion", 1),)


def opened(target: Target) -> tuple[NpuBackend, Layout]:
    """Return the backend of a search, and the model's layout with its kernels."""
    torch.set_grad_enabled(False)
    layout = trace_layout(target, SpaceSpec())
    backend = NpuBackend(target, layout, decode_inputs(target, 0, 1)[0])
    return backend, layout.with_kernels(backend.kernels())


def block(options: Options = ()) -> Plan:
    """Return a plan whose one scope holds the block with two streams."""
    return Plan((Scope("mlp", "mlp", options),))


def check(target: Target, options: Options = ()) -> CheckedScope:
    """Return what becomes of the block."""
    backend, _ = opened(target)
    (checked,) = backend.check(block(options))
    return checked


def test_streams_side_by_side_are_refused_before_the_compile() -> None:
    """With both operators, their streams, and the fix; certain where strict-scope-check takes away the doubt."""
    checked = check(side_stream.side_by_side())
    assert not checked.is_certain
    assert "on stream '1' and " in checked.refusal and "on the main stream" in checked.refusal
    assert checked.refusal.endswith("set stream-fusion=1, or end the scope where the stream changes")
    assert check(side_stream.side_by_side(), ABORT).is_certain


def test_the_fix_that_is_named_fixes_it() -> None:
    """One SuperKernel of all of the block's operators."""
    checked = check(side_stream.side_by_side(), FUSION)
    assert (checked.refusal, checked.superkernels, checked.cuts) == ("", 1, ())
    assert checked.operators > 10


def test_streams_that_wait_for_each_other_are_not_refused() -> None:
    """A matmul takes the output of another stream's: an event links them, whatever GE merges around it."""
    assert not check(side_stream.in_turn()).refusal
    assert not check(side_stream.in_turn(), ABORT).is_certain


@pytest.mark.parametrize("make", [side_stream.side_by_side, side_stream.in_turn])
def test_a_search_sees_the_same_operators_without_another_conversion(
    make: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the kernels of units; a plan that is certain to be refused is found once its types were seen fused."""
    assert callable(make)
    backend, layout = opened(make())
    plan = Plan((Scope("first", "last"),))
    graph = operators_of_graph(backend.graph_of(plan))
    planned = operators_of_layout(layout, plan)
    assert [(each.type, each.label, each.stream, each.after) for each in planned] == [
        (each.type, each.label, each.stream, each.after) for each in graph
    ]
    seen = SeenTypes(frozenset(each.type for each in graph))
    refused = foresee(plan, layout, seen)
    assert (refused is not None) == (make is side_stream.side_by_side)
    assert foresee(plan, layout, SeenTypes()) is None
    assert foresee(Plan(plan.scopes, (("topology_sorting_strategy", "DFS"),)), layout, seen) is None


@pytest.mark.slow
def test_the_command_names_the_fix_and_ends_with_code_5(tmp_path: Path) -> None:
    """The engine is left out, as in the other tests here; a plan with the fix passes."""
    model = f"{Path(side_stream.__file__)}:side_by_side"
    for options, code in ((ABORT, 5), ((*ABORT, *FUSION), 0)):
        plan = tmp_path / "plan.yaml"
        plan.write_text(write_plan(block(options), {}, "npu"))
        done = sktune_command("check", str(plan), "--model", model, "--json", folder=tmp_path)
        assert done.returncode == code, done.stderr
        event = json.loads(done.stdout.splitlines()[-1])
        assert (event["event"], event["refused"], event["exit_code"]) == ("plan_checked", code == 5, code)
        (scope,) = event["scopes"]
        assert scope["label"] == "mlp"
        assert ("set stream-fusion=1" in scope["refusal"]) == (code == 5)
        assert "Traceback" not in done.stderr
        assert "as if every operator could be fused" in done.stderr
    assert not list(tmp_path.glob("ge_graphs")), "nothing is left in the user's folder"
