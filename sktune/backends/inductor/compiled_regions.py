"""Compiles regions with Inductor: their options, the digests of their code, and which regions share code."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from sktune.backends.base import CompileError, OnScope, ignore
from sktune.backends.inductor import cpp_wrapper, numerics
from sktune.backends.inductor.build_cache import shared_build
from sktune.backends.inductor.cuda_graph import CapturedRegion
from sktune.backends.inductor.exactness import bit_changing_operators
from sktune.backends.inductor.generated_code import recorded_code, stable_names
from sktune.backends.inductor.numerics import CacheIdentity, kept_casts, kept_copies, kept_operators
from sktune.backends.inductor.options import with_defaults
from sktune.backends.inductor.parallel_compile import compile_ahead
from sktune.backends.inductor.processor import processor
from sktune.backends.inductor.regions import Region, RegionSlot
from sktune.core.delivery import ExpectedCode, digest_of
from sktune.core.errors import PlanError, described
from sktune.core.plan import Options

logger = logging.getLogger(__name__)

MAX_AUTOTUNE = {"max_autotune": True, "coordinate_descent_tuning": True}
"""The settings of ``torch.compile(mode="max-autotune")``, without CUDA graphs, which are an option of a scope."""


@dataclass(frozen=True, slots=True)
class CompiledRegion:
    function: Callable[..., Any]
    code_digest: str


@dataclass
class RegionCache:
    """Regions compiled in this process, by region and options."""

    compiled: dict[tuple[str, Options], CompiledRegion] = field(default_factory=dict)
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
            compile_ahead({slot.label: partial(_compile_region, slot) for slot in single_files}, on_scope)
        for key, slot in missing.items():
            on_scope(slot.label)
            self.compiled[key] = _compile_region(slot)
        self.has_built_wrapper |= bool(single_files)  # from now on, helpers find the headers and shims already built
        return [self.compiled[identity(slot)] for slot in slots]

    def changes_bits(self, slot: RegionSlot) -> tuple[str, ...]:
        """Return the operators of the slot's region that may change bits; see ``bit_changing_operators``."""
        key = identity(slot)
        if key not in self.doubts:
            region, options = slot.region, with_defaults(slot.options)
            device = device_type(region.bound)
            self.doubts[key] = bit_changing_operators(region.kernels, region.bound, options, device)
        return self.doubts[key]


def identity(slot: RegionSlot) -> tuple[str, Options]:
    """Return the key by which slots share code."""
    key = slot.region.key
    if slot.options.get("freezing"):
        # Weights become part of the code, so layers do not share a region.
        pairs = zip(slot.region.inputs, slot.region.parameters, strict=True)
        key += repr([value.data_ptr() for value, is_weight in pairs if is_weight])
    return key, tuple(sorted(slot.options.items()))


def region_key(slot: RegionSlot) -> str:
    """Return the identity of a region and its options, the same in every process; one for each scope with freezing."""
    key, options = slot.region.key, tuple(sorted(slot.options.items()))
    frozen = slot.label if slot.options.get("freezing") else ""  # weights are part of the code
    return hashlib.sha256(repr((key, options, frozen)).encode()).hexdigest()[:32]


def compare_code(slots: Sequence[RegionSlot], regions: Sequence[CompiledRegion]) -> None:
    """Warn if the code of a scope differs from the code that was verified with its plan.

    Raises:
        PlanError: the same, if the plan is strict.
    """
    differing: dict[tuple[ExpectedCode, str], list[str]] = {}
    for slot, region in zip(slots, regions, strict=True):
        if slot.code and slot.code.digest != region.code_digest:
            differing.setdefault((slot.code, region.code_digest), []).append(slot.label)
    for (expected, digest), labels in differing.items():
        more = f" (and {len(labels) - 1} more)" if len(labels) > 1 else ""
        text = f"scope {labels[0]}{more}: compiled to code {digest[:16]}, but {expected.digest[:16]} was verified"
        if expected.is_strict:
            raise PlanError(f"{text}; search again on this machine")
        logger.warning("%s; run `sktune recheck` to verify the plan with this code", text)


def code_digests(slots: Sequence[RegionSlot], regions: Sequence[CompiledRegion]) -> dict[str, str]:
    """Return the digest of each scope's code, by label."""
    return {slot.label: region.code_digest for slot, region in zip(slots, regions, strict=True)}


def device_type(values: Sequence[Any]) -> str:
    return "cuda" if any(isinstance(value, torch.Tensor) and value.is_cuda for value in values) else "cpu"


def _compile_region(slot: RegionSlot) -> CompiledRegion:
    region, chosen = slot.region, with_defaults(slot.options)
    keep_matmuls, keep_reductions = chosen["matmul"] == "aten", chosen["reductions"] == "aten"
    graph_module, inputs, call = _frozen(region) if chosen["freezing"] else (region.graph_module, region.inputs, None)
    rules = CacheIdentity(
        f"matmuls={keep_matmuls}-reductions={keep_reductions}-{cpp_wrapper.identity()}"
        f"-threads={torch.get_num_threads()}-{processor()}"
    )
    settings = {
        **MAX_AUTOTUNE,
        **cpp_wrapper.SETTINGS,
        **numerics.settings(keep_matmuls, keep_reductions),
        "emulate_precision_casts": chosen["emulate_precision_casts"],
        "cpp_wrapper": chosen["cpp_wrapper"],
        "freezing": chosen["freezing"],
        "post_grad_custom_post_pass": rules,
    }
    try:
        with (
            shared_build(_lock_name(slot, rules)),
            torch.no_grad(),
            tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))),
            inductor_config.patch(settings),
            kept_operators(keep_matmuls, keep_reductions),
            kept_casts(bool(chosen["emulate_precision_casts"])),
            kept_copies(bool(region.written)),
            cpp_wrapper.quick_wrapper(device_type(inputs)) if chosen["cpp_wrapper"] else nullcontext(),
            stable_names(),
            recorded_code() as code,
        ):
            compiled: Any = compile_fx(graph_module, list(inputs), ignore_shape_env=True)
    except MemoryError:
        raise
    except Exception as failure:
        raise CompileError(f"scope {slot.label}: {described(failure)}", blamed=slot.label) from failure
    function: Callable[..., Any] = call(compiled) if call else compiled
    if chosen["cuda_graph"]:
        function = CapturedRegion(function, region.written, region.outlasting)
    return CompiledRegion(function, digest_of(code))


def _lock_name(slot: RegionSlot, rules: CacheIdentity) -> str:
    """Return a digest of all that determines the region's code."""
    return hashlib.sha256(repr((region_key(slot), rules.uuid(), torch.__version__)).encode()).hexdigest()[:32]


def _frozen(
    region: Region,
) -> tuple[fx.GraphModule, tuple[Any, ...], Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Turn the region's weights into attributes of its graph, as freezing requires."""
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(region.graph_module.graph, values)
    output = next(node for node in region.graph_module.graph.nodes if node.op == "output")
    graph.output(fx.node.map_arg(output.args[0], values.__getitem__))
    frozen = fx.GraphModule(region.graph_module, graph)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    others = [index for index, is_weight in enumerate(region.parameters) if not is_weight]
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
        return lambda *inputs: function(*(inputs[index] for index in others))

    return frozen, tuple(region.inputs[index] for index in others), adapt
