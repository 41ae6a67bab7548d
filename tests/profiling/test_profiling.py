"""Profiles: formats, the analysis of a step, and the command's output."""

import gzip
import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from sktune.cli.views.profile import profile_view
from sktune.core.errors import ProfileError
from sktune.core.events.values import SuperKernelVerdict
from sktune.profiling.analysis import Bound, Profile, analyse
from sktune.profiling.comparison import compare
from sktune.profiling.readers.reading import read_profile
from sktune.profiling.repetition import Landmarks, longest_run, split_layers, split_steps
from sktune.profiling.report import report
from sktune.profiling.tables import headline
from tests.profiles import (
    ATTENTION,
    MOE,
    WRITERS,
    Kernel,
    Truth,
    decode_step,
    deepseek,
    gpu_trace,
    kernel_details,
    npu_trace,
    op_summary,
    truth,
    write,
)


def profile_of(path: Path, text: str) -> Profile:
    """Analyse ``text`` as a file."""
    return analyse(read_profile(write(path, text)))


def of_median(result: Profile) -> Truth:
    """Return the median step in whole microseconds."""
    median = result.median
    times = (median.step_ms, median.compute_ms, median.communication_ms, median.gap_ms)
    return Truth(*(round(value * 1e3) for value in times))


# Formats


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_answer(tmp_path: Path, name: str) -> None:
    """61 layers, 3 of them dense, in 3 steps; op_summary does not mark steps, so they are searched for."""
    kernels = deepseek()
    result = profile_of(tmp_path / name, WRITERS[name](kernels))
    assert len(result.steps) == 3
    assert Counter(result.layer_kinds) == {"dense": 3, "moe": 58}
    assert result.layer_kinds[:4] == ("dense", "dense", "dense", "moe")
    assert of_median(result) == truth([kernel for kernel in kernels if kernel.step == 3])
    assert result.between_steps_ms == pytest.approx(0.402)
    assert result.median.kernels == len(decode_step(3, 58))


@pytest.mark.parametrize("name", WRITERS)
def test_formats_and_gzip_are_recognised_by_content(tmp_path: Path, name: str) -> None:
    """The file's name does not matter."""
    path = tmp_path / "some.file"
    path.write_bytes(gzip.compress(WRITERS[name](deepseek(2, 1, 3)).encode()))
    assert len(analyse(read_profile(path)).layer_kinds) == 4


@pytest.mark.parametrize("behind", [b"no gzip", bytes(9), b"\x1f\x8b\x08" + bytes(30)])
def test_what_is_behind_a_gzipped_profile_is_ignored(tmp_path: Path, behind: bytes) -> None:
    """As ``gunzip`` does."""
    path = tmp_path / "some.file"
    path.write_bytes(gzip.compress(kernel_details(deepseek(2, 1, 3)).encode()) + behind)
    assert len(analyse(read_profile(path)).layer_kinds) == 4


def test_a_profiler_folder_is_searched_for_its_kernel_table(tmp_path: Path) -> None:
    """As written by torch_npu, with traces beside the table."""
    folder = tmp_path / "host_1_20261121_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    write(folder / "kernel_details.csv", kernel_details(deepseek(2, 1, 3)))
    write(folder / "trace_view.json", "[")
    for given_path in (folder, folder.parent):
        assert read_profile(given_path).source == "kernel_details"


def test_the_slowest_of_several_ranks_is_shown(tmp_path: Path) -> None:
    """One folder for each rank; a warning says which is shown."""
    for rank, duration in enumerate((8, 11, 9)):
        folder = tmp_path / f"host_{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
        write(folder / "kernel_details.csv", kernel_details(deepseek(2, 1, 3, duration)))
    result = analyse(read_profile(tmp_path))
    assert (result.devices, result.device) == (3, "host_1_ascend_pt device 0")
    assert any("3 devices" in line for line in result.warnings)


def test_devices_of_one_file_are_analysed_separately(tmp_path: Path) -> None:
    """Kernels of two devices overlap in time, and must not hide each other's gaps."""
    slow = [replace(kernel, device=1) for kernel in deepseek(2, 1, 3, gap=5)]
    result = profile_of(tmp_path / "k.csv", kernel_details([*deepseek(2, 1, 3), *slow]))
    assert (result.devices, result.device) == (2, "1")
    assert of_median(result) == truth([kernel for kernel in slow if kernel.step == 3])


