"""The inductor backend, with real models and the real compiler."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.utils import fresh_cache

import sktune
from sktune.backends.base import CompileError, Step
from sktune.backends.inductor.backend import InductorBackend
from sktune.core.errors import PlanError
from sktune.core.layout import Layout
from sktune.core.plan import Options, Plan, Scope
from sktune.core.space import SpaceSpec
from sktune.measure.bits import Mismatch
from sktune.program.sktune_program.inductor import cpp_wrapper
from sktune.targets.base import Target, decode_inputs
from sktune.targets.tracing import trace_layout
from sktune.worker.replays import compare, prepare, record, replayed_inputs
from tests import warm
from tests.builders import ROOT
from tests.models import faulty

sys.path.insert(0, str(ROOT / "examples"))
import own_model

EXACT: Options = (("emulate_precision_casts", True), ("matmul", "aten"), ("reductions", "aten"))


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    """Decode without autograd, like a worker, and with a clean compiler."""
    torch._dynamo.reset()
    with torch.no_grad():
        yield


class Bench:
    """A target with its backend, and the baseline's recording."""

    def __init__(self) -> None:
        self.target: Target = own_model.target()
        self.layout: Layout = trace_layout(self.target, SpaceSpec())
        self.backend = InductorBackend(self.target, self.layout, decode_inputs(self.target, 0, 1)[0])
        baseline = self.backend.compile(Plan()).step
        self.recordings = record(baseline, prepare(self.target))

    def differs(self, step: Step) -> Mismatch | None:
        """Compare with the baseline."""
        return compare(step, self.recordings)


def plan(*scopes: tuple[str, str], options: Options = EXACT) -> Plan:
    """Return a plan of scopes, given by first and last unit."""
    return Plan(tuple(Scope(first, last, options) for first, last in scopes))


ATTENTION = plan(*((f"blocks.{index}.attention", f"blocks.{index}.attention") for index in range(3)))


def test_the_baseline_has_the_bits_of_the_uncompiled_model() -> None:
    """The captured graph, run kernel by kernel, equals the model."""
    bench = Bench()
    assert bench.differs(bench.backend.references()["uncompiled"]().step) is None


@pytest.mark.slow
def test_scopes_keep_the_bits_and_equal_regions_are_compiled_once() -> None:
    """For one module, one layer, several layers, and the whole step."""
    bench = Bench()
    attention = bench.backend.compile(ATTENTION)
    assert bench.differs(attention.step) is None
    assert (attention.regions, attention.reused) == (1, 0)  # three layers, one region
    assert bench.backend.compile(plan(("blocks.1.attention", "blocks.1.attention"))).reused == 1
    layers = bench.backend.compile(
        plan(("blocks.0.attention_norm", "blocks.0.feed_forward"), ("blocks.1.attention_norm", "blocks.2.feed_forward"))
    )
    assert bench.differs(layers.step) is None
    whole = bench.backend.compile(plan(("embedding", "head")))
    assert bench.differs(whole.step) is None


@pytest.mark.slow
def test_a_step_compiled_earlier_stays_valid() -> None:
    """Calls of baseline and candidates are interleaved."""
    bench = Bench()
    first = bench.backend.compile(ATTENTION)
    second = bench.backend.compile(plan(("blocks.0.feed_forward", "blocks.0.feed_forward")))
    uncompiled = bench.backend.references()["uncompiled"]().step
    for step in (first.step, second.step, uncompiled, first.step):
        assert bench.differs(step) is None


@pytest.mark.slow
def test_inductors_default_numerics_change_bits() -> None:
    """Without the exact options, a bf16 layer fails verification."""
    bench = Bench()
    mismatch = bench.differs(bench.backend.compile(plan(("embedding", "head"), options=())).step)
    assert mismatch is not None
    assert mismatch.largest_ulp is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra", [("cpp_wrapper", True), ("freezing", True), ("matmul", "autotune"), ("reductions", "fused")]
)
def test_every_option_reaches_the_compiler(extra: tuple[str, Any]) -> None:
    """Every option changes the generated code; otherwise a search would waste trials on it."""
    bench = Bench()
    scope = ("blocks.0.attention_norm", "blocks.0.attention")
    options = tuple(dict([*EXACT, extra]).items())
    code = {bench.backend.compile(plan(scope, options=each)).code_digest for each in (EXACT, options)}
    assert len(code) == 2


