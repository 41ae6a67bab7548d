"""Profiles for tests in the profilers' formats, with their names and columns and made-up times."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# As torch_npu writes it with Level1 and PipeUtilization; older releases say "Block Dim".
KERNEL_DETAILS = (
    "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),"
    "Wait Time(us),Block Num,Mix Block Num,HF32 Eligible,Input Shapes,Input Data Types,Input Formats,Output Shapes,"
    "Output Data Types,Output Formats,Context ID,aicore_time(us),aic_total_cycles,aic_mac_time(us),aic_mac_ratio,"
    "aic_scalar_time(us),aic_scalar_ratio,aic_mte1_time(us),aic_mte1_ratio,aic_mte2_time(us),aic_mte2_ratio,"
    "aic_fixpipe_time(us),aic_fixpipe_ratio,aic_icache_miss_rate,aiv_time(us),aiv_total_cycles,aiv_vec_time(us),"
    "aiv_vec_ratio,aiv_scalar_time(us),aiv_scalar_ratio,aiv_mte2_time(us),aiv_mte2_ratio,aiv_mte3_time(us),"
    "aiv_mte3_ratio,aiv_icache_miss_rate,cube_utilization(%)"
)
EPOCH_US = 1723545784535521


@dataclass(frozen=True)
class Kernel:
    """A kernel of a written profile; times in whole microseconds."""

    type: str
    start: int
    duration: int = 8
    core: str = "AI_VECTOR_CORE"
    stream: int = 2
    step: int | None = 0
    device: int = 0
    name: str = ""
    ratios: tuple[tuple[str, float], ...] = ()

    @property
    def is_communication(self) -> bool:
        return self.core == "HCCL"

    @property
    def shown(self) -> str:
        return self.name or f"model/{self.type}_{self.start}"


ATTENTION = [
    ("AddRmsNorm", "AI_VECTOR_CORE"), ("QuantBatchMatmulV3", "AI_CORE"), ("RmsNorm", "AI_VECTOR_CORE"),
    ("QuantBatchMatmulV3", "AI_CORE"), ("TransposeBatchMatMul", "AI_CORE"), ("KvRmsNormRopeCache", "AI_VECTOR_CORE"),
    ("InterleaveRope", "AI_VECTOR_CORE"), ("FusedInferAttentionScore", "MIX_AIC"), ("TransposeBatchMatMul", "AI_CORE"),
    ("QuantBatchMatmulV3", "AI_CORE"), ("hcom_allReduce_", "HCCL"), ("AddRmsNorm", "AI_VECTOR_CORE"),
]  # fmt: skip
DENSE = [("QuantBatchMatmulV3", "AI_CORE"), ("DequantSwigluQuant", "AI_VECTOR_CORE"), ("QuantBatchMatmulV3", "AI_CORE"),
         ("hcom_allReduce_", "HCCL")]  # fmt: skip
MOE = [
    ("MatMulV2", "AI_CORE"), ("MoeGatingTopK", "AI_VECTOR_CORE"), ("MoeInitRoutingV2", "AI_VECTOR_CORE"),
    ("GroupedMatmul", "MIX_AIC"), ("DequantSwigluQuant", "AI_VECTOR_CORE"), ("GroupedMatmul", "MIX_AIC"),
    ("MoeFinalizeRoutingV2", "AI_VECTOR_CORE"), ("hcom_allReduce_", "HCCL"),
]  # fmt: skip


def decode_step(dense: int, moe: int) -> list[tuple[str, str]]:
    """Return type and core of the kernels of a DeepSeek-V3 decode step; the first norm has no residual."""
    layers = [*[ATTENTION + DENSE] * dense, *[ATTENTION + MOE] * moe]
    inside = [kernel for layer in layers for kernel in layer]
    inside[0] = ("RmsNorm", "AI_VECTOR_CORE")
    return [("GatherV2", "AI_VECTOR_CORE"), *inside, ("AddRmsNorm", "AI_VECTOR_CORE"), ("MatMulV2", "AI_CORE"),
            ("ArgMaxV2", "AI_VECTOR_CORE")]  # fmt: skip


def deepseek(
    steps: int = 3, dense: int = 3, moe: int = 58, duration: int = 8, gap: int = 2, pause: int = 400
) -> list[Kernel]:
    """Return the kernels of ``steps`` consecutive decode steps on one stream."""
    kernels, now = [], 0
    for step in range(steps):
        for kind, core in decode_step(dense, moe):
            kernels.append(Kernel(kind, now, duration, core, step=step + 3))
            now += duration + gap
        now += pause
    return kernels


def kernel_details(kernels: Sequence[Kernel], old: bool = False) -> str:
    """Return a ``kernel_details.csv``, with old or new column names; without steps if the kernels have none."""
    header = KERNEL_DETAILS.replace("Block Num", "Block Dim") if old else KERNEL_DETAILS
    names = header.split(",")
    lines = []
    for kernel in kernels:
        known = {
            "Step Id": kernel.step, "Device_id": kernel.device, "Stream ID": kernel.stream, "Name": kernel.shown,
            "Type": kernel.type, "OP State": "static", "Accelerator Core": kernel.core,
            "Start Time(us)": f"{EPOCH_US + kernel.start}.354\t", "Duration(us)": f"{kernel.duration}.0",
            "Wait Time(us)": "2.0", "Block Num": 24, "Block Dim": 24, "Input Shapes": '"""2,4096;4096,4096"""',
            **dict(kernel.ratios),
        }  # fmt: skip
        lines.append(",".join(str(known.get(name, "N/A")) for name in names))
    text = "\n".join([header, *lines, ""])
    without = [line.partition(",")[2] for line in text.splitlines()]
    return text if all(kernel.step is not None for kernel in kernels) else "\n".join([*without, ""])


def op_summary(kernels: Sequence[Kernel]) -> str:
    """Return msprof's ``op_summary_*.csv``: other names, no steps."""
    names = {"Name": "Op Name", "Type": "OP Type", "Accelerator Core": "Task Type"}
    names |= {f"{time} Time(us)": f"Task {time} Time(us)" for time in ("Start", "Wait")}
    names["Duration(us)"] = "Task Duration(us)"
    header, _, rows = kernel_details([replace(kernel, step=None) for kernel in kernels], old=True).partition("\n")
    return ",".join(names.get(name, name) for name in header.split(",")) + "\n" + rows