def test_few_columns_of_level0_are_enough(tmp_path: Path) -> None:
    """Without streams, steps and pipes."""
    rows = [f"0,{k.shown},{k.type},{k.core},{k.start}.000\t,{k.duration},2.0,24" for k in deepseek(3, 1, 3)]
    header = "Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Num"
    result = profile_of(tmp_path / "k.csv", "\n".join([header, *rows]))
    assert (len(result.steps), len(result.layer_kinds)) == (3, 4)


def test_microseconds_since_1970_keep_their_decimals(tmp_path: Path) -> None:
    """A float would round them to a quarter, and gaps of 0.1 us would be lost."""
    header = "Name,Type,Accelerator Core,Start Time(us),Duration(us)"
    rows = [f"op{n},Add,AI_CORE,17235457845355{21 + n // 10}.{n % 10}00\t,0.050" for n in range(100)]
    table = read_profile(write(tmp_path / "k.csv", "\n".join([header, *rows]))).frame
    assert np.allclose(np.diff(table["start_us"]), 0.1, atol=1e-9)


def test_gpu_kernels_belong_to_the_step_that_launched_them(tmp_path: Path) -> None:
    """They run later: with a lag of half a step, start times alone would give wrong steps."""
    kernels = deepseek(3, 1, 3, pause=100)
    result = profile_of(tmp_path / "trace.json", gpu_trace(kernels, lag=350))
    assert [step.kernels for step in result.steps] == [len(decode_step(1, 3))] * 3
    assert of_median(result) == truth([kernel for kernel in kernels if kernel.step == 4])
    assert {row.type for row in result.top} >= {"GroupedMatmul_kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"}


class Block(nn.Module):
    """A small decoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(64), nn.MultiheadAttention(64, 4, batch_first=True)
        self.post, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and MLP, with residuals."""
        normed = self.norm(x)
        x = x + self.mix(normed, normed, normed, need_weights=False)[0]
        hidden: torch.Tensor = self.down(nn.functional.silu(self.up(self.post(x))))
        return x + hidden


def test_a_trace_of_torch_profiler_on_the_cpu(tmp_path: Path) -> None:
    """Recorded here, for 4 steps of a model with 5 layers: operators that do work stand in for kernels."""
    model = nn.Sequential(nn.Embedding(100, 64), *[Block() for _ in range(5)], nn.LayerNorm(64), nn.Linear(64, 100))
    path = tmp_path / "trace.json"
    steps = schedule(wait=1, warmup=1, active=4)
    saved = [0]

    def save(done: profile) -> None:
        done.export_chrome_trace(str(path))
        saved[0] = sum(event.count for event in done.key_averages() if event.key == "aten::addmm")

    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], schedule=steps, on_trace_ready=save) as profiler:
        for _ in range(6):
            model(torch.zeros(2, 1, dtype=torch.long))
            profiler.step()
    result = analyse(read_profile(path))
    assert result.source == "cpu_trace"
    assert (len(result.steps), len(result.layer_kinds)) == (4, 5)
    assert next(row.count for row in result.top if row.type == "aten::addmm") == saved[0]
    median = result.median
    assert 0 < median.compute_ms < median.step_ms
    assert "dense.self_attn" in result.unit_order


def test_an_operator_that_mostly_makes_views_is_not_a_wrapper(tmp_path: Path) -> None:
    """On small tensors views take longer than the computation; only an operator that delegates work is a wrapper."""
    events = []
    for call in range(4):
        for name, offset, duration in (("aten::linear", 0, 30), ("aten::t", 1, 4), ("aten::addmm", 6, 20),
                                       ("aten::expand", 8, 9), ("aten::resolve_conj", 18, 4)):  # fmt: skip
            events.append({"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": call * 50 + offset,
                           "dur": duration})  # fmt: skip
    path = write(tmp_path / "trace.json", json.dumps({"traceEvents": events}))
    assert list(read_profile(path).frame["name"]) == ["aten::addmm"] * 4


# Damage


def test_truncated_and_repeated_rows_are_counted(tmp_path: Path) -> None:
    """A file that ends in a quoted shape, a header in the middle, a row without a duration, rows out of order."""
    text = kernel_details(deepseek(3, 1, 3))
    header, *rows = text.splitlines()
    random.Random(0).shuffle(rows)
    rows[5] = rows[5].replace(",8.0,", ",N/A,", 1)
    rows.insert(20, header)
    whole = "\n".join([header, *rows])
    cut = whole[: whole.rindex('"""2,') + 6]
    table = read_profile(write(tmp_path / "k.csv", cut))
    assert len(table.frame) == len(rows) - 3
    assert table.frame["start_us"].is_monotonic_increasing
    assert len(table.warnings) == 3
    assert "1 of" in table.warnings[0]
    assert "1 repeated header" in table.warnings[1]
    assert "1 of" in table.warnings[2]