class Reductions(torch.nn.Module):
    """Every reduction for which ``shims.cpp`` has a C function, with each form of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(48, dtype=torch.bfloat16)
        self.plain = torch.nn.LayerNorm((6, 48), elementwise_affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.plain(self.norm(x)).softmax(-1)
        x = x / x.sum() - x.mean(dtype=torch.float32).to(x.dtype)
        x = x - x.mean(-1, keepdim=True) + x.sum((0, 1))
        return x * x.sum(-1, keepdim=True, dtype=torch.float32).to(x.dtype) + x.sum(1).mean()


@pytest.mark.slow
def test_reductions_in_a_cpp_wrapper_call_aten_without_the_dispatcher(tmp_path: Path) -> None:
    """The C functions called by wrappers give the bits of eager execution."""
    module = torch.nn.Module()
    module.first, module.inner = first, inner = torch.nn.SiLU(), Reductions()
    target = Target(
        module,
        lambda x: inner(first(x)),
        lambda seed, steps: [(torch.randn(3, 6, 48).bfloat16(),) for _ in torch.arange(steps)],
    )
    with fresh_cache(dir=str(tmp_path), delete=False):
        backend = InductorBackend(target, trace_layout(target, SpaceSpec()), decode_inputs(target, 0, 1)[0])
        recordings = record(backend.compile(Plan()).step, prepare(target))
        compiled = backend.compile(plan(("inner", "inner"), options=(*EXACT, ("cpp_wrapper", True))))
    assert compare(compiled.step, recordings) is None
    wrapper = max(
        (path.read_text() for path in tmp_path.rglob("*.main.cpp")), key=lambda text: "inductor_entry" in text
    )
    calls = ("sum(", "sum_dim_IntList(", "mean(", "mean_dim(", "_softmax(", "native_layer_norm(")
    assert all(f"aoti_torch_cpu_{call}" in wrapper for call in calls)
    assert "c10::Dispatcher" not in wrapper


def test_all_workers_share_the_header_of_wrappers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its path does not depend on their temporary files: it is part of the code, and what is precompiled is large."""
    path = cpp_wrapper._header("cpu")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cpp_wrapper._header("cpu") == path
    assert Path(path).is_file() and not Path(path).is_relative_to(tmp_path)


