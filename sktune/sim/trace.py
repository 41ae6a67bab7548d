"""Traces one eager decode step into operators, on real tensors or on the meta device, where nothing is computed.

Each aten operator that a device would run becomes one task, with GE's name. Views are not tasks, and operators without
tensor inputs are folded, as GE folds constants.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from sktune.core.errors import TargetError, described
from sktune.core.layout import Layout
from sktune.program.sktune_program.torch_private import TorchDispatchMode
from sktune.sim.constants import Constants
from sktune.sim.operators import DYNAMIC_TYPES, DType, Operator, core_of, cores_filled, fusable
from sktune.targets.base import Snapshot, Target, decode_inputs

ATTENTION = "FusedInferAttentionScore"
GROUPED_MATMUL = "GroupedMatmul"

_TYPES: Mapping[str, str] = {
    "mm": "MatMulV2",
    "addmm": "MatMulV2",
    "bmm": "BatchMatMulV2",
    "baddbmm": "BatchMatMulV2",
    "_grouped_mm": GROUPED_MATMUL,
    "_to_copy": "Cast",
    "clone": "TensorMove",
    "copy": "TensorMove",
    "fill": "Fill",
    "zero": "ZerosLike",
    "zeros_like": "ZerosLike",
    "ones_like": "OnesLike",
    "add": "Add",
    "sub": "Sub",
    "rsub": "Sub",
    "mul": "Mul",
    "div": "RealDiv",
    "pow": "Pow",
    "mean": "ReduceMean",
    "sum": "ReduceSum",
    "amax": "ReduceMax",
    "silu": "Swish",
    "cat": "ConcatD",
    "_softmax": "SoftmaxV2",
    "_safe_softmax": "SoftmaxV2",
    "embedding": "GatherV2",
    "gather": "GatherElements",
    "scatter": "ScatterElements",
    "index_copy": "ScatterUpdate",
    "index_put": "IndexPutV2",
    "topk": "TopKV2",
    "histc": "Histogram",
    "nonzero": "NonZero",
    "_unique2": "Unique",
    "where": "SelectV2",
    "bitwise_not": "LogicalNot",
}
_CUBE = frozenset({"MatMulV2", "BatchMatMulV2", GROUPED_MATMUL})
_GATHERS = frozenset({"GatherV2", "GatherElements", "Index", "IndexSelect"})
_WRITES = frozenset({"TensorMove", "ScatterUpdate", "ScatterElements", "IndexPutV2"})
_NO_TASK = frozenset({"_unsafe_view", "detach", "lift_fresh", "alias", "empty", "empty_like", "new_empty"})


def trace_operators(target: Target, layout: Layout, constants: Constants) -> tuple[Operator, ...]:
    """Run one decode step eagerly and return its device tasks in execution order; the state is restored.

    An operator's ``unit`` is the unit of ``layout`` whose forward ran it. Operators between two units have none, and
    belong to a scope that includes both units. All run on one stream.

    Raises:
        TargetError: the decode step fails.
    """
    inputs = decode_inputs(target, 0, 1)[0]
    snapshot = Snapshot(target.state)
    recorder = _Recorder(constants)
    try:
        with torch.no_grad(), _located(target.module, layout, recorder), recorder, _Composites(recorder):
            target.decode_step(*inputs)
    except Exception as failure:
        raise TargetError(f"the decode step cannot be traced: {described(failure)}; fix the step") from failure
    finally:
        snapshot.restore()
    return tuple(recorder.operators)


@contextmanager
def _located(module: nn.Module, layout: Layout, recorder: "_Recorder") -> Iterator[None]:
    """Update the recorder's current module and unit while the step runs."""
    units = {unit.name for unit in layout.units}
    with ExitStack() as stack:
        for name, child in module.named_modules():

            def begin(_module: nn.Module, _arguments: Any, name: str = name) -> None:
                recorder.modules.append(name)
                if name in units:
                    recorder.unit = name

            def end(_module: nn.Module, _arguments: Any, _output: Any, name: str = name) -> None:
                recorder.modules.pop()
                if name in units:
                    recorder.unit = None

            for handle in (child.register_forward_pre_hook(begin), child.register_forward_hook(end)):
                stack.callback(handle.remove)
        yield