@pytest.mark.parametrize("share", [0.3, 0.77, 0.97])
@pytest.mark.parametrize("writer", [npu_trace, gpu_trace])
@pytest.mark.parametrize("packed", [False, True])
def test_a_truncated_trace_gives_its_complete_events(
    tmp_path: Path, share: float, writer: object, packed: bool
) -> None:
    """Profilers truncate files on some file systems; a warning has the number of events."""
    assert callable(writer)
    text = writer(deepseek(3, 1, 3))
    data = gzip.compress(text.encode()) if packed else text.encode()
    path = tmp_path / "trace_view.json"
    path.write_bytes(data[: int(len(data) * share)])
    table = read_profile(path)
    assert 0 < len(table.frame) <= len(deepseek(3, 1, 3))
    assert "is truncated" in table.warnings[0]
    assert analyse(table).median.step_ms > 0


def test_reading_continues_after_a_damaged_event(tmp_path: Path) -> None:
    """One event is lost, not the rest of the trace."""
    text = gpu_trace(deepseek(2, 1, 3))
    place = text.index('"cat": "kernel"', len(text) // 2)
    table = read_profile(write(tmp_path / "t.json", text[:place] + "\x07 }{ " + text[place:]))
    assert len(deepseek(2, 1, 3)) - 2 <= len(table.frame) < len(deepseek(2, 1, 3))
    assert "damaged places" in table.warnings[0]


def test_events_without_a_valid_time_are_counted(tmp_path: Path) -> None:
    """Missing, null, text, infinite: a warning counts them, and the rest is read."""
    events = json.loads(gpu_trace(deepseek(2, 1, 3)))["traceEvents"]
    bad = [{**events[0], "ts": value} for value in (None, "soon", float("inf"), float("nan"))]
    bad += [{"ph": "X", "cat": "kernel", "name": "x", "args": None}, {"ph": "X", "name": "ProfilerStep#9"}]
    table = read_profile(write(tmp_path / "t.json", json.dumps([*bad, *events])))
    assert len(table.frame) == len(deepseek(2, 1, 3))
    assert "6 of" in table.warnings[0]


def test_names_cannot_control_the_terminal(tmp_path: Path) -> None:
    """Escape sequences and lone surrogates are replaced while reading."""
    kernels = [replace(kernel, name=f"evil\x1b[2J{index}") for index, kernel in enumerate(deepseek(1, 1, 3))]
    text = kernel_details(kernels).replace(",MatMulV2,", ",Mat\x1b[31mMul,")
    assert all(map(str.isprintable, read_profile(write(tmp_path / "k.csv", text)).frame["type"]))
    trace = gpu_trace(deepseek(1, 1, 3)).replace("GatherV2", "\\ud800")
    assert all(map(str.isprintable, read_profile(write(tmp_path / "t.json", trace)).frame["name"]))


def test_kernels_outside_of_steps_are_left_out_and_counted(tmp_path: Path) -> None:
    """Warm-up before the first mark is not a step."""
    kernels = deepseek(3, 1, 3)
    warm_up = [replace(k, step=None) if k.step == 3 else k for k in kernels]
    result = profile_of(tmp_path / "t.json", npu_trace(warm_up))
    assert len(result.steps) == 2
    assert any("are outside of steps" in line for line in result.warnings)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"version: 1\nspace: {}\n", "lacks the column 'Name' and 'Start Time(us)' and 'Duration(us)'"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is a binary file, not a profile"),
        (b'{"nodes": [1, 2]}', "has no list 'traceEvents'"),
        (b'{"traceEvents": []}', "has no kernels"),
        (b'{"traceEvents": [{"ph": "M", "name": "process_name"}', "has no kernels"),
        (b"[1, 2, 3]", "has no kernels"),
        (b"a,b,c\n1,2,3\n", "is not a profile"),
        (b"Name,Start Time(us),Duration(us)\nMatMul,,8.0\n,,\n", "has no kernels"),
        ((kernel_details([]).encode()), "has no kernels"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (gzip.compress(b"x" * 1000, mtime=0)[:10], "is empty"),
    ],
)
def test_a_file_that_is_not_a_profile_gets_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    """The line says what the file is and what to give."""
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(ProfileError, match=r".+") as caught:
        read_profile(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """Nobody writes into it."""
    os.mkfifo(tmp_path / "trace.json")
    with pytest.raises(ProfileError, match="is not a regular file"):
        read_profile(tmp_path / "trace.json")


def test_missing_files_and_folders_get_one_line(tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(ProfileError, match="there is no file"):
        read_profile(tmp_path / "nothing.csv")
    with pytest.raises(ProfileError, match="parse the profile first"):
        read_profile(tmp_path)


# Steps and layers


@pytest.mark.parametrize("cut", [0, 7, 31])
def test_steps_are_found_without_marks(tmp_path: Path, cut: int) -> None:
    """Also if the file begins in the middle of a step, which is then ignored."""
    kernels = deepseek(5, 1, 3)[cut:]
    result = profile_of(tmp_path / "s.csv", op_summary(kernels))
    assert len(result.steps) == (5 if cut == 0 else 4)
    assert {step.kernels for step in result.steps} == {len(decode_step(1, 3))}
    assert any("does not mark steps" in line for line in result.warnings)


def test_steps_of_unequal_length_are_found_and_reported(tmp_path: Path) -> None:
    """One step has an extra kernel, another takes twice as long: figures are medians, with a warning for each."""
    kernels = deepseek(5, 1, 3)
    extra = next(index for index, kernel in enumerate(kernels) if kernel.step == 5) + 4
    kernels.insert(extra, replace(kernels[extra], type="Cast", start=kernels[extra].start - 1, duration=1))
    kernels = [replace(k, start=2 * k.start, duration=2 * k.duration) if k.step == 7 else k for k in kernels]
    for text in (kernel_details(kernels), op_summary(kernels)):
        result = profile_of(tmp_path / "k.csv", text)
        assert len(result.steps) == 5
        assert of_median(result) == truth([kernel for kernel in kernels if kernel.step == 3])
        assert any("differ in their number of kernels" in line for line in result.warnings)
        assert any("took" in line and "the median is" in line for line in result.warnings)


@pytest.mark.parametrize(("dense", "moe"), [(0, 1), (1, 0), (1, 1), (1, 2), (0, 32), (28, 0), (4, 2)])
def test_one_step_with_few_or_many_layers(tmp_path: Path, dense: int, moe: int) -> None:
    """If nothing repeats, layers are found by attention and MLP."""
    result = profile_of(tmp_path / "k.csv", kernel_details(deepseek(1, dense, moe)))
    assert len(result.steps) == 1
    assert Counter(result.layer_kinds) == {kind: n for kind, n in (("dense", dense), ("moe", moe)) if n}


def test_alternating_kinds_are_separate_layers(tmp_path: Path) -> None:
    """Alternating sliding and full attention only repeat in groups."""
    kernels, now = [], 0
    for kind in ("sliding", "sliding", "full") * 6:
        for name in ("rms_norm", "qkv_gemm", f"{kind}_attention", "o_gemm", "rms_norm", "gemm", "silu", "gemm"):
            kernels.append(Kernel(name, now, 8, step=0))
            now += 10
    assert len(profile_of(tmp_path / "t.json", gpu_trace(kernels)).layer_kinds) == 18


def test_layers_alone_are_one_step_without_longer_pauses(tmp_path: Path) -> None:
    """If there are only equal layers, longer pauses are the only sign of steps."""
    layer = ATTENTION + MOE
    for pause, steps in ((2, 1), (300, 3)):
        kernels, now = [], 0
        for _ in range(3):
            for kind, core in layer * 6:
                kernels.append(Kernel(kind, now, 8, core, step=None))
                now += 10
            now += pause - 2
        result = profile_of(tmp_path / "k.csv", kernel_details(kernels))
        assert (len(result.steps), len(result.layer_kinds)) == (steps, 18 // steps)


def cpu_trace(layers: int) -> str:
    """Return a trace of equal layers, 30 us apart, without marks of steps."""
    events, now = [], 0.0
    for _ in range(layers):
        for name in ("aten::layer_norm", "aten::addmm", "aten::gelu", "aten::addmm"):
            events.append({"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": now, "dur": 8.0})
            now += 9
        now += 30
    return json.dumps({"traceEvents": events})


def test_layers_that_may_be_steps_are_reported_with_the_fix(tmp_path: Path) -> None:
    """Five calls of four equal layers look like twenty steps of one."""
    result = profile_of(tmp_path / "t.json", cpu_trace(20))
    line = next(line for line in result.warnings if "does not mark steps" in line)
    assert "may be layers" in line
    assert "record steps with a schedule (ProfilerStep)" in line


def test_kernels_are_attributed_to_the_units_of_their_layer(tmp_path: Path) -> None:
    """The norms inside MLA belong to attention; collectives are a separate unit."""
    result = profile_of(tmp_path / "k.csv", kernel_details(deepseek(2, 3, 4)))
    rows = result.kernels[(result.kernels["step"] == 3) & (result.kernels["layer"] == 5)]
    attention = ["input_layernorm", *["self_attn"] * 9, "communication", "post_attention_layernorm"]
    assert rows["unit"].tolist() == [*attention, *["mlp"] * 7, "communication"]
    outside = result.kernels[(result.kernels["step"] == 3) & (result.kernels["layer"] < 0)]
    assert outside["unit"].tolist() == ["embed_tokens", "norm", "lm_head", "step"]


def test_units_are_ranked_by_the_time_that_a_scope_can_save(tmp_path: Path) -> None:
    """The experts, with the widest gaps, come first; a gap before a unit's first kernel does not count."""
    kernels, now = [], 0
    for kind, core in decode_step(0, 4):
        now += 20 if kind in ("GroupedMatmul", "DequantSwigluQuant") else 50 if kind == "AddRmsNorm" else 1
        kernels.append(Kernel(kind, now, 8, core))
        now += 8
    result = profile_of(tmp_path / "k.csv", kernel_details(kernels))
    assert result.unit_order[:2] == ("moe.mlp", "moe.self_attn")
    first = result.units[0]
    assert first.gap_ms == pytest.approx(4 * (3 * 20 + 3 * 1) / 1e3)
    assert (first.layers, first.kernels) == (4, 7)


@given(st.data())
def test_layers_are_found_in_any_repetition(data: st.DataObject) -> None:
    """Every repetition of a pattern is a layer, whatever kernels come before and after."""
    size = data.draw(st.integers(3, 12))
    pattern = list(range(size))
    count = data.draw(st.integers(3, 20))
    before, after = (list(range(start, start + data.draw(st.integers(0, 4)))) for start in (100, 200))
    tokens = np.array(before + pattern * count + after)
    nothing = np.zeros(len(tokens), dtype=bool)
    layers = split_layers(tokens, Landmarks(nothing, nothing, nothing))
    assert layers == [(len(before) + size * n, len(before) + size * (n + 1)) for n in range(count)]


def test_noise_has_neither_steps_nor_layers() -> None:
    """Nothing is found if nothing repeats."""
    tokens = np.random.default_rng(0).permutation(1000)
    nothing = np.zeros(1000, dtype=bool)
    assert longest_run(tokens) is None
    assert split_layers(tokens, Landmarks(nothing, nothing, nothing)) == []
    assert split_steps(tokens, np.zeros(1000), nothing) == [(0, 1000)]


# Figures


def test_overlapping_streams_count_once_and_hide_communication(tmp_path: Path) -> None:
    """Compared with a count of single microseconds, over random streams."""
    rng = random.Random(1)
    kernels = []
    for stream, core in ((2, "AI_CORE"), (5, "AI_VECTOR_CORE"), (9, "HCCL")):
        now = rng.randrange(20)
        for _ in range(60):
            duration = rng.randrange(1, 30)
            kind = "hcom_allReduce_" if core == "HCCL" else "MatMulV2"
            kernels.append(Kernel(kind, now, duration, core, stream))
            now += duration + rng.randrange(0, 40)
    rng.shuffle(kernels)
    result = profile_of(tmp_path / "k.csv", kernel_details(kernels))
    expected = truth(kernels)
    assert of_median(result) == expected
    busy = expected.span - expected.gap
    assert round(result.median.hidden_ms * 1e3) == expected.compute + expected.communication - busy
    assert round(result.median.exposed_ms * 1e3) == busy - expected.compute
    assert result.bottleneck is not None
    assert sum(result.bottleneck.shares.values()) == pytest.approx(1)


def bound_case(gap: int, communication: int, ratios: tuple[tuple[str, float], ...] = ()) -> str:
    """Return a profile of one layer kind; gaps and collectives in microseconds."""
    kernels, now = [], 0
    for kind, core in decode_step(0, 6):
        duration = communication if core == "HCCL" else 20
        kernels.append(Kernel(kind, now, duration, core, ratios=() if core == "HCCL" else ratios))
        now += duration + gap
    return kernel_details(kernels)


@pytest.mark.parametrize(
    ("text", "bound", "evidence"),
    [
        (bound_case(60, 5), Bound.SCHEDULING, "operator types"),
        (bound_case(1, 500), Bound.SYNCHRONISATION, "operator types"),
        (bound_case(1, 5, (("aic_mac_ratio", 0.8), ("aic_mte2_ratio", 0.4))), Bound.COMPUTE, "pipe ratios"),
        (bound_case(1, 5, (("aiv_vec_ratio", 0.6), ("aiv_scalar_ratio", 0.1))), Bound.COMPUTE, "pipe ratios"),
        (bound_case(1, 5, (("aic_mac_ratio", 0.2), ("aic_mte2_ratio", 0.9))), Bound.MEMORY, "pipe ratios"),
        (bound_case(1, 5, (("aiv_vec_ratio", 0.2), ("aiv_mte3_ratio", 0.9))), Bound.MEMORY, "pipe ratios"),
    ],
)
def test_the_bottleneck_takes_most_of_the_step(tmp_path: Path, text: str, bound: Bound, evidence: str) -> None:
    """By the busiest pipe if there are pipe ratios, else by type; the evidence says which."""
    result = profile_of(tmp_path / "k.csv", text).bottleneck
    assert result is not None
    assert result.bound is bound
    assert evidence in result.evidence


def test_slowest_types_add_up(tmp_path: Path) -> None:
    """Counts and totals are over all steps."""
    kernels = deepseek(3, 1, 3)
    top = profile_of(tmp_path / "k.csv", kernel_details(kernels)).top
    counts = Counter(kernel.type for kernel in kernels)
    assert all(row.count == counts[row.type] for row in top)
    assert all(row.total_ms == pytest.approx(8 * row.count / 1e3) for row in top)
    assert [row.share for row in top] == sorted((row.share for row in top), reverse=True)
    assert sum(row.share for row in top) <= 1


# SuperKernels


def fused(kernels: list[Kernel], duration: int, known_names: bool = True) -> list[Kernel]:
    """Return the profile with each layer's attention, from the first matmul to the output projection, as one kernel."""
    out: list[Kernel] = []
    shift, index, layer = 0, 0, 0
    while index < len(kernels):
        kernel = kernels[index]
        if kernel.type == "QuantBatchMatmulV3" and kernels[index + 1].type == "RmsNorm":
            last = kernels[index + 8]
            first_name, last_name = (kernel.shown, last.shown) if known_names else ("first", "last")
            name = f"sk_model.layers.{layer % 4}.self_attn_start_{first_name}_end_{last_name}"
            start = kernel.start - shift
            out.append(replace(kernel, type="SuperKernel", core="MIX_AIC", start=start, duration=duration, name=name))
            shift += last.start + last.duration - kernel.start - duration
            index, layer = index + 9, layer + 1
        else:
            out.append(replace(kernel, start=kernel.start - shift, name=kernel.shown))
            index += 1
    return out


def repeated(kernels: list[Kernel], steps: int) -> list[Kernel]:
    """Return several copies of a step with the same names, as a compiled graph runs it."""
    length = kernels[-1].start + 500
    return [
        replace(kernel, start=kernel.start + step * length, step=step, name=kernel.shown)
        for step in range(steps)
        for kernel in kernels
    ]


@pytest.mark.parametrize(("known_names", "stream"), [(True, 9), (False, 2)])
@pytest.mark.parametrize(
    ("duration", "steps", "verdict"),
    [
        (70, 4, SuperKernelVerdict.BENEFICIAL),
        (87, 4, SuperKernelVerdict.NEUTRAL),
        (110, 4, SuperKernelVerdict.REGRESSED),
        (70, 2, SuperKernelVerdict.INSUFFICIENT),
    ],
)
def test_superkernels_are_compared_with_what_they_replace(
    tmp_path: Path, known_names: bool, stream: int, duration: int, steps: int, verdict: SuperKernelVerdict
) -> None:
    """Nine kernels of 8 us with gaps of 2 span 88 us; a gain within 3% is neutral, and two steps are not enough.

    The SuperKernels may have a stream of their own, that with the most time.
    """
    step = deepseek(1, 1, 3)
    baseline = profile_of(tmp_path / "b.csv", kernel_details(repeated(step, steps)))
    kernels = repeated(fused(step, duration, known_names), steps)
    kernels = [replace(kernel, stream=stream) if kernel.type == "SuperKernel" else kernel for kernel in kernels]
    candidate = profile_of(tmp_path / "c.csv", kernel_details(kernels))
    assert candidate.median.superkernels == 4
    assert Counter(candidate.layer_kinds) == {"dense": 1, "moe": 3}
    result = compare(baseline, candidate)
    replaced = [kind for kind, _ in ATTENTION[1:10]]
    assert [gain.scope for gain in result.gains] == [f"model.layers.{layer}.self_attn" for layer in range(4)]
    for gain in result.gains:
        assert [operator.type for operator in gain.replaced] == replaced
        assert gain.gain_us == pytest.approx(88 - duration)
        assert gain.verdict is verdict
    assert result.speedup == pytest.approx(baseline.median.step_ms / candidate.median.step_ms)


def moe_layers(label: str, first: str = "RmsNorm_1", last: str = "AddRmsNorm_9") -> list[Kernel]:
    """Return 3 steps of 4 layers: attention and both norms as one SuperKernel, and experts with gaps between them."""
    kernels, now = [], 0
    for step in range(3):
        kernels.append(Kernel("GatherV2", now, 8, step=step))
        now += 10
        for layer in range(4):
            name = f"sk_{label.format(layer)}_start_{first}_end_{last}"
            kernels.append(Kernel("SuperKernel", now, 70, "MIX_AIC", step=step, name=name))
            now += 72
            for kind in ("MoeDistributeDispatchV2", "GroupedMatmul", "MoeDistributeCombineV2"):
                kernels.append(Kernel(kind, now, 8, "MIX_AIC", step=step))
                now += 28
        kernels += [Kernel("MatMulV2", now, 8, "AI_CORE", step=step), Kernel("ArgMaxV2", now + 10, 8, step=step)]
        now += 400
    return kernels


@pytest.mark.parametrize(
    ("label", "first", "last"),
    [
        ("layers.{}.self_attn", "RmsNorm_1", "AddRmsNorm_9"),
        ("layers.{0}.input_layernorm..layers.{0}.post_attention_layernorm", "RmsNorm_1", "Add_9"),
        ("layers.{}.self_attn", "RmsNorm_1", "MoeGatingTopK_9"),
        ("scope_{}", "InterleaveRope_1", "AddRmsNorm_9"),
    ],
)
def test_a_superkernel_is_the_unit_in_its_name(tmp_path: Path, label: str, first: str, last: str) -> None:
    """Kernels after it are not attention, and scopes are suggested only where something is left to save."""
    result = profile_of(tmp_path / "k.csv", kernel_details(moe_layers(label, first, last)))
    assert result.layer_kinds == ("moe",) * 4
    units = {unit.parameter: unit for unit in result.units}
    assert set(units) == {"moe.self_attn", "moe.mlp"}
    assert (units["moe.self_attn"].kernels, units["moe.self_attn"].potential_ms) == (1, 0)
    assert units["moe.mlp"].kernels == 3
    assert units["moe.mlp"].gap_ms == pytest.approx(4 * 2 * 20 / 1e3)
    assert headline(result).partition("Try scopes first on ")[2] == "moe.mlp (0.160 ms of gaps inside)."


@pytest.mark.parametrize("scope", ["layers.{0}", "layers.{0}.input_layernorm..layers.{0}.mlp"])
def test_a_superkernel_of_a_whole_layer_is_not_a_unit(tmp_path: Path, scope: str) -> None:
    """Nothing inside it is left to fuse."""
    kernels = moe_layers(scope, "InterleaveRope_1", "GroupedMatmul_9")
    whole = [k for k in kernels if k.type in ("SuperKernel", "GatherV2", "MatMulV2", "ArgMaxV2")]
    result = profile_of(tmp_path / "k.csv", kernel_details(whole))
    assert result.units == ()
    assert "Try scopes" not in headline(result)


# The command


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``sktune profile`` as a user would."""
    words = (sys.executable, "-m", "tests.command", "profile", *arguments)
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder)


def test_the_last_line_is_the_event_and_the_rest_is_for_people(tmp_path: Path) -> None:
    """The event has exactly the documented keys."""
    write(tmp_path / "k.csv", kernel_details(repeated(fused(deepseek(1, 1, 3), 70), 3)))
    done = command(tmp_path, "k.csv", "--json")
    assert done.returncode == 0, done.stderr
    event = json.loads(done.stdout)
    assert list(event) == [
        "event", "steps", "layers", "step_ms", "compute_ms", "communication_ms", "gap_ms", "gap_share", "bottleneck",
        "superkernels", "top", "warnings",
    ]  # fmt: skip
    assert (event["event"], event["steps"], event["layers"], event["superkernels"]) == ("profile_finished", 3, 4, 4)
    assert set(event["top"][0]) == {"type", "count", "total_ms", "share"}
    assert "The device is idle for" in " ".join(done.stderr.split())
    assert "runs/profiles/k.html" in done.stderr
    assert (tmp_path / "runs" / "profiles" / "k.html").exists()


def screen(baseline: str, candidate: str | None, folder: Path, width: int) -> str:
    """Return the output for one profile or two on a terminal of ``width`` columns."""
    paths = [write(folder / f"{name}.csv", text) for name, text in (("b", baseline), ("c", candidate)) if text]
    result = report(paths[0], paths[1] if candidate else None, None, folder / "runs")
    console = Console(width=width)
    with console.capture() as capture:
        console.print(profile_view(result.profile, result.comparison, result.picture))
    return capture.get()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize(("steps", "verdict"), [(4, "beneficial"), (2, "insufficient evidence")])
def test_gain_and_verdict_are_always_shown(tmp_path: Path, width: int, steps: int, verdict: str) -> None:
    """Other columns are left out on a narrow terminal, with a note."""
    step = deepseek(1, 1, 3)
    shown = screen(
        kernel_details(repeated(step, steps)), kernel_details(repeated(fused(step, 70), steps)), tmp_path, width
    )
    table = shown[shown.index("SuperKernels against") :]
    assert {"gain", "us", "+72.00", *verdict.split()} <= set(table.split())
    assert "\u2026" not in shown
    assert ("Left out" in table) == (width <= 80)
    borders = [line for line in shown.splitlines() if line[:1] in set("┏┡│└")]
    assert all(len(line) <= width and line[-1] in "┓┩│┘" for line in borders)


def test_each_closing_paragraph_names_its_profile(tmp_path: Path) -> None:
    """With two files there are two paragraphs; with one it needs no name."""
    step = deepseek(1, 1, 3)
    baseline, candidate = kernel_details(repeated(step, 3)), kernel_details(repeated(fused(step, 70), 3))
    lines = screen(baseline, candidate, tmp_path, 300).splitlines()
    assert [line.partition(": ")[0] for line in lines if "The device is idle" in line] == ["baseline", "candidate"]
    assert "\nThe device is idle" in screen(baseline, None, tmp_path, 300)


def test_a_candidate_without_superkernels_is_reported(tmp_path: Path) -> None:
    """Swapped files are named as the likely mistake, instead of an empty table."""
    step = deepseek(1, 1, 3)
    swapped = screen(kernel_details(repeated(fused(step, 70), 3)), kernel_details(repeated(step, 3)), tmp_path, 300)
    assert "The candidate has no SuperKernels; are the files swapped?" in swapped
    assert "verdict" not in swapped


def test_idle_time_between_steps_needs_two_steps(tmp_path: Path) -> None:
    """It is not shown for one step."""
    one, two = (screen(kernel_details(deepseek(n, 1, 3)), None, tmp_path, 300) for n in (1, 2))
    assert "Between steps" not in one
    assert ": 1 step of" in one
    assert "Between steps" in two


def test_bad_files_end_the_command_with_one_line(tmp_path: Path) -> None:
    """The exit code is 2, and no page is left behind."""
    write(tmp_path / "notes.yaml", "version: 1\n")
    done = command(tmp_path, "notes.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith("error: notes.yaml is not a profile")
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("*.html"))


def test_the_page_needs_no_network_and_runs_nothing_from_files(tmp_path: Path) -> None:
    """Names come from the file; both profiles are in one page."""
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    kernels = [replace(kernel, name=f"{evil}{index}") for index, kernel in enumerate(deepseek(3, 1, 3))]
    baseline = write(tmp_path / "b.csv", kernel_details(kernels))
    candidate = write(tmp_path / "c.csv", kernel_details(deepseek(3, 1, 3)))
    result = report(baseline, candidate, None, tmp_path / "runs")
    page = result.picture.read_text()
    assert result.picture == tmp_path / "runs" / "profiles" / "b-c.html"
    assert page.count("<script") == page.count("</script") == 1
    assert "onerror=alert" not in page.replace("\\u003cimg src=x onerror=alert", "")
    assert "http" not in page
    data = json.loads(page[page.index("const data = ") + 13 : page.index(";\nconst UNIT_COLOURS")])
    assert [drawn["label"] for drawn in data["profiles"]] == ["baseline", "candidate"]
    assert len(data["profiles"][0]["kernels"]) == len(decode_step(1, 3))
    assert len(data["profiles"][0]["layers"]) == 4
