"""Time and memory of `sktune profile` for large files, which are generated here.

    python benchmarks/profile_files.py --megabytes 200

Each file has decode steps of a 61-layer model in the real format, with invented times. Time and memory are those of the
whole command, in a separate process.
"""

import argparse
import csv
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

LAYERS = 61
ATTENTION = (
    ("RmsNorm", "AI_VECTOR_CORE"), ("MatMulV2", "AI_CORE"), ("RmsNorm", "AI_VECTOR_CORE"), ("MatMulV2", "AI_CORE"),
    ("RotaryMul", "AI_VECTOR_CORE"), ("FusedInferAttentionScore", "MIX_AIC"), ("MatMulV2", "AI_CORE"),
    ("hcom_allReduce_", "HCCL"), ("AddRmsNorm", "AI_VECTOR_CORE"),
)  # fmt: skip
DENSE = (("MatMulV2", "AI_CORE"), ("SwiGlu", "AI_VECTOR_CORE"), ("MatMulV2", "AI_CORE"), ("hcom_allReduce_", "HCCL"))
MOE = (
    ("MatMulV2", "AI_CORE"), ("MoeGatingTopK", "AI_VECTOR_CORE"), ("MoeInitRoutingV2", "AI_VECTOR_CORE"),
    ("GroupedMatmul", "MIX_AIC"), ("SwiGlu", "AI_VECTOR_CORE"), ("GroupedMatmul", "MIX_AIC"),
    ("MoeFinalizeRoutingV2", "AI_VECTOR_CORE"), ("hcom_allReduce_", "HCCL"), ("Add", "AI_VECTOR_CORE"),
)  # fmt: skip
PIPES = (
    "aicore_time(us)", "aic_total_cycles", "aic_mac_time(us)", "aic_mac_ratio", "aic_scalar_time(us)",
    "aic_scalar_ratio", "aic_mte1_time(us)", "aic_mte1_ratio", "aic_mte2_time(us)", "aic_mte2_ratio",
    "aic_fixpipe_time(us)", "aic_fixpipe_ratio", "aic_icache_miss_rate", "aiv_time(us)", "aiv_total_cycles",
    "aiv_vec_time(us)", "aiv_vec_ratio", "aiv_scalar_time(us)", "aiv_scalar_ratio", "aiv_mte2_time(us)",
    "aiv_mte2_ratio", "aiv_mte3_time(us)", "aiv_mte3_ratio", "aiv_icache_miss_rate", "cube_utilization(%)",
)  # fmt: skip
HEADER = (
    "Step Id", "Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core",
    "Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Num", "Mix Block Num", "HF32 Eligible", "Input Shapes",
    "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats", "Context ID", *PIPES,
)  # fmt: skip


def kernels() -> Iterator[tuple[int, str, str, str, float]]:
    """Yield step, name, type, core and start in microseconds of endless kernels; each takes 8 us."""
    start_us = 0.0
    for step in range(sys.maxsize):
        row = [("embed", "GatherV2", "AI_VECTOR_CORE")]
        for layer in range(LAYERS):
            row += [(f"model/layers.{layer}", *kernel) for kernel in ATTENTION + (DENSE if layer < 3 else MOE)]
        row += [("norm", "AddRmsNorm", "AI_VECTOR_CORE"), ("head", "MatMulV2", "AI_CORE")]
        for task, (where, kind, core) in enumerate(row):
            yield step, f"{where}/{kind}_{task}", kind, core, start_us
            start_us += 10.0
        start_us += 500.0


def write_kernel_details(path: Path, size: int) -> None:
    """Write at least ``size`` bytes of whole rows."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(HEADER)
        for step, name, kind, core, start_us in kernels():
            shapes = ["2,4096;4096,4096", "BF16;BF16", "ND;ND"]
            row = [
                step,
                0,
                1,
                7,
                2,
                name,
                kind,
                "static",
                core,
                f"{1.7e15 + start_us:.3f}\t",
                "8.0",
                "2.0",
                24,
                48,
                "NO",
            ]
            table.writerow([*row, *shapes, *shapes, "N/A", *(["0.31"] * len(PIPES))])
            if file.tell() > size:
                return


def write_trace(path: Path, size: int) -> None:
    """Write at least ``size`` bytes of a torch.profiler trace, with a CPU operator and a launch for each kernel."""
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "none"}], "traceEvents": [\n')
        last, begun = -1, 0.0
        for number, (step, _, kind, _, start_us) in enumerate(kernels()):
            if step != last:
                if last >= 0:
                    mark = {"name": f"ProfilerStep#{last}", "ts": begun, "dur": start_us - 1.0 - begun}
                    file.write(json.dumps({"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, **mark}) + ",\n")
                    if file.tell() > size:
                        break
                last, begun = step, start_us
            host = {"ph": "X", "pid": 1, "tid": 1, "ts": start_us + 1.0}
            dims = {"External id": number, "Input Dims": [[2, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2}
            file.write(json.dumps({**host, "cat": "cpu_op", "name": f"aten::{kind}", "dur": 6.5, "args": dims}) + ",\n")
            launch = {"correlation": number, "cbid": 211}
            file.write(
                json.dumps({**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 3.1, "args": launch})
            )
            where = {"device": 0, "stream": 7, "correlation": number, "registers per thread": 32, "grid": [64, 1, 1]}
            kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "ts": start_us + 5.125, "dur": 8.0, "args": where}
            file.write(",\n" + json.dumps({**kernel, "name": f"void {kind}_kernel<float>(float*, int)"}) + ",\n")
        file.write('{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}\n]}\n')


def measure(path: Path) -> tuple[float, float, str]:
    """Return seconds, peak memory in MiB and the last line of one run of the command."""
    command = [
        sys.executable,
        "-m",
        "sktune.cli",
        "profile",
        str(path),
        "--html",
        str(path.with_suffix(".html")),
        "--json",
    ]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - began
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, done.stdout.splitlines()[-1]


def main() -> None:
    """Write the files, run the command on each, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    size = parser.parse_args().megabytes * 1_000_000
    print("| file | MB | seconds | peak MiB | steps | layers |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for name, write in (("kernel_details.csv", write_kernel_details), ("trace.json", write_trace)):
            path = Path(folder) / name
            write(path, size)
            # A process for each, as the kernel keeps the largest of all children's peaks.
            with get_context("spawn").Pool(1) as pool:
                seconds, peak_mib, last = pool.apply(measure, (path,))
            found = json.loads(last)
            row = (name, path.stat().st_size / 1e6, seconds, peak_mib, found["steps"], found["layers"])
            print("| {} | {:.0f} | {:.1f} | {:.0f} | {} | {} |".format(*row), flush=True)


if __name__ == "__main__":
    main()