class _Recorder(TorchDispatchMode):
    """Collects an operator for every aten call that a device would run as a task."""

    def __init__(self, constants: Constants) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[Operator] = []
        self.modules: list[str] = []
        self.unit: str | None = None
        self.is_paused = False
        self._constants = constants

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if not self.is_paused and not func.is_view:
            self._record(func.overloadpacket.__name__, (*args, *(kwargs or {}).values()), output)
        return output

    def _record(self, name: str, args: Sequence[Any], output: Any) -> None:
        plain = name.rstrip("_")
        inputs = _tensors(args)
        if plain in _NO_TASK or not inputs:
            return
        kind = _TYPES.get(plain) or "".join(part.capitalize() for part in plain.split("_"))
        outputs = _tensors([output])
        if kind == "TensorMove" and len(inputs) > 1 and inputs[0].dtype != inputs[1].dtype:
            kind = "Cast"
        if kind == "Cast" and inputs[0].dtype == outputs[0].dtype and inputs[0].device != outputs[0].device:
            return
        if name.endswith("_") and kind in _WRITES:
            # Only the written part counts, not the whole cache.
            outputs = inputs[-1:]
            moved = 2.0 * _bytes(inputs[-1])
            inputs = inputs[1:]
        elif kind in _GATHERS:
            moved = 2.0 * sum(map(_bytes, outputs)) + sum(map(_bytes, inputs[1:]))
        else:
            moved = float(sum(map(_bytes, inputs)) + sum(map(_bytes, outputs)))
        if kind == GROUPED_MATMUL:
            moved -= _bytes(inputs[1]) * (1 - hit_share(inputs[0].shape[0], inputs[1].shape[0]))
        self.add(kind, _flops(kind, inputs, outputs), moved, inputs, outputs)

    def add(
        self, kind: str, flops: float, moved: float, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """Append one task in the current module and unit."""
        constants = self._constants
        core = core_of(kind, constants)
        result = (list(outputs) or list(inputs))[0]
        largest = max(tensor.numel() * tensor.element_size() for tensor in (*inputs, result))
        module = self.modules[-1] if self.modules else ""
        position = len(self.operators)
        self.operators.append(
            Operator(
                name=f"{module}/{kind}_{position}".lstrip("/"),
                type=kind,
                core=core,
                flops=flops,
                bytes_moved=moved,
                dtype=_dtype(inputs),
                unit=self.unit,
                position=position,
                blocks=cores_filled(core, result.shape, largest, constants),
                can_fuse=fusable(kind, core, constants),
                calls_sync_all=kind in constants.sync_all_types.value,
                is_dynamic=kind in DYNAMIC_TYPES,
                module=module,
                shapes=tuple(tuple(tensor.shape) for tensor in inputs),
            )
        )


class _Composites(TorchFunctionMode):
    """Records fused attention as one task, as on the device, however it is decomposed on this machine."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self._recorder.is_paused = True
        try:
            output = func(*args, **(kwargs or {}))
        finally:
            self._recorder.is_paused = False
        inputs = _tensors((*args, *(kwargs or {}).values()))
        query, key, value = inputs[:3]
        rows = prod(query.shape[:-1])
        flops = 2.0 * rows * key.shape[-2] * (key.shape[-1] + value.shape[-1])
        self._recorder.add(ATTENTION, flops, float(sum(map(_bytes, [*inputs, output]))), inputs, [output])
        return output


def hit_share(rows: int, experts: int) -> float:
    """Return the expected share of ``experts`` that ``rows`` tokens reach if they are routed uniformly."""
    return float(1 - (1 - 1 / experts) ** rows)


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += _tensors(value)
    return tensors


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of memory behind a tensor: expanded dimensions count once."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return prod(sizes) * tensor.element_size()


def _flops(kind: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> float:
    if kind in _CUBE:
        *_, columns = outputs[0].shape
        left = inputs[-2] if kind != GROUPED_MATMUL else inputs[0]
        return 2.0 * prod(left.shape) * columns
    return float(max([tensor.numel() for tensor in (*inputs, *outputs)], default=0))


def _dtype(inputs: Sequence[torch.Tensor]) -> DType:
    if any(tensor.dtype == torch.int8 for tensor in inputs):
        return "int8"
    widest = max((tensor.element_size() for tensor in inputs if tensor.is_floating_point()), default=4)
    return "fp32" if widest >= 4 else "bf16"
