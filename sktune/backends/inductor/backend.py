"""The inductor backend (CPU, CUDA): each scope is a region compiled by Inductor, the rest runs kernel by kernel.

The decode step is captured once, with a mark around every unit. A plan only determines where the captured graph is cut,
so no trial traces the model again. Inductor's caches, including its choices by timing, are in the folder
``TORCHINDUCTOR_CACHE_DIR``: with the same folder, the same plan is the same code in every process.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx

from sktune.backends.base import Compiled, CompileError, OnScope, RegionBudget, Step, ignore
from sktune.backends.inductor import artifacts
from sktune.backends.inductor.exactness import bit_changing_operators
from sktune.backends.inductor.parallel_compile import compile_ahead
from sktune.backends.inductor.pieces import Pieces
from sktune.backends.inductor.region_check import RegionChecks, Round
from sktune.core.delivery import Delivery, digest_of
from sktune.core.errors import BackendError, SktuneError, TargetError, described
from sktune.core.layout import CapturedWork, Layout
from sktune.core.outcome import ScopeTime
from sktune.core.plan import Options, Plan
from sktune.core.scope_times import Part, scope_times
from sktune.core.verification import RegionCheck
from sktune.measure.devices import Cpu, Cuda
from sktune.program.sktune_program.calls import shapes_of_calls
from sktune.program.sktune_program.inductor.border import memory_use
from sktune.program.sktune_program.inductor.compiled_regions import (
    CompiledRegion,
    RegionCache,
    code_digests,
    compile_region,
    compile_scopes,
    device_type,
    identity,
    region_key,
)
from sktune.program.sktune_program.inductor.options import with_defaults
from sktune.program.sktune_program.inductor.regions import (
    Cutting,
    GraphSpan,
    MarkedGraph,
    RegionSlot,
    cut,
    operators,
    strip_marks,
)
from sktune.program.sktune_program.inductor.versions import problem_with
from sktune.program.sktune_program.torch_private import (
    BackendCompilerFailed,
    compile_fx,
    mark_static_address,
    own_tracing,
    source_of,
)
from sktune.targets.base import Inputs, Snapshot, Target
from sktune.targets.by_shape import scopes_of_shape
from sktune.targets.marks import attach_each
from sktune.targets.state import HeldTensors, complete_state, reachable, readable, replaced_error
from sktune.targets.strict import check_graph

logger = logging.getLogger(__name__)

_ADVICE = "Consider annotating your code using torch._check*(). "
"""Before the reason, in Dynamo's messages about values that a graph cannot know."""


@dataclass
class SearchedRegions(RegionCache):
    """The regions of a search, which compiles many plans: on all cores, and with what is known of their bits."""

    has_built_wrapper: bool = False
    doubts: dict[tuple[str, Options], tuple[str, ...]] = field(default_factory=dict)

    def compile_all(self, slots: Sequence[RegionSlot], on_scope: OnScope = ignore) -> list[CompiledRegion]:
        """Return the compiled region of each slot; compile missing ones on all cores."""
        missing: dict[tuple[str, Options], RegionSlot] = {}
        for slot in slots:
            if identity(slot) not in self.compiled:
                missing.setdefault(identity(slot), slot)  # of scopes that share a region, the first
        # Other regions consist of many kernels, which Inductor already builds on all cores.
        single_files = [slot for slot in missing.values() if slot.options.get("cpp_wrapper")]
        if self.has_built_wrapper:
            compile_ahead({slot.label: partial(compile_region, slot) for slot in single_files}, on_scope)
        for slot in missing.values():
            on_scope(slot.label)
            self.compile(slot)
        self.has_built_wrapper |= bool(single_files)  # from now on, helpers find the headers and shims already built
        return [self.compile(slot) for slot in slots]

    def changes_bits(self, slot: RegionSlot) -> tuple[str, ...]:
        """Return the operators of the slot's region that may change bits; see ``bit_changing_operators``."""
        key = identity(slot)
        if key not in self.doubts:
            region, options = slot.region, with_defaults(slot.options)
            device = device_type(region.bound)
            self.doubts[key] = bit_changing_operators(region.kernels, region.bound, options, device)
        return self.doubts[key]


