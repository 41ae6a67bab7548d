"""Scope times on an NPU, from profiles in torch_npu's format; the profiler itself is a fake."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from sktune.backends.base import Step
from sktune.backends.npu.scope_profile import STEPS, WARM_UP_STEPS, profile_interleaved, scope_parts
from sktune.core.errors import ProfileError
from sktune.core.layout import Layer, Layout, Unit
from sktune.core.plan import Plan, Scope
from sktune.core.scope_times import scope_times
from sktune.profiling.readers.reading import read_profile
from tests import profiles
from tests.profiles import Kernel

UNITS = ("embed", "norm", "attention", "mlp", "head")
LAYOUT = Layout(tuple(Unit(name, name) for name in UNITS), (Layer("layers.0", "dense"),))
PLAN = Plan((Scope("norm", "attention"),))
LABEL = "norm..attention"
BASELINE = (
    ("GatherV2", 8),
    ("RmsNorm", 5),
    ("MatMulV2", 20),
    ("FusedAttention", 30),
    ("MatMulV3", 40),
    ("MatMulV2", 9),
)
GAP_US = 2


def steps(
    candidate: list[tuple[str, str, int]], count: int = STEPS, first: int = WARM_UP_STEPS, gap: int = GAP_US
) -> list[Kernel]:
    """Return kernels of alternating baseline and candidate steps, each with name, type and duration."""
    kernels, now = [], 0
    alone = [(f"model/{kind}_{place}", kind, duration) for place, (kind, duration) in enumerate(BASELINE)]
    for number in range(first, first + count):
        for name, kind, duration in candidate if number % 2 else alone:
            kernels.append(Kernel(kind, now, duration, name=name, step=number))
            now += duration + gap
        now += 500
    return kernels


def superkernel(first: int, last: int, duration: int, label: str = LABEL) -> tuple[str, str, int]:
    """Return a SuperKernel over the baseline's kernels ``first`` to ``last``."""
    names = [f"model/{kind}_{place}" for place, (kind, _) in enumerate(BASELINE)]
    return f"sk_{label}_start_{names[first]}_end_{names[last]}", "SuperKernel", duration


def alone(place: int) -> tuple[str, str, int]:
    """Return a kernel that is the same in the candidate and the baseline."""
    kind, duration = BASELINE[place]
    return f"model/{kind}_{place}", kind, duration


FUSED = [alone(0), superkernel(1, 3, 45), alone(4), alone(5)]
MARKED = {LABEL: [alone(place)[0] for place in (1, 2, 3)]}


class FakeProfiler:
    """Writes torch_npu's output after the last step, and checks that it is used as documented."""

    class ProfilerActivity:
        CPU, NPU = "cpu", "npu"

    class ProfilerLevel:
        Level1 = 1

    class _ExperimentalConfig:
        def __init__(self, profiler_level: int) -> None:
            assert profiler_level == 1

    def __init__(self, kernels: list[Kernel]) -> None:
        self._kernels, self.ran = kernels, 0

    def schedule(self, wait: int, active: int, warmup: int, repeat: int) -> int:
        assert (wait, repeat) == (0, 1)
        return active + warmup

    def tensorboard_trace_handler(self, folder: str) -> Path:
        return Path(folder) / "host_1_20261121_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv"

    def profile(self, activities: list[str], schedule: int, on_trace_ready: Path, experimental_config: Any) -> Self:
        assert set(activities) == {"cpu", "npu"}
        self._path, self._steps = on_trace_ready, schedule
        return self

    def step(self) -> None:
        self.ran += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self.ran == self._steps
        if self._kernels:
            profiles.write(self._path, profiles.kernel_details(self._kernels))


def test_steps_alternate_and_the_profile_is_read(tmp_path: Path) -> None:
    """Baseline and plan alternate, each prepared before it runs, and every unit is in one part."""
    calls: list[str] = []

    def step(name: str) -> Step:
        return Step(lambda token: calls.append(f"{name} {token}"), lambda: calls.append(f"prepare {name}"))

    torch_npu = SimpleNamespace(profiler=FakeProfiler(steps(FUSED)), npu=SimpleNamespace(synchronize=lambda: None))
    kernels = profile_interleaved(torch_npu, step("baseline"), step("plan"), (7,), tmp_path)
    assert calls[:4] == ["prepare baseline", "baseline 7", "prepare plan", "plan 7"]
    assert len(calls) == 2 * (WARM_UP_STEPS + STEPS)
    before, scope, after = scope_times(LAYOUT, scope_parts(kernels, PLAN, MARKED))
    assert (before.first, before.last, before.in_scope) == ("embed", "embed", False)
    assert (before.baseline_ms, before.latency_ms) == (0.008, 0.008)
    # The gap before a kernel belongs to it: 5 + 20 + 30 us and three gaps became 45 us and one.
    assert (scope.first, scope.last, scope.in_scope) == ("norm", "attention", True)
    assert (scope.baseline_ms, scope.latency_ms) == pytest.approx((0.061, 0.047))
    assert (after.first, after.last) == ("mlp", "head")
    assert (after.baseline_ms, after.latency_ms) == pytest.approx((0.053, 0.053))


def test_a_profiler_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    """torch_npu's profiler swallows its errors and leaves an empty folder."""
    torch_npu = SimpleNamespace(profiler=FakeProfiler([]), npu=SimpleNamespace(synchronize=lambda: None))
    with pytest.raises(ProfileError):
        profile_interleaved(torch_npu, Step(lambda: None), Step(lambda: None), (), tmp_path)


def parts(tmp_path: Path, kernels: list[Kernel], plan: Plan = PLAN, marked: Any = MARKED) -> list[tuple[float, float]]:
    """Return the times of each part in baseline and plan, in microseconds."""
    path = profiles.write(tmp_path / "kernel_details.csv", profiles.kernel_details(kernels))
    result = scope_parts(read_profile(path).frame, plan, marked)
    return [(round(part.baseline_ms * 1e3, 3), round(part.latency_ms * 1e3, 3)) for part in result]


def test_a_split_scope_includes_the_kernels_between_its_superkernels(tmp_path: Path) -> None:
    """A fragment's name has the ids at which GE cut; the operator that cut it belongs to the scope."""
    split = [
        alone(0), superkernel(1, 1, 5, f"{LABEL}_split_1_2"), alone(2), superkernel(3, 3, 28, f"{LABEL}_split_2_4"),
        alone(4), alone(5),
    ]  # fmt: skip
    assert parts(tmp_path, steps(split))[1] == (61, 59)


def test_operators_that_ge_renamed_are_found_by_the_ends_of_the_superkernel(tmp_path: Path) -> None:
    """The marks have TorchAir's names; a SuperKernel has GE's."""
    assert parts(tmp_path, steps(FUSED), marked={})[1] == (61, 47)


def test_a_scope_without_kernels_is_part_of_the_gap(tmp_path: Path) -> None:
    """Its time cannot be separated from the time around it."""
    plan = Plan((*PLAN.scopes, Scope("mlp", "mlp")))
    result = parts(tmp_path, steps(FUSED), plan)
    assert result == [(8, 8), (61, 47), (53, 53)]


def test_a_profile_with_other_steps_is_refused(tmp_path: Path) -> None:
    """It is then unclear which steps were the baseline's."""
    with pytest.raises(ProfileError, match=f"has {STEPS - 1} of {STEPS} steps"):
        parts(tmp_path, steps(FUSED, STEPS - 1))