class Experts(torch.nn.Module):
    """A mixture of experts in which only the data decide how many rows each expert computes."""

    def __init__(self) -> None:
        super().__init__()
        self.router = torch.nn.Parameter(torch.randn(48, 4))
        self.experts = torch.nn.Parameter(torch.randn(4, 48, 48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = (x @ self.router).argmax(-1)
        sizes: list[int] = torch.nn.functional.one_hot(chosen, 4).sum(0).tolist()
        order = chosen.argsort(stable=True)
        parts = zip(x[order].split(sizes), self.experts, strict=True)
        return torch.cat([part @ expert for part, expert in parts]).index_select(0, order.argsort())


class Positive(torch.nn.Module):
    """The rows whose sum is positive: how many depends on the data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x.sum(-1) > 0]


class Total(torch.nn.Module):
    """The sum over all rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cos().sum(0)


def sequence(*modules: torch.nn.Module) -> tuple[Target, InductorBackend]:
    """Return a target that runs ``modules``, named ``a``, ``b``, ..., on 6 random rows, and its backend."""
    torch.manual_seed(0)
    module = torch.nn.Module()
    for name, each in zip("abc", modules, strict=True):
        module.add_module(name, each.requires_grad_(False))
    target = Target(
        module,
        lambda x: modules[2](modules[1](modules[0](x))),
        lambda seed, steps: [(torch.randn(6, 48),) for _ in torch.arange(steps)],
    )
    return target, InductorBackend(target, trace_layout(target, SpaceSpec()), decode_inputs(target, 0, 1)[0])


@pytest.mark.slow
def test_sizes_that_depend_on_the_data_are_compiled_in_a_scope(caplog: pytest.LogCaptureFixture) -> None:
    """One compilation holds for all sizes, also where the same region is compiled for another layer."""
    target, backend = sequence(torch.nn.SiLU(), Experts(), Experts())
    recordings = record(backend.compile(Plan()).step, prepare(target))
    assert "cannot find" not in caplog.text
    for scopes in ((("b", "b"), ("c", "c")), (("a", "c"),)):
        assert compare(backend.compile(plan(*scopes)).step, recordings) is None


@pytest.mark.skipif(torch.__version__ < "2.10", reason="Dynamo of torch 2.8 refuses sizes that depend on the data")
def test_a_scope_whose_input_has_no_fixed_size_is_a_compile_error() -> None:
    """Code for one size would be wrong for others; a scope that also computes the size is compiled."""
    target, backend = sequence(torch.nn.SiLU(), Positive(), Total())
    recordings = record(backend.compile(Plan()).step, prepare(target))
    with pytest.raises(CompileError, match=r"scope c: its input .* has a size that depends on the data") as failure:
        backend.compile(plan(("c", "c")))
    assert failure.value.blamed == "c"
    assert compare(backend.compile(plan(("b", "c"))).step, recordings) is None


@pytest.mark.slow
def test_the_same_plan_is_the_same_code_in_another_process(compile_cache: Path, tmp_path: Path) -> None:
    """Choices by timing are cached with the region, whose identity is the same there, too."""
    options = (*EXACT, ("freezing", True))
    code = (
        "import sys; sys.path.insert(0, 'examples'); import torch; torch.set_grad_enabled(False)\n"
        "from tests.backends.test_inductor import Bench, plan\n"
        f"compiled = Bench().backend.compile(plan(('embedding', 'head'), options={options!r}))\n"
        "print(compiled.code_digest, *compiled.region_labels)"
    )
    digests = set()
    for _ in range(2):
        done = subprocess.run([warm.python_in(tmp_path), "-c", code], capture_output=True, text=True, check=True)
        digests.add(done.stdout.strip())
    assert len(digests) == 1


@pytest.mark.slow
def test_the_pieces_of_a_plan_cover_every_unit_and_keep_the_state() -> None:
    """Scopes and gaps are in execution order, with both times; the step still verifies afterwards."""
    bench = Bench()
    scopes = plan(("embedding", "blocks.0.attention_norm"), ("blocks.1.attention", "blocks.2.feed_forward"))
    compiled = bench.backend.compile(scopes)
    assert compiled.observe is not None
    replay = bench.recordings[0].replay

    def begin() -> Any:
        replay.start.restore()
        return replay.inputs[0]

    pieces = compiled.observe(begin)
    names = [unit.name for unit in bench.layout.units]
    covered = [name for piece in pieces for name in names[names.index(piece.first) : names.index(piece.last) + 1]]
    assert covered == names
    assert [(piece.first, piece.last) for piece in pieces if piece.in_scope] == [
        (scope.first, scope.last) for scope in scopes.scopes
    ]
    assert [piece.in_scope for piece in pieces] == [True, False, True, False]
    assert all(piece.baseline_ms > 0 and piece.latency_ms > 0 for piece in pieces)
    assert bench.differs(compiled.step) is None


@pytest.mark.slow
def test_the_scopes_that_change_bits_are_named() -> None:
    """All of them are named, among exact scopes before, between and after them; none is if all are exact."""
    bench = Bench()
    units = "blocks.0.feed_forward", "blocks.1.feed_forward"
    inexact = [Scope(unit, unit) for unit in units]
    mixed = Plan((ATTENTION.scopes[0], inexact[0], ATTENTION.scopes[1], inexact[1], ATTENTION.scopes[2]))
    compiled = bench.backend.compile(mixed)
    assert bench.differs(compiled.step) is not None
    replays = [recording.replay for recording in bench.recordings]
    assert compiled.blame is not None and compiled.blame(replayed_inputs(replays)) == units
    exact = bench.backend.compile(ATTENTION)
    assert exact.blame is not None and exact.blame(replayed_inputs(replays)) == ()
    assert bench.differs(exact.step) is None


@pytest.mark.slow
def test_the_scope_that_does_not_compile_is_named() -> None:
    """Of several scopes, the one with the operator that the compiler rejects; ``on_scope`` was called before."""
    target = faulty.raises()
    layout = trace_layout(target, SpaceSpec())
    backend = InductorBackend(target, layout, decode_inputs(target, 0, 1)[0])
    labels: list[str] = []
    with pytest.raises(CompileError, match=r"scope layers.1.fault: .*cannot be fused") as failure:
        backend.compile(plan(("layers.0.mix", "layers.0.mix"), ("layers.1.fault", "layers.1.fault")), labels.append)
    assert failure.value.blamed == "layers.1.fault" == labels[-1]
    assert "layers.0.mix" in labels


@pytest.mark.slow
def test_applied_scopes_are_the_ones_that_were_tuned() -> None:
    """``sktune.apply`` with the Dynamo backend gives the bits that the search verified."""
    bench = Bench()
    bench.backend.references()["uncompiled"]().step.prepare()  # removes the tuner's marks
    marks = sktune.apply(bench.target.module, ATTENTION)
    compiled = torch.compile(bench.target.decode_step, backend="sktune", fullgraph=True, dynamic=False)
    assert bench.differs(Step(compiled)) is None
    marks.detach()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in bench.target.module.modules())


def test_a_plan_can_be_applied_to_a_part_of_the_model() -> None:
    """A prefix may be added or dropped; a model that lacks a unit is refused in one line."""
    target = own_model.target()
    wrapped = torch.nn.Module()
    wrapped.inner = target.module
    for tree in (target.module, wrapped):
        sktune.apply(tree, ATTENTION).detach()
    blocks = target.module.get_submodule("blocks")
    sktune.apply(blocks, Plan((Scope("blocks.0.attention", "blocks.0.attention"),))).detach()
    with pytest.raises(PlanError, match=r"does not fit this model.*blocks.0.attention"):
        sktune.apply(faulty.Stack(), ATTENTION)


def test_a_unit_that_is_not_in_the_graph_is_a_compile_error() -> None:
    """It is a failure of the plan, not of sktune."""
    bench = Bench()
    with pytest.raises(CompileError, match="left no mark"):
        bench.backend.compile(plan(("blocks.0", "blocks.0")))


@pytest.mark.slow
def test_kept_operators_do_not_share_cached_code_with_others() -> None:
    """A region compiled with one set of options does not reuse code that was compiled with another."""
    scope = ("norm", "norm")
    fused = (("emulate_precision_casts", True), ("matmul", "aten"))
    with fresh_cache():
        first = Bench().backend.compile(plan(scope)).code_digest
        torch._dynamo.reset()
        assert Bench().backend.compile(plan(scope, options=fused)).code_digest != first


HELPED = """
import logging, os, sys, torch
from sktune.backends.inductor import parallel_compile
logging.basicConfig()
os.sched_getaffinity = lambda pid: {0, 1}
parallel_compile.HELPER_WAIT_S = 30
values = torch.ones(1_000_000)
values.exp()  # starts OpenMP's workers, which do not survive a fork
jobs = {"ours": values.exp, "the helper's": lambda: print(values.exp().shape, flush=True)}
parallel_compile.compile_ahead(jobs, print)
"""


def test_a_helper_can_compute_with_threads() -> None:
    """Freezing folds weights, and autotuning runs kernels, while regions are compiled."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", HELPED], env=environment, capture_output=True, text=True, check=True)
    assert sorted(done.stdout.splitlines()) == ["ours", "torch.Size([1000000])"]
    assert not done.stderr  # no helper was killed
