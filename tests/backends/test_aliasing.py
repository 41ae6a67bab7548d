"""Regions whose inputs and results share memory keep the bits of eager execution, or are refused."""

import sys
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.random_programs import described, program_of
from sktune.backends.base import REGION_STEPS, CompileError, RegionBudget
from sktune.backends.inductor.backend import InductorBackend
from sktune.backends.inductor.info import EXACT
from sktune.core.errors import TargetError
from sktune.core.plan import Plan, Scope
from sktune.core.space import SpaceSpec
from sktune.measure.bits import bits_of
from sktune.program.sktune_program.inductor.compiled_regions import CompiledRegion
from sktune.targets.base import Inputs, Target, decode_inputs
from sktune.targets.tracing import trace_layout
from tests.models import stacked_cache

OPTIONS = tuple(sorted(EXACT.items()))
PLAN = Plan((Scope("inside", "inside", OPTIONS),))
PLANS = {
    "one part": PLAN,
    "each part": Plan(tuple(Scope(name, name, OPTIONS) for name in ("before", "inside", "after"))),
    "whole step": Plan((Scope("before", "after", OPTIONS),)),
}
STEPS = 24


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    """Decode without autograd, like a worker, and with a clean compiler."""
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def differing_step(target: Target, backend: InductorBackend, plan: Plan = PLAN) -> int | None:
    """Return the first step whose outputs or state differ between the compiled plan and eager execution."""
    compiled = backend.compile(plan).step
    expected = [everything(target, target.decode_step(*inputs)) for inputs in decode_inputs(target, 1, STEPS)]
    inputs = decode_inputs(target, 1, STEPS)
    compiled.prepare()
    for step in range(STEPS):
        if not all(map(are_same, expected[step], everything(target, compiled.run(*inputs[step])))):
            return step
    return None


def everything(target: Target, outputs: Any) -> list[torch.Tensor]:
    """Return copies of outputs and state."""
    return [
        value.clone() for value in (*(outputs if isinstance(outputs, tuple) else (outputs,)), *target.state.values())
    ]


def are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same bits, except those of NaNs."""
    if one.is_floating_point():
        both = one.isnan() & other.isnan()
        one, other = one.masked_fill(both, 0.0), other.masked_fill(both, 0.0)
    return torch.equal(bits_of(one.contiguous()), bits_of(other.contiguous()))


def backend_of(target: Target) -> InductorBackend:
    """Return the backend of a target."""
    return InductorBackend(target, trace_layout(target, SpaceSpec()), decode_inputs(target, 0, 1)[0])


@pytest.mark.slow
def test_random_programs_keep_their_bits_or_are_refused() -> None:
    """Views of state and of results are written through one name and read through others, around a scope's border.

    ``python -m tests.backends.test_aliasing 1000 2000`` tries more of them.
    """
    results = [results_of(seed) for seed in range(15)]
    assert not [result for each in results for result in each.values() if "differs" in result]
    for plan in PLANS:
        assert Counter(each[plan] for each in results)["exact"] > 7, results  # most are compiled, or nothing is shown


def results_of(seed: int) -> dict[str, str]:
    """Return what becomes of a random program under each plan: exact, tested, refused, or where it differs."""
    torch._dynamo.reset()
    target = program_of(seed)
    try:
        backend = backend_of(target)
    except TargetError:
        return dict.fromkeys(PLANS, "refused")
    return {name: result_of(seed, target, backend, plan) for name, plan in PLANS.items()}


def result_of(seed: int, target: Target, backend: InductorBackend, plan: Plan) -> str:
    """Return what becomes of a random program under one plan."""
    try:
        is_exact = backend.compile(plan).is_exact
    except CompileError:
        return "refused"
    differing = differing_step(target, backend, plan)
    if differing is None:
        return "exact" if is_exact else "tested"
    if not is_exact:
        return "tested, and rejected"  # as a trial would
    return f"program {seed} differs at step {differing}:\n{described(target)}"


class Memory(nn.Module):
    """Clears a sequence's memory when its token is the end of sequence, and reads it through a view from outside."""

    END = 3

    def forward(self, token: torch.Tensor, memory: torch.Tensor, rows: torch.Tensor, hidden: torch.Tensor) -> Any:
        memory.masked_fill_((token == self.END)[:, None], 0.0)
        memory.add_(hidden)
        return rows.sum(0) + hidden


