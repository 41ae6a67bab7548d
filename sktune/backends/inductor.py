"""The inductor backend (CPU, CUDA): each scope is one region compiled by Inductor, all else runs kernel by kernel.

The decode step is captured once, with a mark around every unit. A plan only chooses where the captured graph
is cut, so no trial traces the model again. Inductor's caches, its timed choices among them, lie in the folder
that ``TORCHINDUCTOR_CACHE_DIR`` names: with the same folder, the same plan is the same code in every process.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor.codecache import PyCodeCache
from torch._inductor.compile_fx import compile_fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from sktune.backends import cpp_wrapper
from sktune.backends.base import At, Compiled, CompileError, Step, not_told
from sktune.backends.building import compile_ahead
from sktune.backends.cuda_graph import CapturedRegion
from sktune.backends.numerics import CacheIdentity, kept_operators
from sktune.backends.options import check_option, option_defaults
from sktune.backends.pieces import Pieces
from sktune.backends.regions import Hole, MarkedGraph, Region, Span, cut, strip_marks
from sktune.devices import Cpu, Cuda
from sktune.errors import BackendError, described
from sktune.layout import Layout
from sktune.marks import put_on_each
from sktune.outcome import ScopeTime
from sktune.plan import Options, Plan
from sktune.scope_times import Part, scope_times
from sktune.targets.base import Inputs, Snapshot, Target

MAX_AUTOTUNE = {"max_autotune": True, "coordinate_descent_tuning": True}
"""What ``torch.compile(mode="max-autotune")`` sets, but for CUDA graphs, which are an option of a scope."""


_ADDRESS = re.compile(r"(?<=\)) [0-9a-f]{9,16}$| at 0x[0-9a-f]+", re.MULTILINE)
"""Addresses in comments and messages of generated code: of frozen weights, and of Inductor's own functions."""


@dataclass(frozen=True, slots=True)
class _CompiledRegion:
    function: Callable[..., Any]
    code_digest: str


@dataclass
class RegionCache:
    """Regions compiled in this process, by region and options."""

    compiled: dict[tuple[str, Options], _CompiledRegion] = field(default_factory=dict)
    has_built_wrapper: bool = False

    def compile_all(self, holes: Sequence[Hole], at: At = not_told) -> list[_CompiledRegion]:
        """Return the compiled region of each hole; compile those that are not known, on all cores."""
        missing: dict[tuple[str, Options], Hole] = {}
        for hole in holes:
            if identity(hole) not in self.compiled:
                missing.setdefault(identity(hole), hole)  # the first of several scopes that share a region
        # Other regions consist of many kernels, which Inductor builds on all cores by itself.
        single_files = [hole for hole in missing.values() if hole.options.get("cpp_wrapper")]
        if self.has_built_wrapper:
            compile_ahead({hole.label: partial(_compile_region, hole) for hole in single_files}, at)
        for key, hole in missing.items():
            at(hole.label)
            self.compiled[key] = _compile_region(hole)
        self.has_built_wrapper |= bool(single_files)  # from here on, helpers find the headers and the shims built
        return [self.compiled[identity(hole)] for hole in holes]


def identity(hole: Hole) -> tuple[str, Options]:
    """Return what two holes have in common that can be filled with the same code."""
    key = hole.region.key
    if hole.options.get("freezing"):
        # Weights become part of the code: layers no longer share a region.
        pairs = zip(hole.region.inputs, hole.region.parameters, strict=True)
        key += repr([value.data_ptr() for value, is_weight in pairs if is_weight])
    return key, tuple(sorted(hole.options.items()))