class InductorBackend:
    """Compiles plans of one target; see ``sktune.backends.base.Backend``.

    Raises:
        TargetError: the decode step cannot be captured as one graph.
        BackendError: nobody knows which bits this version's Inductor keeps.
    """

    notes = ""

    def __init__(self, target: Target, layout: Layout, inputs: Inputs) -> None:
        if problem := problem_with(torch.__version__):
            raise BackendError(problem)
        self._target, self._layout, self._inputs = target, layout, inputs
        self._snapshot = Snapshot(target.state)
        for tensor in target.state.values():
            # A CUDA graph reads and writes the state in place; this mark distinguishes it from activations.
            mark_static_address(tensor)
        self._regions, self._region_checks = SearchedRegions(), RegionChecks()
        self._marks = attach_each(target.module, tuple(unit.name for unit in layout.units))
        self._run: Callable[..., Any] | None = None
        self._example_inputs: Sequence[Any] = ()
        self._device: Cpu | Cuda = Cpu()
        self._marked: MarkedGraph | None = None
        self._written: dict[str, torch.Tensor] = {}
        at_first = HeldTensors(target)
        self._captured = self._capture()
        self._snapshot = Snapshot(complete_state(target, self._written))
        self._check_replaced(at_first)

    def written(self) -> Mapping[str, torch.Tensor]:
        """See ``Backend.written``."""
        return self._written

    def compile(self, plan: Plan, on_scope: OnScope = ignore) -> Compiled:
        """See ``Backend.compile``."""
        cutting = self._cut(plan)
        before = set(self._regions.compiled)
        regions = self._regions.compile_all(cutting.slots, on_scope)
        used = {identity(slot) for slot in cutting.slots}
        run = cutting.fill([region.function for region in regions])
        step = self._step(run)
        code = code_digests(cutting.slots, regions)
        digest = digest_of(set(code.values()))
        if not cutting.slots:
            self._try(step)
            return Compiled(step, code_digest=digest, inside=partial(self._inside, run))
        pieces = Pieces(cutting)
        self._try(self._step(pieces.first_run(on_scope, self._device)))
        keys = {slot.label: region_key(slot) for slot in cutting.slots}
        exact = {region_key(slot): not self._regions.changes_bits(slot) for slot in cutting.slots}
        return Compiled(
            step, len(used), len(used & before), digest,
            observe=partial(self._observe, plan, pieces), blame=partial(pieces.blame, self._step),
            code=code, deliver=partial(self._deliver, plan, code),
            region_labels={key: label for label, key in reversed(keys.items())},
            check_regions=partial(self._check_regions, pieces, keys, exact), is_exact=all(exact.values()),
        )  # fmt: skip

    def with_operators(self, layout: Layout) -> Layout:
        """See ``Backend.with_operators``: their number and size, as Inductor chooses the kernels."""
        assert self._marked is not None
        return captured_work(self._marked, layout)

    def exactness(self, plan: Plan) -> dict[str, tuple[str, ...]]:
        """Return, by label, the operators of each scope that may change bits; see ``bit_changing_operators``."""
        return {slot.label: self._regions.changes_bits(slot) for slot in self._cut(plan).slots}

    def check_machine(self) -> None:
        """See ``Backend.check_machine``: the graph adds a number that no cache has seen."""
        number = time.time()
        graph_module = fx.symbolic_trace(lambda values: values + number)
        values = torch.zeros(8, device="cuda" if isinstance(self._device, Cuda) else "cpu")
        with torch.no_grad(), own_tracing():
            compile_fx(graph_module, [values], ignore_shape_env=True)

    def references(self) -> dict[str, Callable[[], Compiled]]:
        """See ``Backend.references``: the uncompiled model, and the whole step in max-autotune."""
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

    def _cut(self, plan: Plan) -> Cutting:
        assert self._marked is not None
        spans, chosen = self._marked.spans, []
        for scope in plan.scopes:
            for name in (scope.first, scope.last):
                if name not in spans:
                    raise CompileError(
                        f"unit {name!r} left no mark in the captured graph; it does not run in this step"
                    )
            chosen.append(GraphSpan(scope.label, spans[scope.first].start, spans[scope.last].end, scope.options))
        return cut(self._marked.graph_module, chosen, self._example_inputs)

    def _deliver(self, plan: Plan, code: Mapping[str, str], folder: Path) -> Delivery:
        """Compile ``plan`` again, to record what it uses from Inductor's caches; see ``Deliver``."""
        with artifacts.recorded() as record:
            cutting = self._cut(plan)
            regions = SearchedRegions().compile_all(cutting.slots)
            self._try(self._step(cutting.fill([region.function for region in regions])))  # Triton tunes as it runs
        for label, digest in code_digests(cutting.slots, regions).items():
            if digest != code[label]:
                raise BackendError(
                    f"scope {label}: compiling it again gave different code; do not clear Inductor's caches"
                )
        self._marks.suspend()
        units = {scope.label: scope.first for scope in plan.scopes}
        with shapes_of_calls(self._target.module, units) as calls:
            self._try(Step(self._target.decode_step))
        try:
            return artifacts.save(record, folder, code, calls)
        except OSError as failure:
            raise BackendError(
                f"{folder} cannot be written ({failure.strerror}); fix that and continue the search"
            ) from failure

    def _capture(self) -> Callable[..., Any]:
        def receive(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            if self._marked is not None:
                raise CompileError(
                    "the decode step had to be captured again; keep shapes, strides and types of inputs and state fixed"
                )
            self._marked = strip_marks(graph_module)
            held = self._marked.held
            self._example_inputs = (*example_inputs, *held)
            if device_type(self._example_inputs) == "cuda":
                self._device, self.notes = Cuda(), "without cuDNN's attention, which is not deterministic"
            self._run = self._marked.graph_module.forward
            self._written = self._written_tensors(self._marked.graph_module, self._example_inputs)
            complete = Snapshot(complete_state(self._target, self._written))

            def dispatch(*arguments: Any) -> Any:
                assert self._run is not None
                return self._run(*arguments, *held)

            self._snapshot = complete  # also restores what the first run writes
            return dispatch

        captured = torch.compile(self._target.decode_step, backend=receive, fullgraph=True, dynamic=False)
        try:
            self._try(Step(captured))
        except SktuneError:
            raise
        except Exception as failure:
            raise capture_failure(failure) from failure
        if self._marked is None:
            raise BackendError("the decode step has no tensor operation to capture; check what the target runs")
        return captured

    def _written_tensors(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Return the tensors that the captured step writes, by name, except for the step's inputs."""
        step_inputs = {id(value) for value in self._inputs}
        try:
            written = memory_use(graph_module, inputs).written
        except Exception:
            logger.warning("cannot find which tensors the step writes; assuming all except weights", exc_info=True)
            written = tuple(index for index, value in enumerate(inputs) if not isinstance(value, torch.nn.Parameter))
        names = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
        known = {id(tensor): name for name, tensor in reachable(self._target).items()}
        values = {known.get(id(inputs[index])) or _source_name(names[index]): inputs[index] for index in written}
        return {
            name: value
            for name, value in values.items()
            if isinstance(value, torch.Tensor) and id(value) not in step_inputs
        }

    def _check_replaced(self, at_first: HeldTensors) -> None:
        """Run the step twice more, and refuse what it leaves elsewhere than in tensors that it has written into.

        Raises:
            TargetError: it replaces a tensor, or would have to be captured again.
        """
        assert self._marked is not None
        graph_module = self._marked.graph_module
        calls: list[tuple[Any, ...]] = []

        def watched(*arguments: Any) -> Any:
            calls.append(arguments)
            return graph_module.forward(*arguments)

        held = HeldTensors(self._target)
        try:
            for _ in range(2):
                self._try(self._step(watched))
        except Exception as failure:
            at_first.check()
            numbers = ", ".join(at_first.changed_numbers()[:3]) or "it"
            raise TargetError(
                f"the decode step cannot be captured once for all steps, as {numbers} changes from step to step: "
                "count in a persistent tensor, and keep shapes, strides and types of inputs and state fixed"
            ) from failure
        held.check()
        step_inputs = {id(value) for value in self._inputs}
        names = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
        for node, before, now in zip(names, *calls, strict=True):
            if isinstance(now, torch.Tensor) and before is not now and id(now) not in step_inputs:
                raise replaced_error(_source_name(node))

    def _step(self, run: Callable[..., Any]) -> Step:
        def step(*inputs: Any) -> Any:
            self._run = run
            return self._captured(*inputs)

        return Step(step, self._marks.resume)

    def _inside(self, run: Callable[..., Any], context: AbstractContextManager[Any]) -> Step:
        def watched(*arguments: Any) -> Any:
            with context:
                return run(*arguments)

        return self._step(watched)

    def _try(self, step: Step) -> None:
        step.prepare()
        try:
            with torch.no_grad():
                step.run(*self._inputs)
        except BaseException:
            with suppress(RuntimeError):  # what has failed says more than that the device does not copy any more
                self._snapshot.restore()
            raise
        self._snapshot.restore()

    def _observe(self, plan: Plan, pieces: Pieces, begin: Callable[[], Inputs]) -> tuple[ScopeTime, ...]:
        scopes = {scope.label: scope for scope in plan.scopes}
        times = pieces.observe(self._step, begin, self._device)
        return scope_times(self._layout, [Part(scopes.get(label), before, after) for label, before, after in times])

    def _check_regions(
        self,
        pieces: Pieces,
        keys: Mapping[str, str],
        exact: Mapping[str, bool],
        steps: Iterable[Inputs],
        budget: RegionBudget,
    ) -> tuple[RegionCheck, ...]:
        # The written tensors were found by the capture, whether the target declares them or not.
        written = {
            tensor.untyped_storage().data_ptr() for tensor in complete_state(self._target, self._written).values()
        }
        regions = Round(self._region_checks, keys, budget, [key for key in exact if exact[key]], written)
        if not regions.is_done:
            with torch.no_grad():
                pieces.check_regions(self._step, steps, regions)
        return regions.results()


def compile_marked(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile a graph with marks: the Dynamo backend ``sktune``.

    ``torch.compile(step, backend="sktune", fullgraph=True, dynamic=False)`` runs the scopes that ``sktune.apply`` has
    attached to a model.
    """
    marked = strip_marks(graph_module)
    check_graph(marked.spans.keys(), marked.calls)
    return compile_scopes(scopes_of_shape(marked), example_inputs)


def captured_work(marked: MarkedGraph, layout: Layout) -> Layout:
    """Return the layout with the captured operators of each unit, and of those that lie between it and the next one."""
    nodes = operators(marked.graph_module)
    spans = [marked.spans[unit.name] for unit in layout.units if unit.name in marked.spans]
    starts = [*(span.start for span in spans[1:]), spans[-1].end] if spans else []
    return layout.with_work(
        {span.label: _work(nodes[span.start : span.end]) for span in spans},
        {span.label: _work(nodes[span.end : start]) for span, start in zip(spans, starts, strict=True)},
    )


def _work(nodes: Sequence[fx.Node]) -> CapturedWork:
    values = [value for node in nodes if isinstance(value := node.meta.get("example_value"), torch.Tensor)]
    # A size that depends on the data counts as nothing.
    sizes = [value.numel() * value.element_size() for value in values if isinstance(value.numel(), int)]
    return CapturedWork(len(nodes), sum(sizes))


def capture_failure(failure: Exception) -> SktuneError:
    """Return the error for a failed capture; what was raised while the graph was received stays as it is."""
    if isinstance(failure, BackendCompilerFailed):
        failure = failure.inner_exception
    if isinstance(failure, SktuneError):
        return failure
    reason = described(failure).replace(_ADVICE, "").rstrip(".")
    return TargetError(
        f"the decode step cannot be captured as one graph: {reason}{_place(failure)}; "
        "remove data-dependent control flow from it"
    )


def _place(failure: Exception) -> str:
    """Return the last line of the model's code that was traced, if Dynamo names one."""
    frames = getattr(failure, "real_stack", None)
    return f", at {Path(frames[-1].filename).name}:{frames[-1].lineno} ({frames[-1].line})" if frames else ""


def _source_name(placeholder: fx.Node) -> str:
    """Return Dynamo's name for the source of a graph's input."""
    name = getattr(source_of(placeholder), "name", "")
    return readable(name() if callable(name) else name) or placeholder.name
