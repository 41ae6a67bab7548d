"""Plans through the true front end of npugraph_ex: scopes and options are those of the plan, and no bit changes."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import torch_npu
from torch import fx

from sktune.ascend.front_ends import front_end
from sktune.backends.base import CompileError
from sktune.backends.npugraph_ex.backend import NpugraphExBackend
from sktune.backends.npugraph_ex.options import OPTIONS
from sktune.core.errors import PlanError, SpaceError
from sktune.core.plan import Plan, Scope
from sktune.core.space import SearchSpace, SpaceSpec
from sktune.targets.base import decode_inputs
from sktune.targets.loading import load
from sktune.targets.tracing import trace_layout
from sktune.tuning.request import bind_space
from sktune.worker import replays
from tests.npugraph_ex.frontend import MARKS, Captured
from tests.torchair.conformance_models import MODELS, spec_of
from tests.torchair.marked import reach

BEGIN, END = MARKS
HAS_LISTS = "dcci_disable_on_kernel" in getattr(front_end(torch_npu.__version__), "superkernel", ())
"""Whether this release has options that are lists of kernels."""


@dataclass
class Conversion:
    """One model and its captured baseline."""

    space: SearchSpace
    backend: NpugraphExBackend
    baseline: Sequence[fx.Node]
    recordings: tuple[replays.Recording, ...]

    def check(self, plan: Plan) -> None:
        """Capture ``plan``; compare scopes, options and bits."""
        compiled = self.backend.compile(plan)
        graph, settings = Captured.graphs[-1].graph, Captured.settings[-1]
        assert scopes_in(graph) == self.expected(plan)
        assert [node.target for node in graph.nodes if node.target not in MARKS] == [
            each.target for each in self.baseline
        ]
        assert settings["static_kernel_compile"]
        assert settings.get("super_kernel_optimize", False) is bool(plan.scopes)
        assert settings.get("super_kernel_optimize_options", {}) == optimized(plan)
        # What checks names and types before the options reach the device.
        torch_npu.npu.NPUGraph._validate_options(None, "optimize_options", optimized(plan))
        assert replays.compare(compiled.step, self.recordings) is None

    def expected(self, plan: Plan) -> dict[str, set[str]]:
        """Return the operators of each scope, worked out from the baseline's modules alone."""
        found = {}
        for scope in plan.scopes:
            first, last = reach(scope, self.baseline)
            found[scope.label] = {node.name for node in self.baseline[first : last + 1] if node.op == "call_function"}
        return found


def scopes_in(graph: fx.Graph) -> dict[str, set[str]]:
    """Return the names of the operators between the marks of each scope."""
    found: dict[str, set[str]] = {}
    opened: list[str] = []
    for node in graph.nodes:
        if node.target == BEGIN:
            opened.append(node.args[0])
            assert opened[-1] not in found, "a scope begins once"
            found[opened[-1]] = set()
        elif node.target == END:
            opened.remove(node.args[0])
        elif node.op == "call_function":
            for label in opened:
                found[label].add(node.name)
    assert not opened
    return found


def optimized(plan: Plan) -> dict[str, Any]:
    """Return the dictionary that the front end should pass on."""
    chosen = dict(plan.options) if plan.scopes else {}
    return {name: value.split(",") if isinstance(value, str) else value for name, value in chosen.items()}


def convert(model: str, folder: Path, *, per_layer: bool = False) -> Conversion:
    """Load, trace and capture a model, and record its baseline."""
    torch.set_grad_enabled(False)
    spec, _ = spec_of(model, folder, "npugraph-ex")
    target = load(spec, takes_torchair=True)
    wanted = SpaceSpec(per_layer=per_layer)
    layout = trace_layout(target, wanted)
    backend = NpugraphExBackend(target, layout, decode_inputs(target, 0, 1)[0])
    step = backend.compile(Plan()).step
    baseline = tuple(Captured.graphs[-1].graph.nodes)
    space = bind_space(wanted, layout, spec)
    return Conversion(space, backend, baseline, replays.record(step, replays.prepare(target)))


def random_plan(space: SearchSpace, rng: np.random.Generator) -> Plan:
    """Return the plan of a random point of the space."""
    return space.plan({name: values[rng.integers(len(values))] for name, values in space.choices.items()})


@pytest.mark.slow
@pytest.mark.parametrize("model", ["deepseek_v3"])
def test_plans_are_captured_as_they_are(model: str, tmp_path: Path) -> None:
    """Random plans of each model, and one with lists of kernels."""
    conversion, rng = convert(model, tmp_path, per_layer=True), np.random.default_rng(0)
    for _ in range(2):
        conversion.check(random_plan(conversion.space, rng))
    start = conversion.space.plan(conversion.space.starting_points[0].values)
    for scope in conversion.backend.check(start):
        assert scope.superkernels == 1 and scope.operators > 0 and not scope.refusal
    if HAS_LISTS:
        conversion.check(Plan(start.scopes, (("dcci_disable_on_kernel", "MatMul.*,Cast"),)))


def test_what_npugraph_ex_does_not_have_is_refused(tmp_path: Path) -> None:
    """Options of single scopes before anything is captured, others by name."""
    conversion = convert("qwen2", tmp_path)
    scope = conversion.space.plan(conversion.space.starting_points[0].values).scopes[0]
    optioned = Plan((Scope(scope.first, scope.last, (("split_mode", 2),)),))
    with pytest.raises(CompileError, match=r"give those of .* for the whole step"):
        conversion.backend.compile(optioned)
    with pytest.raises(PlanError, match="no options of single scopes"):
        OPTIONS.check_step(optioned)
    for name, value, line in (
        ("stream-fusion", 1, "did you mean 'stream_fusion'"), ("split_mode", 8, "must be one of"),
        ("dcci_disable_on_kernel", "*", "none of which begins with" if HAS_LISTS else "there are preload_code, split"),
    ):  # fmt: skip
        with pytest.raises(SpaceError, match=line):
            OPTIONS.check_searched("npu", name, value)


def main(plans: int) -> None:
    """Check many random plans of each model, with seeds of their own, and print how many."""
    checked = 0
    for number, model in enumerate(MODELS):
        with TemporaryDirectory() as folder:
            conversion = convert(model, Path(folder), per_layer=True)
            for seed in range(plans):
                conversion.check(random_plan(conversion.space, np.random.default_rng((number, seed, 1))))
                checked += 1
    print(f"{checked} random plans of {len(MODELS)} models: scopes, options and bits as worked out")


if __name__ == "__main__":
    main(int(sys.argv[1]))