class InductorBackend:
    """Compiles plans of one target; see ``sktune.backends.base.Backend``.

    Raises:
        BackendError: the decode step cannot be captured as one graph.
    """

    notes = ""

    def __init__(self, target: Target, layout: Layout, inputs: Inputs) -> None:
        self._target, self._layout, self._inputs = target, layout, inputs
        self._snapshot = Snapshot(target.state)
        for tensor in target.state.values():
            # A CUDA graph reads and writes the state in place; it tells state from activations by this mark.
            torch._dynamo.mark_static_address(tensor)  # noqa: SLF001 - transformers' caches are marked so as well
        self._regions = RegionCache()
        self._marks = put_on_each(target.module, tuple(unit.name for unit in layout.units))
        self._run: Callable[..., Any] | None = None
        self._example_inputs: Sequence[Any] = ()
        self._device: Cpu | Cuda = Cpu()
        self._marked: MarkedGraph | None = None
        self._captured = self._capture()

    def compile(self, plan: Plan, at: At = not_told) -> Compiled:
        """See ``Backend.compile``."""
        marked = self._marked
        assert marked is not None
        chosen = [self._span(marked, scope.first, scope.last, scope.label, scope.options) for scope in plan.scopes]
        cutting = cut(marked.graph_module, chosen, self._example_inputs)
        before = set(self._regions.compiled)
        regions = self._regions.compile_all(cutting.holes, at)
        used = {identity(hole) for hole in cutting.holes}
        step = self._step(cutting.fill([region.function for region in regions]))
        codes = sorted({region.code_digest for region in regions})
        digest = hashlib.sha256("".join(codes).encode()).hexdigest()
        if not cutting.holes:
            self._try(step)
            return Compiled(step, code_digest=digest)
        pieces = Pieces(cutting)
        self._try(self._step(pieces.first_run(at, self._device)))
        return Compiled(
            step, len(used), len(used & before), digest,
            observe=partial(self._observe, plan, pieces), blame=partial(pieces.blame, self._step),
        )  # fmt: skip

    def references(self) -> dict[str, Callable[[], Compiled]]:
        """See ``Backend.references``: the model uncompiled, and the whole step in max-autotune."""
        step = self._target.decode_step

        def whole_step() -> Compiled:
            compiled = Step(torch.compile(step, mode="max-autotune", dynamic=False), self._marks.suspend)
            try:
                self._try(compiled)
            except Exception as failure:
                raise CompileError(described(failure)) from failure
            return Compiled(compiled)

        return {
            "uncompiled": lambda: Compiled(Step(step, self._marks.suspend)),
            "torch.compile(mode='max-autotune')": whole_step,
        }

    def _capture(self) -> Callable[..., Any]:
        def receive(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            if self._marked is not None:
                raise CompileError(
                    "the decode step had to be captured again; keep shapes, strides and types of inputs and state fixed"
                )
            self._marked = strip_marks(graph_module)
            self._example_inputs = example_inputs
            self._device = Cuda() if _device_type(example_inputs) == "cuda" else Cpu()
            self._run = self._marked.graph_module.forward

            def dispatch(*arguments: Any) -> Any:
                assert self._run is not None
                return self._run(*arguments)

            return dispatch

        captured = torch.compile(self._target.decode_step, backend=receive, fullgraph=True, dynamic=False)
        try:
            self._try(Step(captured))
        except Exception as failure:
            raise BackendError(
                f"the decode step cannot be captured as one graph: {described(failure)}; "
                "take data-dependent control flow out of it"
            ) from failure
        if self._marked is None:
            raise BackendError("the decode step holds no tensor operation that can be captured")
        return captured

    def _step(self, run: Callable[..., Any]) -> Step:
        def step(*inputs: Any) -> Any:
            self._run = run
            return self._captured(*inputs)

        return Step(step, self._marks.resume)

    def _try(self, step: Step) -> None:
        step.prepare()
        try:
            with torch.no_grad():
                step.run(*self._inputs)
        finally:
            self._snapshot.restore()

    def _observe(self, plan: Plan, pieces: Pieces, begin: Callable[[], Inputs]) -> tuple[ScopeTime, ...]:
        scopes = {scope.label: scope for scope in plan.scopes}
        found = pieces.observe(self._step, begin, self._device)
        return scope_times(self._layout, [Part(scopes.get(label), before, after) for label, before, after in found])

    def _span(self, marked: MarkedGraph, first: str, last: str, label: str, options: Options) -> Span:
        for name in (first, last):
            if name not in marked.spans:
                raise CompileError(f"unit {name!r} left no mark in the captured graph")
        return Span(label, marked.spans[first].start, marked.spans[last].end, options)


def compile_marked(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile a graph with marks on it: the Dynamo backend ``sktune``.

    ``torch.compile(step, backend="sktune", fullgraph=True, dynamic=False)`` runs the scopes that
    ``sktune.apply`` has put on a model.
    """
    marked = strip_marks(graph_module)
    device = _device_type(example_inputs)

    cutting = cut(marked.graph_module, list(marked.spans.values()), example_inputs)
    for hole in cutting.holes:
        for name, value in hole.options.items():
            check_option("inductor", device, name, value)
    return cutting.fill([region.function for region in RegionCache().compile_all(cutting.holes)])


def _device_type(values: Sequence[Any]) -> str:
    return "cuda" if any(isinstance(value, torch.Tensor) and value.is_cuda for value in values) else "cpu"


def _compile_region(hole: Hole) -> _CompiledRegion:
    region, chosen = hole.region, option_defaults("inductor") | dict(hole.options)
    keep_matmuls, keep_reductions = chosen["matmul"] == "aten", chosen["reductions"] == "aten"
    graph_module, inputs, call = _frozen(region) if chosen["freezing"] else (region.graph_module, region.inputs, None)
    settings = {
        **MAX_AUTOTUNE,
        **cpp_wrapper.SETTINGS,
        **({"max_autotune_gemm_backends": "ATEN", "max_autotune_gemm": False} if keep_matmuls else {}),
        "emulate_precision_casts": chosen["emulate_precision_casts"],
        "cpp_wrapper": chosen["cpp_wrapper"],
        "freezing": chosen["freezing"],
        "post_grad_custom_post_pass": CacheIdentity(
            f"matmuls={keep_matmuls}-reductions={keep_reductions}-{cpp_wrapper.identity()}"
        ),
    }
    try:
        with (
            torch.no_grad(),
            tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))),
            inductor_config.patch(settings),
            kept_operators(keep_matmuls, keep_reductions),
            cpp_wrapper.quick_wrapper(_device_type(inputs)) if chosen["cpp_wrapper"] else nullcontext(),
            _recorded_code() as code,
        ):
            compiled: Any = compile_fx(graph_module, list(inputs), ignore_shape_env=True)
    except MemoryError:
        raise
    except Exception as failure:
        raise CompileError(f"scope {hole.label}: {described(failure)}", blamed=hole.label) from failure
    function: Callable[..., Any] = call(compiled) if call else compiled
    if chosen["cuda_graph"]:
        function = CapturedRegion(function)
    return _CompiledRegion(function, hashlib.sha256("".join(sorted(code)).encode()).hexdigest())


def _frozen(
    region: Region,
) -> tuple[fx.GraphModule, tuple[Any, ...], Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Turn the region's weights into attributes of its graph, where freezing finds them."""
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(region.graph_module.graph, values)
    output = next(node for node in region.graph_module.graph.nodes if node.op == "output")
    graph.output(fx.node.map_arg(output.args[0], values.__getitem__))
    frozen = fx.GraphModule(region.graph_module, graph)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    kept = [index for index, is_weight in enumerate(region.parameters) if not is_weight]
    for index, node in enumerate(placeholders):
        if region.parameters[index]:
            name = f"weight_{index}"
            frozen.register_parameter(name, region.inputs[index])
            with graph.inserting_before(node):
                attribute = graph.get_attr(name)
            attribute.meta = dict(node.meta)
            node.replace_all_uses_with(attribute)
            graph.erase_node(node)
    frozen.recompile()

    def adapt(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *inputs: function(*(inputs[index] for index in kept))

    return frozen, tuple(region.inputs[index] for index in kept), adapt


@contextmanager
def _recorded_code() -> Iterator[list[str]]:
    """Collect digests of the code modules that Inductor loads, whether it made them now or earlier."""
    digests: list[str] = []
    load = PyCodeCache.load_by_key_path

    def recorded(key: str, path: str, *arguments: Any, **keywords: Any) -> Any:
        source = _ADDRESS.sub("", Path(path).read_text(encoding="utf-8"))
        digests.append(hashlib.sha256(source.encode()).hexdigest())
        return load(key, path, *arguments, **keywords)

    with patch.object(PyCodeCache, "load_by_key_path", recorded):
        yield digests
