"""Compiles regions with Inductor: their options, the digests of their code, and which regions share code."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..errors import CompileError, PlanError, described
from ..plan import Options
from ..torch_private import compile_fx, own_tracing
from ..torch_private import config as inductor_config
from . import cpp_wrapper, numerics
from .build_cache import shared_build
from .cuda_graph import CapturedRegion
from .expected_code import ExpectedCode, digest_of
from .generated_code import recorded_code, stable_names
from .numerics import CacheIdentity, kept_casts, kept_copies, kept_operators, kept_order
from .options import check_option, with_defaults
from .processor import processor
from .regions import MarkedGraph, Region, RegionSlot, copied_graph, cut, strip_marks

logger = logging.getLogger(__name__)

MAX_AUTOTUNE = {"max_autotune": True, "coordinate_descent_tuning": True}
"""The settings of ``torch.compile(mode="max-autotune")``, without CUDA graphs, which are an option of a scope."""


@dataclass(frozen=True)
class CompiledRegion:
    function: Callable[..., Any]
    code_digest: str


@dataclass
class RegionCache:
    """Regions compiled in this process, by region and options."""

    compiled: dict[tuple[str, Options], CompiledRegion] = field(default_factory=dict)

    def compile(self, slot: RegionSlot) -> CompiledRegion:
        """Return the compiled region of a slot; slots that share it compile it once.

        Raises:
            CompileError: Inductor rejects it.
        """
        key = identity(slot)
        if key not in self.compiled:
            self.compiled[key] = compile_region(slot)
        return self.compiled[key]


def identity(slot: RegionSlot) -> tuple[str, Options]:
    """Return the key by which slots share code."""
    key = slot.region.key
    if slot.options.get("freezing"):
        # Weights become part of the code, so layers do not share a region.
        pairs = zip(slot.region.inputs, slot.region.parameters)
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
    for slot, region in zip(slots, regions):
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
    return {slot.label: region.code_digest for slot, region in zip(slots, regions)}


def device_type(values: Sequence[Any]) -> str:
    return "cuda" if any(isinstance(value, torch.Tensor) and value.is_cuda for value in values) else "cpu"


def compile_marked(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile a captured graph with marks: the Dynamo backend of programs; see ``compile_scopes``."""
    return compile_scopes(strip_marks(graph_module), example_inputs)


def compile_scopes(marked: MarkedGraph, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile the scopes of a graph, and return the function that runs it.

    Raises:
        CompileError: Inductor rejects a scope.
        PlanError: the plan is strict, and a scope was compiled to other code.
        SpaceError: a scope has an option that Inductor lacks on this device.
    """
    held = marked.held
    example_inputs = (*example_inputs, *held)
    device = device_type(example_inputs)
    if device == "cuda" and torch.backends.cuda.cudnn_sdp_enabled():
        logger.warning(
            "the plan was verified and measured without cuDNN's attention, which is not deterministic; "
            "call torch.backends.cuda.enable_cudnn_sdp(False) before anything is compiled"
        )
    cutting = cut(marked.graph_module, list(marked.spans.values()), example_inputs)
    for slot in cutting.slots:
        for name, value in slot.options.items():
            check_option(device, name, value)
    cache = RegionCache()
    regions = [cache.compile(slot) for slot in cutting.slots]
    compare_code(cutting.slots, regions)
    run = cutting.fill([region.function for region in regions])
    return (lambda *inputs: run(*inputs, *held)) if held else run


def compile_region(slot: RegionSlot) -> CompiledRegion:
    """Compile the region of a slot; see ``RegionCache.compile``."""
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
    built = repr((region_key(slot), rules.uuid(), torch.__version__))  # all that determines the region's code
    try:
        with (
            shared_build(hashlib.sha256(built.encode()).hexdigest()[:32]),
            torch.no_grad(),
            own_tracing(),
            inductor_config.patch(settings),
            kept_operators(keep_matmuls, keep_reductions),
            kept_casts(bool(chosen["emulate_precision_casts"])),
            kept_copies(bool(region.written)),
            kept_order(),
            cpp_wrapper.quick_wrapper(device_type(inputs)) if chosen["cpp_wrapper"] else nullcontext(),
            stable_names(),
            recorded_code() as code,
        ):
            compiled: Any = compile_fx(graph_module, list(inputs), ignore_shape_env=True)
    except MemoryError:
        raise
    except Exception as failure:
        raise CompileError.of_scope(slot.label, described(failure)) from failure
    function: Callable[..., Any] = call(compiled) if call else compiled
    if chosen["cuda_graph"]:
        function = CapturedRegion(function, region.written, region.outlasting)
    return CompiledRegion(function, digest_of(code))


def _frozen(
    region: Region,
) -> tuple[fx.GraphModule, tuple[Any, ...], Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Turn the region's weights into attributes of its graph, as freezing requires."""
    graph, returned = copied_graph(region.graph_module)
    graph.output(returned)
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
    return (
        frozen,
        tuple(region.inputs[index] for index in others),
        lambda function: lambda *inputs: function(*(inputs[index] for index in others)),
    )
