"""A plan file, applied by its user as the report says, gives the graph that the trial had."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torchair

import sktune
from sktune import Plan, Scope
from sktune.backends.npu.backend import DUMPS, NpuBackend
from sktune.core.plan_file import write_plan
from sktune.core.scope_flavour import ScopeFlavour
from sktune.core.space import SpaceSpec
from sktune.reports.application import apply_code
from sktune.targets import describe
from sktune.targets.base import decode_inputs
from sktune.targets.loading import load
from sktune.targets.tracing import trace_layout
from tests.torchair.frontend import newest_dump

PLAN = Plan(
    (
        Scope("model.layers.0.self_attn", "model.layers.0.post_attention_layernorm", (("early-start", 0),)),
        Scope("model.layers.1.mlp", "model.norm"),
    ),
    (("topology_sorting_strategy", "DFS"),),
)


class ConfigWithoutDevice(torchair.CompilerConfig):  # type: ignore[misc]
    """TorchAir's own configuration, with the switch that runs the converted graph on the CPU, and with dumps."""

    def __init__(self) -> None:
        super().__init__()
        self.debug.run_eagerly = True
        self.debug.graph_dump.type = "txt"
        self.debug.graph_dump.path = str(DUMPS)


def test_a_plan_file_marks_what_its_trial_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report's own code, run on another instance of the model: same operators, labels, options and bits."""
    torch.set_grad_enabled(False)
    spec, _ = describe("llama", backend="npu", device="cpu")
    target = load(spec, takes_torchair=True)
    inputs = decode_inputs(target, 0, 1)[0]
    judged = NpuBackend(target, trace_layout(target, SpaceSpec()), inputs).compile(PLAN)
    of_trial = newest_dump()
    assert {operator.label for operator in of_trial} == {"", *(scope.label for scope in PLAN.scopes)}
    judged.step.prepare()
    logits = judged.step.run(*inputs)

    Path("best_plan.yaml").write_text(write_plan(PLAN, {}, "npu"))
    own = load(spec, takes_torchair=True)
    inputs = decode_inputs(own, 0, 1)[0]
    monkeypatch.setattr(torchair, "CompilerConfig", ConfigWithoutDevice)
    names: dict[str, Any] = {"sktune": sktune, "torch": torch}
    names |= {"model": own.module, "decode_step": own.decode_step}
    exec(apply_code(PLAN, ScopeFlavour.SUPERKERNEL, "best_plan.yaml"), names)
    assert names["config"].experimental_config.topology_sorting_strategy.value == "DFS"
    assert torch.equal(names["step"](*inputs), logits)
    assert newest_dump() == of_trial


def test_a_plan_in_memory_is_torchairs_where_the_user_says_so() -> None:
    """Without a file there is nothing that names the backend but the argument."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    plan = Plan((Scope("0", "1"),))
    for backend, operators in (("npu", {"air"}), (None, {"sktune"})):
        torch._dynamo.reset()
        seen: list[str] = []

        def watch(graph: torch.fx.GraphModule, inputs: Any, seen: list[str] = seen) -> Any:
            seen += [str(node.target) for node in graph.graph.nodes if "scope_" in str(node.target)]
            return graph.forward

        marks = sktune.apply(model, plan, backend)
        torch.compile(model, backend=watch, fullgraph=True)(torch.ones(1, 4))
        marks.detach()
        assert {name.partition(".")[0] for name in seen} == operators
        assert len(seen) == 2
