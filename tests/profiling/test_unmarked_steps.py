"""Profiles without marks of steps: layers are not taken for steps, and executions of a graph are steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sktune.profiling.analysis import Profile, analyse
from sktune.profiling.comparison import compare
from sktune.profiling.readers.reading import read_profile
from tests.profiles import Kernel, deepseek, gpu_trace, op_summary, write


def profile_of(path: Path, text: str) -> Profile:
    """Write a profile, then read and analyse it."""
    return analyse(read_profile(write(path, text)))


# Recordings of one step without marks, with kernels in the order of real traces (TraceLens' test data): what runs once,
# layers, and what runs once at the end.
ONCE = ("Memcpy DtoD", "position_kernel", "gather_rows_kernel")
LAYER = ("rms_norm", "qkv_gemm", "rope", "store_cache", "paged_attention", "o_gemm", "rms_norm", "up_gemm",
         "act_and_mul", "down_gemm")  # fmt: skip
END = ("rms_norm", "head_gemm", "argmax_kernel")


def one_step(layers: int, before: Sequence[str] = ONCE, after: Sequence[str] = END) -> list[str]:
    """Return the kernels' names of one decode step."""
    return [*before, *LAYER * layers, *after]


def alternating(layers: int) -> list[str]:
    """Return a step in which every second layer has another attention, with one more kernel."""
    full = [name if name != "paged_attention" else "paged_attention_3d" for name in LAYER]
    full.insert(5, "reduce_segments")
    return [*["Memcpy DtoD"] * 9, *ONCE, *[*LAYER, *full] * (layers // 2), *END]


def trace_of(names: Sequence[str], pauses: Mapping[int, int] | None = None, gap: int = 1) -> str:
    """Return a GPU trace without marks, with longer pauses before the kernels at some positions."""
    kernels, now = [], 0
    for place, name in enumerate(names):
        now += (pauses or {}).get(place, gap)
        kernels.append(Kernel(name, now, 10, step=None))
        now += 10
    return gpu_trace(kernels)


@pytest.mark.parametrize("before", [ONCE, ("Memcpy DtoD",) * 9 + ONCE])
@pytest.mark.parametrize("layers", [12, 36])
def test_layers_of_one_step_are_not_taken_for_steps(tmp_path: Path, layers: int, before: Sequence[str]) -> None:
    """Kernels that run once, before and after all repetition, belong to the step around it."""
    names = one_step(layers, before)
    result = profile_of(tmp_path / "t.json", trace_of(names))
    assert [step.kernels for step in result.steps] == [len(names)]
    assert result.layer_kinds == ("dense",) * layers


def test_groups_of_layers_are_not_taken_for_steps(tmp_path: Path) -> None:
    """Every second layer differs, so that only pairs of layers repeat."""
    result = profile_of(tmp_path / "t.json", trace_of(alternating(24)))
    assert len(result.steps) == 1
    assert len(result.layer_kinds) == 24


def test_pauses_between_layers_do_not_make_them_steps(tmp_path: Path) -> None:
    """As where each layer's attention is launched outside of a graph, or all kernels one by one."""
    names = one_step(24)
    at_attention = {place: 13 for place, name in enumerate(names) if name == "paged_attention"}
    for text in (trace_of(names, at_attention), trace_of(names, gap=90)):
        assert len(profile_of(tmp_path / "t.json", text).steps) == 1


def test_a_kernel_long_before_the_step_is_outside_of_it(tmp_path: Path) -> None:
    """The wait after it is not idle time of the step."""
    names = one_step(12)
    result = profile_of(tmp_path / "t.json", trace_of(names, {1: 460_000}))
    assert result.steps[0].kernels == len(names) - 1
    assert result.median.step_ms < 5
    assert any("outside of steps" in line for line in result.warnings)


@pytest.mark.parametrize("cut", [0, 2, 17])
def test_several_steps_are_still_found(tmp_path: Path, cut: int) -> None:
    """Embedding and sampling recur in each of them; the first may be incomplete."""
    names = one_step(12)
    begins = {step * len(names) - cut: 300 for step in range(1, 5)}
    result = profile_of(tmp_path / "t.json", trace_of((names * 5)[cut:], begins))
    assert len(result.steps) == (4 if cut else 5)
    assert len(result.layer_kinds) == 12


def test_steps_without_embedding_or_sampling_are_undecided(tmp_path: Path) -> None:
    """Groups of layers could look the same: the warning says so, with the way out."""
    names = [*["step_begin"], *LAYER * 6] * 4
    result = profile_of(tmp_path / "t.json", trace_of(names))
    line = next(line for line in result.warnings if "does not mark steps" in line)
    assert "may be layers" in line
    assert "record steps with a schedule (ProfilerStep)" in line


def graph_rows(kernels: list[Kernel], model: Callable[[int], str], task: Callable[[int], int]) -> str:
    """Return an op_summary whose kernels have ids of graphs and of tasks, by their position."""
    header, *rows = op_summary(kernels).splitlines()
    names = header.split(",")
    cells = [row.split(",") for row in rows if row]
    for place, row in enumerate(cells):
        row[names.index("Model ID")], row[names.index("Task ID")] = model(place), str(task(place))
    return "\n".join([header, *map(",".join, cells), ""])


EAGER = "4294967295"
SPARSE = [("GroupedMatmul", "MIX_AIC"), ("DequantSwigluQuant", "AI_VECTOR_CORE"), ("GroupedMatmul", "MIX_AIC"),
          ("DynamicQuant", "AI_VECTOR_CORE"), ("clear_ops", "MIX_AIC")]  # fmt: skip


def replayed(fused_us: int | None, layers: int, runs: int) -> str:
    """Return npugraph_ex' op_summary: eager kernels, then executions of a graph, each after an eager copy.

    A layer is five kernels of 90 us, 1 us apart, or one SuperKernel of ``fused_us``.
    """
    rows: list[tuple[Kernel, str, int]] = []
    now = 0

    def add(name: str, kind: str, core: str, duration: int, model: str, task: int) -> None:
        nonlocal now
        rows.append((Kernel(kind, now, duration, core, step=None, name=name), model, task))
        now += duration + 1

    for task in range(7):
        add("aclnnInplaceUniform_CastAiCore_Cast", "Cast", "AI_VECTOR_CORE", 300, EAGER, task)
    for run in range(runs):
        add("aclnnInplaceCopy_TensorMoveAiCore_TensorMove", "TensorMove", "AI_VECTOR_CORE", 190, EAGER, 20 + run)
        now += 500
        for layer in range(layers):
            if fused_us is not None:
                digest = "513b506510b0747fe531659e08d025502f948632ff140daabec28a6556328687"
                name = f"sk_{layer}_test_layer_{layer}_start_static_kernel_GroupedMatmul_{digest}_2482_d0_end_clear_ops"
                add(name, "SuperKernel", "MIX_AIC", fused_us, "48", 11 * layer)
                continue
            for place, (kind, core) in enumerate(SPARSE):
                name = kind if kind == "clear_ops" else f"aclnn{kind}V5_{kind}_{kind}"
                add(name, kind, core, 90, "48", 5 * layer + place)
    return graph_rows([row for row, _, _ in rows], lambda place: rows[place][1], lambda place: rows[place][2])


@pytest.mark.parametrize(("layers", "runs"), [(1, 2), (1, 4), (6, 1), (6, 3)])
def test_superkernels_of_npugraph_ex_replace_static_kernels(tmp_path: Path, layers: int, runs: int) -> None:
    """Executions of the graph are the steps; types in the SuperKernel's name say where its operators begin and end."""
    baseline = profile_of(tmp_path / "b.csv", replayed(None, layers, runs))
    candidate = profile_of(tmp_path / "c.csv", replayed(432, layers, runs))
    assert (len(baseline.steps), len(candidate.steps)) == (runs, runs)
    assert {step.kernels for step in baseline.steps} == {5 * layers}
    assert any(f"executions of its graph are taken as such ({runs})" in line for line in baseline.warnings)
    result = compare(baseline, candidate)
    assert [gain.scope for gain in result.gains] == [f"test_layer_{layer}" for layer in range(layers)]
    for gain in result.gains:
        assert [operator.type for operator in gain.replaced] == [kind for kind, _ in SPARSE]
        assert (gain.baseline_us, gain.candidate_us) == (454, 432)
    assert result.speedup == pytest.approx((455 * layers - 1) / (433 * layers - 1))


def test_a_graph_whose_executions_differ_has_no_steps_by_it(tmp_path: Path) -> None:
    """Then repetition decides, as for kernels that the host launches."""
    kernels = [replace(kernel, step=None) for kernel in deepseek(3, 1, 3)]
    for model in ("5", EAGER):
        text = graph_rows(kernels, lambda _, model=model: model, lambda place: place // 2)  # type: ignore[misc]
        result = profile_of(tmp_path / "k.csv", text)
        assert len(result.steps) == 3
        assert any("found by repetition" in line for line in result.warnings)
