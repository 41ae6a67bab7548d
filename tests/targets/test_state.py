"""What a step writes to is compared and put back, whether the target names it or not."""

import re
from collections.abc import Callable

import pytest
import torch

from sktune.backends.base import Step
from sktune.backends.inductor.backend import InductorBackend
from sktune.core.errors import BackendError, TargetError
from sktune.core.plan import Plan
from sktune.core.space import SpaceSpec
from sktune.runners.worker import replays
from sktune.runners.worker.judge import Judge
from sktune.targets.base import Target, decode_inputs
from sktune.targets.state import complete_state, readable, written_by
from sktune.targets.tracing import trace_layout
from tests.models import hidden_state


@pytest.fixture(autouse=True)
def clean_compiler() -> None:
    """Dynamo counts the captures of one function: all these steps share one."""
    torch._dynamo.reset()


def opened(make: Callable[[], Target]) -> tuple[Target, InductorBackend]:
    """Return a target and its backend."""
    torch.set_grad_enabled(False)
    target = make()
    layout = trace_layout(target, SpaceSpec())
    return target, InductorBackend(target, layout, decode_inputs(target, 0, 1)[0])


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (hidden_state.in_a_buffer, "model.total"),
        (hidden_state.in_a_plain_attribute, "model.plain"),
        (hidden_state.in_a_closure, "kept"),
        (hidden_state.in_a_parameter, "model.weight"),
        (hidden_state.in_slots, "cache.keys"),
        (hidden_state.in_a_global_variable, "KEPT"),
    ],
)
def test_undeclared_state_is_compared_and_put_back(make: Callable[[], Target], name: str) -> None:
    """By its name; a step that leaves something else there is found."""
    target, backend = opened(make)
    state = complete_state(target, backend.written())
    assert len(state) == 1
    ((found, tensor),) = state.items()
    assert name in found
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
        (hidden_state.replaced_and_never_read, "kept.keys"),
        (hidden_state.replaced_in_a_dictionary, "kept['hidden']"),
        (hidden_state.growing, "cache.keys"),
    ],
)
def test_what_a_step_replaces_is_refused_by_name(make: Callable[[], Target], name: str) -> None:
    """It cannot be put back."""
    with pytest.raises(TargetError, match=re.escape(f"{name} by a new tensor, ") + r".*; write into it with copy_\(\)"):
        opened(make)
    target = make()
    inputs = decode_inputs(target, 0, 1)[0]
    with pytest.raises(TargetError, match=re.escape(f"{name} by a new tensor")):
        written_by(target, lambda: target.decode_step(*inputs))


def test_a_number_that_changes_with_each_step_is_named() -> None:
    """It is part of what is captured, so that each step would be another one."""
    with pytest.raises(BackendError, match=r"captured once for all steps, as .*cache.steps changes"):
        opened(hidden_state.counting_in_python)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (hidden_state.in_a_buffer, "total"),
        (hidden_state.in_a_plain_attribute, "plain"),
        (hidden_state.in_a_closure, "kept"),
        (hidden_state.in_a_parameter, "weight"),
        (hidden_state.in_slots, "cache.keys"),
        (hidden_state.in_a_global_variable, "KEPT"),
    ],
)
def test_what_an_uncompiled_step_writes_to_is_found_without_a_graph(make: Callable[[], Target], name: str) -> None:
    """For backends that do not show what they capture; the values are put back, but for those of weights."""
    target = make()
    inputs = decode_inputs(target, 0, 1)[0]
    with torch.no_grad():
        found = written_by(target, lambda: target.decode_step(*inputs))
    assert [own.endswith(name) for own in found] == [True]
    assert not torch.stack([*found.values()]).any() or name == "weight"


def test_a_step_may_write_to_its_inputs() -> None:
    """Each is given a copy; what it leaves there is compared like an output."""
    target, backend = opened(hidden_state.in_its_input)
    assert backend.written() == {}
    judge = Judge(target, backend)  # the baseline equals itself
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


def test_names_are_those_of_the_program() -> None:
    """And not Dynamo's."""
    source = "L['self']._modules['layers']._modules['0']._buffers['keys']"
    assert readable(source) == "self.layers.0.keys"
    assert readable("G['kept']") == "kept"