def npu_trace(kernels: Sequence[Kernel]) -> str:
    """Return a ``trace_view.json``: a list, times as text, collectives in a separate process."""

    def process(pid: int, name: str) -> dict[str, Any]:
        return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}

    events = [process(2, "Ascend Hardware"), process(3, "Communication"), process(4, "Overlap Analysis")]
    for kernel in kernels:
        times = {"ph": "X", "ts": f"{EPOCH_US + kernel.start}.354", "dur": float(kernel.duration)}
        if kernel.is_communication:
            name = f"{kernel.type}_661_{kernel.start}_1"
            events.append({**times, "name": name, "pid": 3, "tid": 0, "args": {"connection_id": kernel.start}})
            wait = {"Task Type": "NOTIFY_WAIT_SQE", "Physic Stream Id": 9}
            events.append({**times, "name": "Notify_Wait", "pid": 2, "tid": 9, "args": wait})
        else:
            args = {"Task Type": kernel.core, "Physic Stream Id": kernel.stream, "Task Id": 1}
            events.append({**times, "name": kernel.shown, "pid": 2, "tid": kernel.stream, "args": args})
            events.append({**times, "name": "Computing", "pid": 4, "tid": 1, "args": {}})
    steps = sorted({kernel.step for kernel in kernels if kernel.step is not None})
    for step in steps:
        inside = [kernel for kernel in kernels if kernel.step == step]
        begin, end = min(k.start for k in inside), max(k.start + k.duration for k in inside)
        mark = {"ph": "X", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1, "ts": f"{EPOCH_US + begin}.000"}
        events.append({**mark, "dur": end - begin + 1, "args": {}})
    return json.dumps(events)


def gpu_trace(kernels: Sequence[Kernel], lag: int = 0) -> str:
    """Return a torch.profiler trace in which every kernel starts ``lag`` us after the host launched it."""
    events: list[dict[str, Any]] = []
    for number, kernel in enumerate(kernels):
        name = f"void at::native::{kernel.type}_kernel<float, at::Functor<float>>(float*, int)"
        if kernel.is_communication:
            name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"
        args = {"device": kernel.device, "stream": kernel.stream, "correlation": number}
        times = {"ts": kernel.start + 0.25, "dur": float(kernel.duration), "ph": "X"}
        events.append(
            {**times, "cat": "kernel", "name": name, "pid": kernel.device, "tid": kernel.stream, "args": args}
        )
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7, "dur": 1.5}
        events.append({**launch, "ts": kernel.start - lag + 0.125, "args": {"correlation": number}})
        events.append({**launch, "cat": "cpu_op", "name": "aten::op", "ts": kernel.start - lag + 0.125, "args": {}})
    for step in sorted({kernel.step for kernel in kernels if kernel.step is not None}):
        launches = [kernel.start - lag for kernel in kernels if kernel.step == step]
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 7, "tid": 7}
        events.append({**mark, "ts": float(min(launches)), "dur": float(max(launches) - min(launches) + 1)})
    events.append({"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}})
    return json.dumps({"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": events, "traceName": "t"})


WRITERS: dict[str, Callable[[Sequence[Kernel]], str]] = {
    "kernel_details.csv": kernel_details,
    "kernel_details_old.csv": lambda kernels: kernel_details(kernels, old=True),
    "op_summary_20261121.csv": op_summary,
    "trace_view.json": npu_trace,
    "trace.json": gpu_trace,
}


def write(path: Path, text: str) -> Path:
    """Write ``text`` and return ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@dataclass(frozen=True)
class Truth:
    """Times of a step in microseconds, counted one microsecond at a time."""

    span: int
    compute: int
    communication: int
    gap: int


def truth(kernels: Sequence[Kernel]) -> Truth:
    """Return the figures of one step."""
    compute: set[int] = set()
    communication: set[int] = set()
    for kernel in kernels:
        (communication if kernel.is_communication else compute).update(
            range(kernel.start, kernel.start + kernel.duration)
        )
    busy = compute | communication
    span = max(busy) + 1 - min(busy)
    return Truth(span, len(compute), len(communication), span - len(busy))
