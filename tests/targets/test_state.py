"""State that a step writes is compared and restored, whether the target declares it or not."""

import re
from collections.abc import Callable

import pytest
import torch

from sktune.backends.base import Step
from sktune.backends.inductor.backend import InductorBackend
from sktune.core.errors import TargetError
from sktune.core.plan import Plan
from sktune.core.space import SpaceSpec
from sktune.targets.base import Snapshot, Target, decode_inputs
from sktune.targets.state import complete_state, readable, written_by
from sktune.targets.tracing import trace_layout
from sktune.worker import replays
from sktune.worker.evaluator import PlanEvaluator
from tests.models import hidden_state


@pytest.fixture(autouse=True)
def clean_compiler() -> None:
    """Reset Dynamo, which limits the captures of one function: all these steps share one."""
    torch._dynamo.reset()


def with_backend(make: Callable[[], Target]) -> tuple[Target, InductorBackend]:
    """Return a target and its backend."""
    torch.set_grad_enabled(False)
    target = make()
    layout = trace_layout(target, SpaceSpec())
    return target, InductorBackend(target, layout, decode_inputs(target, 0, 1)[0])


WRITTEN = {
    hidden_state.in_a_buffer: "model.total",
    hidden_state.in_a_plain_attribute: "model.plain",
    hidden_state.in_a_closure: "running_sum",
    hidden_state.in_a_parameter: "model.weight",
    hidden_state.in_slots: "cache.keys",
    hidden_state.in_a_global_variable: "TOTAL",
}
"""The name of the tensor to which a step writes that its target does not declare."""


@pytest.mark.parametrize(("make", "name"), WRITTEN.items())
def test_undeclared_state_is_compared_and_restored(make: Callable[[], Target], name: str) -> None:
    """And its name is in the mismatch."""
    target, backend = with_backend(make)
    state = complete_state(target, backend.written())
    assert len(state) == 1
    ((full_name, tensor),) = state.items()
    assert name in full_name
    before = tensor.clone()
    baseline = backend.compile(Plan()).step
    assert torch.equal(tensor, before)
    recordings = replays.record(baseline, replays.prepare(target, state))
    assert replays.compare(baseline, recordings) is None

    def wrong(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = baseline.run(x)
        tensor[3] += 1
        return out

    difference = replays.compare(Step(wrong, baseline.prepare), recordings)
    assert difference is not None
    assert name in difference.tensor
    assert difference.index == (3,)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (hidden_state.replaced, "model.last"),
        (hidden_state.replaced_in_slots, "cache.keys"),
        (hidden_state.replaced_and_never_read, "cache.keys"),
        (hidden_state.replaced_in_a_dictionary, "cache['hidden']"),
        (hidden_state.growing, "cache.keys"),
    ],
)
def test_a_step_that_replaces_a_tensor_is_refused(make: Callable[[], Target], name: str) -> None:
    """By the tensor's name, as this cannot be undone."""
    with pytest.raises(TargetError, match=re.escape(f"{name} by a new tensor, ") + r".*; write into it with copy_\(\)"):
        with_backend(make)
    target = make()
    inputs = decode_inputs(target, 0, 1)[0]
    with pytest.raises(TargetError, match=re.escape(f"{name} by a new tensor")):
        written_by(target, lambda: target.decode_step(*inputs))


def test_a_number_that_changes_with_each_step_is_named() -> None:
    """It is a constant of the captured graph, so each step would need another graph."""
    with pytest.raises(TargetError, match=r"captured once for all steps, as .*cache.steps changes"):
        with_backend(hidden_state.counting_in_python)


@pytest.mark.parametrize(("make", "name"), WRITTEN.items())
def test_tensors_that_an_uncompiled_step_writes_are_found(make: Callable[[], Target], name: str) -> None:
    """For backends that do not show what they capture; all values but those of weights are restored."""
    target = make()
    inputs = decode_inputs(target, 0, 1)[0]
    with torch.no_grad():
        written = written_by(target, lambda: target.decode_step(*inputs))
    assert [each.endswith(name.removeprefix("model.")) for each in written] == [True]
    assert not torch.stack([*written.values()]).any() or name == "model.weight"


def test_a_step_may_write_to_its_inputs() -> None:
    """It gets copies, which are then compared like outputs."""
    target, backend = with_backend(hidden_state.in_its_input)
    assert backend.written() == {}
    judge = PlanEvaluator(target, backend)  # raises unless the baseline is deterministic
    assert judge.model_difference == ""
    baseline = backend.compile(Plan()).step
    recordings = replays.record(baseline, replays.prepare(target))

    def wrong(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = baseline.run(x)
        x[1, 5] += 1
        return out

    difference = replays.compare(Step(wrong, baseline.prepare), recordings)
    assert difference is not None
    assert (difference.tensor, difference.index) == ("input[0]", (1, 5))


def test_names_are_those_of_the_source() -> None:
    """Not Dynamo's."""
    source = "L['self']._modules['layers']._modules['0']._buffers['keys']"
    assert readable(source) == "self.layers.0.keys"
    assert readable("G['cache']") == "cache"


def test_a_state_that_repeats_its_elements_is_restored() -> None:
    """A model may hold an expanded tensor, and write to what it repeats."""
    held = torch.zeros(3)
    start = Snapshot({"positions": held.expand(4, 3)})
    held.add_(1)
    start.restore()
    assert torch.equal(held, torch.zeros(3))
