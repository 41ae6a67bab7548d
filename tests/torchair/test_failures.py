"""What TorchAir refuses: one line with its own reason, and a search that goes on."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sktune import Plan, Scope
from sktune.backends.base import CompileError
from sktune.backends.npu.backend import NpuBackend
from sktune.core.space import SpaceSpec
from sktune.targets.base import Target, decode_inputs
from sktune.targets.tracing import trace_layout
from tests.builders import sktune_command
from tests.torchair import refused
from tests.torchair.frontend import newest_dump

ROOT = Path(__file__).resolve().parents[2]
REASONS = {  # the second form of each is that of torch_npu 2.8 and 2.10, and of torch 2.8
    "index_copy": r"NotImplementedError: torch.ops.aten.index_copy.default ge_converter is not implemented!",
    "attention": r"RuntimeError: Failed to (auto-generated converter for|converter) "
    r"aten._scaled_dot_product_flash_attention_for_cpu.default to AscendIR: ",
    "histogram": r"RuntimeError: Failed to (auto-generated converter for|converter) aten.histc.default to AscendIR: ",
    "without_values": r"GuardOnDataDependentSymNode: Could not guard on data-dependent expression "
    r"|Unsupported: Dynamic shape operator",
}
ONE_BOUNDARY = {
    ("first", "hidden"): "RuntimeError: After you call the torch.ops.air.scope_enter operator, there is no paired call",
    ("hidden", "last"): "RuntimeError: When you call the torch.ops.air.scope_exit operator: scope_exit, you must first",
}
SPACE = """
version: 1
space:
  options: {npu: {npu: {split-mode: [4]}}}
  starting_points:
    begins inside an operator: {step.hidden: new, step.last: join}
    whole step: {"step.*": join}
    ends inside an operator: {step.first: new, step.hidden: join}
    around it: {step.first: new, step.last: new}
"""


def npu_backend(target: Target) -> NpuBackend:
    """Return what a search would compile with."""
    torch.set_grad_enabled(False)
    return NpuBackend(target, trace_layout(target, SpaceSpec()), decode_inputs(target, 0, 1)[0])


def sktune_search(folder: Path, model: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``sktune search`` as a user would; the worker leaves the engine out, because the target's module does.

    In CI a worker may wait long for the process that it starts from, as other tests have the cores.
    """
    target = f"{Path(__file__).parent / 'refused.py'}:{model}"
    return sktune_command(
        "search", "--model", target, "--device", "npu", "--compile-timeout", "1500", *words, folder=folder
    )


@pytest.mark.parametrize("model", REASONS)
def test_the_reason_is_torchairs_own_in_one_line(model: str) -> None:
    """Whatever Dynamo, FX and TorchAir wrap around it."""
    with pytest.raises(CompileError) as failure:
        npu_backend(getattr(refused, model)()).compile(Plan())
    assert re.match(REASONS[model], str(failure.value))
    assert "\n" not in str(failure.value) and len(str(failure.value)) < 500


@pytest.mark.parametrize("edges", ONE_BOUNDARY)
def test_a_scope_with_one_boundary_is_refused_and_leaves_nothing_behind(edges: tuple[str, str]) -> None:
    """A unit that runs inside an operator shows Dynamo no boundary; what is compiled next is not affected."""
    backend = npu_backend(refused.hidden_module())
    with pytest.raises(CompileError, match=ONE_BOUNDARY[edges]):
        backend.compile(Plan((Scope(*edges),)))
    backend.compile(Plan())
    assert not any(operator.label for operator in newest_dump())


def test_a_failure_inside_a_scope_does_not_mark_the_next_graph() -> None:
    """TorchAir keeps the scopes that were open when a conversion failed."""
    with pytest.raises(CompileError, match=REASONS["index_copy"]):
        npu_backend(refused.index_copy()).compile(Plan((Scope("linear", "operation"),)))
    npu_backend(refused.hidden_module()).compile(Plan())
    assert not any(operator.label for operator in newest_dump())


def test_dumps_of_earlier_trials_are_no_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All trials share the folder that DUMP_GRAPH_PATH names; only what is written during a trial belongs to it."""
    monkeypatch.setenv("DUMP_GRAPH_PATH", str(tmp_path))
    plan, dump = Plan((Scope("first", "first"),)), ROOT / "tests" / "data" / "ge_proto_AfterSkGraph.txt"
    backend = npu_backend(refused.hidden_module())
    alone = backend.compile(plan).fusion
    shutil.copy(dump, tmp_path / "ge_proto_00000042_graph_1_AfterSkGraph.txt")
    assert backend.compile(plan).fusion == alone
    monkeypatch.setattr(backend, "configuration", dumping(backend.configuration, dump, tmp_path))
    assert backend.compile(plan).fusion != alone


def dumping(configuration: Callable[[Plan], Any], dump: Path, folder: Path) -> Callable[[Plan], Any]:
    """Return a configuration during which GE's dump of an earlier trial is written again."""

    def configure(plan: Plan) -> Any:
        (folder / "ge_proto_00000042_graph_1_AfterSkGraph.txt").write_bytes(dump.read_bytes())
        return configuration(plan)

    return configure


@pytest.mark.slow
@pytest.mark.usefixtures("all_final_processes")
def test_the_search_goes_on_after_what_torchair_refuses(tmp_path: Path) -> None:
    """Each plan is judged by a process of its own, in a folder of its own; refused ones are pruned."""
    (tmp_path / "space.yaml").write_text(SPACE)
    # This strategy tries the starting points just as they stand; the default one would shorten those that fail.
    words = ("--strategy", "random", "--trials", "4", "--space", "space.yaml", "--json")
    done = sktune_search(tmp_path, "hidden_module", *words)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    trials = {event["origin"]: event for event in events if event["event"] == "trial_finished"}
    assert len(trials) == 4
    for origin, edges in (
        ("begins inside an operator", ("hidden", "last")),
        ("ends inside an operator", ("first", "hidden")),
    ):
        trial = trials[origin]
        assert (trial["state"], trial["reason"]) == ("pruned", "compile_failed")
        assert trial["detail"].startswith(ONE_BOUNDARY[edges])
        assert "\n" not in trial["detail"]
        folder = tmp_path / "runs" / "refused-hidden_module-npu-npu"
        assert ONE_BOUNDARY[edges].partition(": ")[2] in (folder / trial["log"]).read_text()
    for origin in ("whole step", "around it"):
        assert trials[origin]["latency_ms"] > 0  # verified: every bit is the baseline's
    assert events[-1]["event"] == "study_finished"
    assert events[-1]["pruned"]["compile_failed"] == 2
    assert events[-1]["bit_identical"] is True

    work = sorted((folder / "work").iterdir())
    # Four trials, a look at the noise floor, and the three processes of the final comparison.
    assert len(work) == 8
    dumps = [sorted(path.name for path in place.glob("ge_graphs/*.txt")) for place in work]
    processes = [{name.partition("_pid_")[2].partition("_")[0] for name in names} for names in dumps]
    assert all(len(pids) == 1 for pids in processes)
    assert len(set.union(*processes)) == 8


def test_a_model_that_torchair_cannot_convert_ends_in_one_line(tmp_path: Path) -> None:
    """Without a baseline there is nothing to search."""
    done = sktune_search(tmp_path, "index_copy", "--trials", "2")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert line == f"error: the baseline does not compile: {REASONS['index_copy']}"
