"""A published pair of profiles of npugraph_ex, without and with a SuperKernel.

Kernels, times and order are those of both ``op_summary`` files of ``06.05_superkernel_homework`` in
hicann/cann-learning-hub (817acd49): two executions of a graph of six operators on 20 cube and 40 vector cores.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from sktune.profiling.analysis import analyse
from sktune.profiling.comparison import compare
from sktune.profiling.readers.reading import read_profile
from tests.builders import succeeded
from tests.profiles import write

Row = tuple[int, str, str, str, str, float]
"""Stream, name, type, core, start and duration in microseconds; a float cannot hold the start."""

COLUMNS = (
    "Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,OP State,Task Type,Task Start Time(us),Task Duration(us),"
    "Task Wait Time(us),Block Num,Mix Block Num"
)
COPY = "aclnnInplaceCopy_TensorMoveAiCore_TensorMove"
GROUPED = "aclnnGroupedMatmulV5_GroupedMatmul_GroupedMatmul"
DIGEST = "5627ae2e224ad4f9560177b0e1611242ea683305d633895f76a36ce5d0b52fef"
FUSED = f"sk_0_none_start_static_kernel_GroupedMatmul_{DIGEST}_372483_d0_end_clear_ops"
VECTOR, MIX = "AI_VECTOR_CORE", "MIX_AIC"
GRAPH, EAGER = 12, 47

WITHOUT: list[list[Row]] = [
    [
        (EAGER, COPY, "TensorMove", VECTOR, "1789568593416717.655", 123.56),
        (GRAPH, GROUPED, "GroupedMatmul", MIX, "1789568593417584.615", 55.14),
        (GRAPH, "DequantSwigluQuant", "DequantSwigluQuant", VECTOR, "1789568593417640.995", 10.18),
        (GRAPH, "gelu_custom_kernel", "gelu_custom_kernel", VECTOR, "1789568593417651.195", 124.46),
        (GRAPH, GROUPED, "GroupedMatmul", MIX, "1789568593417776.995", 37.06),
        (
            GRAPH,
            "aclnnDynamicQuantV2_DynamicQuant_DynamicQuant",
            "DynamicQuant",
            VECTOR,
            "1789568593417815.055",
            355.86,
        ),
        (GRAPH, "clear_ops", "clear_ops", MIX, "1789568593418171.875", 32.38),
    ],
    [
        (EAGER, COPY, "TensorMove", VECTOR, "1789568593418710.215", 187.32),
        (GRAPH, GROUPED, "GroupedMatmul", MIX, "1789568593419016.915", 51.8),
        (GRAPH, "DequantSwigluQuant", "DequantSwigluQuant", VECTOR, "1789568593419069.695", 9.32),
        (GRAPH, "gelu_custom_kernel", "gelu_custom_kernel", VECTOR, "1789568593419079.035", 125.08),
        (GRAPH, GROUPED, "GroupedMatmul", MIX, "1789568593419205.155", 36.98),
        (
            GRAPH,
            "aclnnDynamicQuantV2_DynamicQuant_DynamicQuant",
            "DynamicQuant",
            VECTOR,
            "1789568593419243.215",
            355.48,
        ),
        (GRAPH, "clear_ops", "clear_ops", MIX, "1789568593419600.035", 33.66),
    ],
]
WITH: list[list[Row]] = [
    [
        (EAGER, COPY, "TensorMove", VECTOR, "1789567953880914.315", 122.4),
        (GRAPH, FUSED, "SuperKernel", MIX, "1789567953881701.795", 597.52),
    ],
    [
        (EAGER, COPY, "TensorMove", VECTOR, "1789567953882888.695", 188.94),
        (GRAPH, FUSED, "SuperKernel", MIX, "1789567953883198.855", 587.9),
    ],
]
OPERATORS = ["GroupedMatmul", "DequantSwigluQuant", "gelu_custom_kernel", "GroupedMatmul", "DynamicQuant", "clear_ops"]


def op_summary(passes: Sequence[Sequence[Row]]) -> str:
    """Return the file of these executions, with tabs and ids as msprof writes them."""
    lines = [COLUMNS]
    for number, rows in enumerate(passes):
        for place, (stream, name, kind, core, start, duration) in enumerate(rows):
            model, task = ("4294967295", 24 + 3 * number) if stream == EAGER else ("48", place - 1)
            lines.append(
                f"5,{model},{task},{stream},{name},{kind},dynamic,{core},{start}\t,{duration:.6f},1.000000,20,40"
            )
    return "\n".join([*lines, ""])


@pytest.mark.parametrize(
    ("which", "before_us", "after_us", "speedup"),
    [(slice(0, 1), 619.64, 597.52, 1.037), (slice(1, 2), 616.78, 587.9, 1.049), (slice(0, 2), 618.21, 592.71, 1.043)],
)
def test_the_superkernel_is_compared_with_the_operators_it_replaces(
    tmp_path: Path, which: slice, before_us: float, after_us: float, speedup: float
) -> None:
    """Each execution alone, and the medians of both; the eager copies before them are not part of a step."""
    baseline = analyse(read_profile(write(tmp_path / "static.csv", op_summary(WITHOUT[which]))))
    candidate = analyse(read_profile(write(tmp_path / "sk.csv", op_summary(WITH[which]))))
    result = compare(baseline, candidate)
    (gain,) = result.gains
    assert (gain.baseline_us, gain.candidate_us) == pytest.approx((before_us, after_us), abs=0.01)
    assert result.speedup == pytest.approx(speedup, abs=0.0005)
    assert [operator.type for operator in gain.replaced] == OPERATORS
    assert gain.replaced[0].name == GROUPED
    assert gain.scope == "none"


def test_the_command_names_the_replaced_operators(tmp_path: Path) -> None:
    """On the screen, on the page, and in JSON."""
    write(tmp_path / "static.csv", op_summary(WITHOUT[1:]))
    write(tmp_path / "sk.csv", op_summary(WITH[1:]))
    done = succeeded("profile", "static.csv", "sk.csv", "--json", folder=tmp_path)
    shown = " ".join(done.stderr.replace("│", " ").split())
    assert "1.049x" in shown
    assert ", ".join(OPERATORS) in shown
    compared = json.loads(done.stdout.splitlines()[-1])["comparison"]
    assert compared["speedup"] == pytest.approx(1.049, abs=0.0005)
    (superkernel,) = compared["superkernels"]
    assert (superkernel["baseline_us"], superkernel["candidate_us"]) == (616.78, 587.9)
    assert [operator["type"] for operator in superkernel["replaced"]] == OPERATORS
    page = (tmp_path / "runs" / "profiles" / "static-sk.html").read_text(encoding="utf-8")
    assert ", ".join(OPERATORS) in page