class Forgets(Memory):
    """Writes to the memory only when it clears it, and reads it before."""

    def forward(self, token: torch.Tensor, memory: torch.Tensor, rows: torch.Tensor, hidden: torch.Tensor) -> Any:
        result = hidden - memory
        memory.masked_fill_((token == self.END)[:, None], 0.0)
        return result


class WithMemory(nn.Module):
    """A decoder with a memory, a view of which is made before the scope."""

    def __init__(self, inside: Memory) -> None:
        super().__init__()
        self.embed, self.inside = nn.Embedding(32_000, 16), inside
        self.memory = nn.Buffer(torch.zeros(2, 16))

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        rows = self.memory.view(2, 16)[:]
        return self.inside(token, self.memory, rows, self.embed(token))  # type: ignore[no-any-return]


def with_memory(inside: type[Memory] = Memory) -> Target:
    """Return a target whose steps write to the memory of a view; the end of sequence is one token of 32,000."""
    model = WithMemory(inside()).requires_grad_(False).eval()

    def prefill(seed: int, steps: int) -> list[Inputs]:
        drawn = torch.Generator().manual_seed(seed)
        model.memory.copy_(torch.randn(2, 16, generator=drawn))
        tokens = torch.randint(0, 32_000, (steps, 2), generator=drawn)
        tokens[steps // 2 :, 0] = Memory.END if seed else tokens[steps // 2 :, 0]
        return [(token,) for token in tokens]

    return Target(model, model.forward, prefill, {"memory": model.memory})


def test_memory_written_through_a_view_from_outside_keeps_its_bits() -> None:
    """Also on the steps with the rare token, in which it is cleared."""
    target = with_memory()
    backend = backend_of(target)
    assert backend.compile(PLAN).is_exact
    assert differing_step(target, backend) is None


@pytest.mark.parametrize("inside", [Memory, Forgets])
def test_the_check_of_regions_takes_rare_branches(inside: type[Memory]) -> None:
    """A region that leaves out what happens for one token of 32,000 is found, though no recorded step has the token.

    One that is right is not blamed for what the kernels have written in such a branch, also if they write nothing else.
    """
    for is_right in (True, False):
        target = with_memory(inside)
        backend = backend_of(target)
        compiled = backend.compile(PLAN)
        if not is_right:
            (key,) = backend._regions.compiled
            function = backend._regions.compiled[key].function
            backend._regions.compiled[key] = CompiledRegion(without_the_end(function), "")
            compiled = backend.compile(PLAN)
        assert compiled.check_regions is not None
        steps = decode_inputs(target, 0, REGION_STEPS)
        (result,) = compiled.check_regions(iter(steps), RegionBudget(elements=200_000, seconds=5.0))
        assert (result.difference == "") is is_right, result.difference


def without_the_end(function: Any) -> Any:
    """Return the function of a region that takes the end of sequence for another token."""
    return lambda token, *others: function(torch.where(token == Memory.END, token + 1, token), *others)


def test_views_of_a_stacked_cache_keep_its_bits_and_layers_share_code() -> None:
    """Each layer's window begins elsewhere; their regions are the same, and compiled once."""
    target = stacked_cache.target()
    backend = backend_of(target)
    both = Plan(tuple(Scope(name, name, OPTIONS) for name in ("first", "second")))
    compiled = backend.compile(both)
    assert (compiled.regions, compiled.is_exact) == (1, True)
    expected = stacked_cache.run(target, target.decode_step)
    compiled.step.prepare()
    assert all(map(are_same, expected, stacked_cache.run(target, compiled.step.run)))


def test_a_write_through_an_expanded_view_is_refused() -> None:
    """Compiled code would write to one of the repetitions only, or sum them."""

    class Expanded(nn.Module):
        def forward(self, state: torch.Tensor) -> torch.Tensor:
            state.expand(3, 8)[0].add_(1.0)
            return state * 2

    module = nn.Module()
    module.inside = inner = Expanded()
    module.state = state = nn.Buffer(torch.zeros(1, 8))
    target = Target(
        module, lambda x: inner(state) + x, lambda seed, steps: [(torch.ones(8),)] * steps, {"state": state}
    )
    with pytest.raises(CompileError, match=r"scope inside: .*writes through an expanded view") as failure:
        backend_of(target).compile(PLAN)
    assert failure.value.blamed == "inside"


def test_what_is_read_before_a_write_keeps_its_bits() -> None:
    """Also if the kernel that writes needs a result of the kernel that reads."""

    class Writes(nn.Module):
        def forward(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            state.mul_(x)
            read = state * 2.0, state * 3.0
            state[4].add_(state[4])
            return read

    module = nn.Module()
    module.inside = inner = Writes()
    module.state = state = nn.Buffer(torch.zeros(8, 8))

    def prefill(seed: int, steps: int) -> list[Inputs]:
        state.copy_(torch.arange(64.0).view(8, 8))
        return [(torch.tensor(1.25),)] * steps

    target = Target(module, lambda x: inner(state, x), prefill, {"state": state})
    backend = backend_of(target)
    assert backend.compile(PLAN).is_exact
    assert differing_step(target, backend) is None


def test_a_joined_value_that_is_written_afterwards_keeps_its_bits() -> None:
    """Inductor computes a value inside of the tensor that it is joined into, unless the region writes an input."""

    class Joins(nn.Module):
        def forward(self, state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            value = x * state.add_(1.0)
            joined = torch.cat((x, value))
            value.mul_(2.0)
            return joined - torch.cat((value, state))

    module = nn.Module()
    module.inside = inner = Joins()
    module.state = state = nn.Buffer(torch.zeros(8))

    def prefill(seed: int, steps: int) -> list[Inputs]:
        state.fill_(seed)
        return [(torch.arange(8.0),)] * steps

    target = Target(module, lambda x: inner(state, x) + 1, prefill, {"state": state})
    backend = backend_of(target)
    assert backend.compile(PLAN).is_exact
    assert differing_step(target, backend) is None


@pytest.mark.parametrize("is_guarded", [False, True])
def test_inputs_that_overlap_only_later_run_kernel_by_kernel(
    is_guarded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What was compiled for separate tensors is not run on tensors that share memory: bits come first.

    Also if the model has told Dynamo to guard the address of its state, and has not told sktune what is state.
    """

    class Adds(nn.Module):
        def forward(self, state: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            state.add_(1.0)
            return values * 2 + state

    module = nn.Module()
    module.inside = inner = Adds()
    module.state = state = nn.Buffer(torch.ones(8))
    if is_guarded:
        torch._dynamo.mark_static_address(state, guard=True)
    declared = {} if is_guarded else {"state": state}
    target = Target(
        module, lambda values: inner(state, values), lambda seed, steps: [(torch.ones(8),)] * steps, declared
    )
    step = backend_of(target).compile(PLAN).step
    step.prepare()
    for values in (torch.full((8,), 3.0), state.view(8)[:], torch.full((8,), 4.0)):
        state.copy_(torch.arange(8.0))
        expected = inner(state, values), state.clone()
        state.copy_(torch.arange(8.0))
        got = step.run(values), state.clone()
        assert all(map(are_same, expected, got))
    assert caplog.text.count("share memory in another way") == 1


def opaque(values: torch.Tensor) -> torch.Tensor:
    """Count its calls, unseen by the compiler."""
    opaque.calls += 1  # type: ignore[attr-defined]
    return values * opaque.calls  # type: ignore[attr-defined,no-any-return]


opaque.calls = 0  # type: ignore[attr-defined]
torch.compiler.allow_in_graph(opaque)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda x, w: nn.functional.linear((x * 2).view(-1)[3:19].view(2, 8), w), "not aligned"),
        (lambda x, w: nn.functional.linear(x, w[1:]), "not aligned"),
        (lambda x, w: (y := x * 2, torch.cat((x[0, :3], y.view(-1))), nn.functional.linear(y, w))[2], "not aligned"),
        (lambda x, w: x.t().mul_(2.0).sum(-1), "written in place through a view"),
        (lambda x, w: opaque(x), "opaque to the compiler"),
    ],
)
def test_what_depends_on_alignment_layout_or_hidden_state_is_not_called_exact(body: Any, reason: str) -> None:
    """A library chooses its kernel by alignment; functions that the capture skips may keep something."""

    class Inside(nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return body(x, w)  # type: ignore[no-any-return]

    module = nn.Module()
    module.inside = inner = Inside()
    module.weight = weight = nn.Parameter(torch.randn(5, 8), requires_grad=False)
    target = Target(module, lambda x: inner(x, weight), lambda seed, steps: [(torch.randn(4, 8),)] * steps)
    doubts = backend_of(target).exactness(PLAN)["inside"]
    assert any(reason in doubt for doubt in doubts), doubts


if __name__ == "__main__":
    with torch.no_grad():
        found = [results_of(seed) for seed in range(int(sys.argv[1]), int(sys.argv[2]))]
    for shape in PLANS:
        counts = Counter(each[shape] for each in found)
        print(f"{shape}:", *(f"\n{count:5} {result}" for result, count in counts.most_common()))
