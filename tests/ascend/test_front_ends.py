"""Front ends of torch_npu's releases, as far as no torch_npu is needed; tests/torchair holds them to the true ones."""

import logging
from pathlib import Path

import pytest
from torch import nn

import sktune
from sktune.ascend.front_ends import front_end, front_ends, releases_with, what_is_tested
from sktune.backends import backend_info
from sktune.backends.npugraph_ex.availability import examine
from sktune.backends.npugraph_ex.options import KERNELS, SUPERKERNEL
from sktune.core.errors import PlanError, SpaceError
from sktune.core.events.commands import State
from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import write_plan
from sktune.core.space import SpaceSpec
from sktune.targets import describe
from sktune.tuning.request import bind_space
from tests.builders import decoder_layout

NPUGRAPH_EX, SIMULATED = backend_info("npugraph-ex"), backend_info("sim-npugraph-ex")


@pytest.fixture
def installed(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have a torch_npu found, of which nothing but the version exists; return the version."""
    version = str(request.param)
    metadata = tmp_path / f"torch_npu-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    return version


def test_the_newest_release_has_every_option() -> None:
    """Of which sktune has those that a plan may set."""
    newest = set(front_ends()[-1].superkernel)
    assert newest >= {*SUPERKERNEL, *KERNELS}
    assert all(newest >= set(each.superkernel) for each in front_ends())


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("2.8.0.post4", "2.8.0.post4"), ("2.8.0.post3", "2.8.0.post2"), ("2.8.0rc1", "2.8.0"), ("2.9.1", "2.9.0.post9"),
        ("2.10.0.post4+git1a2b", "2.10.0.post4"), ("2.20.0", front_ends()[-1].torch_npu), ("2.6.0", None),
        ("not installed", None),
    ],
)  # fmt: skip
def test_a_release_that_is_not_known_is_taken_for_the_one_before_it(version: str, found: str | None) -> None:
    """By version and post-release."""
    known = front_end(version)
    assert (known and known.torch_npu) == found


def test_only_what_the_suites_ran_against_is_called_tested() -> None:
    """For others the line names the tested release that is the nearest below."""
    assert what_is_tested("2.8.0.post4") == "its front ends are tested"
    assert what_is_tested("2.9.0.post9") == "its front ends are not tested; those of 2.8.0.post4 are"


@pytest.mark.parametrize("installed", ["2.8.0.post4"], indirect=True)
def test_what_the_installed_release_lacks_is_neither_searched_nor_compiled(installed: str) -> None:
    """The line says what there is, and where there is more; a simulation stands for any release."""
    options = NPUGRAPH_EX.options
    assert set(options.default_choices("npu")) == {"stream_fusion", "preload_code", "split_mode"}
    plan = Plan((Scope("a", "b"),), (("early_start", 1),))
    known = "preload_code, split_mode, stream_fusion"
    line = f"torch_npu {installed} has no option 'early_start'.*there are {known}.*2.10.0.post4"
    with pytest.raises(PlanError, match=line):
        options.check_step(plan)
    with pytest.raises(SpaceError, match=line):
        options.check_searched("npu", "early_start", 1)
    options.check_step(Plan((Scope("a", "b"),), (("split_mode", 2),)))
    SIMULATED.options.check_step(plan)
    assert set(SIMULATED.options.default_choices("cpu")) == set(SUPERKERNEL)


def test_a_programs_release_decides_what_its_search_may_try() -> None:
    """sktune's own environment needs no torch_npu: a recipe's ranks say which one the program has."""
    layout = decoder_layout(("dense",))
    spec, _ = describe("llama", backend="npugraph-ex", device="npu")
    chosen = {version: bind_space(SpaceSpec(), layout, spec, {"torch_npu": version}).choices for version in
              ("2.8.0.post4", "2.14.0")}  # fmt: skip
    assert not {"early_start", "constant_codegen"} & chosen["2.8.0.post4"].keys()
    assert {"early_start", "constant_codegen"} <= chosen["2.14.0"].keys()
    listed = SpaceSpec(options={"npugraph-ex": {"npu": {"early_start": [0, 1]}}})
    with pytest.raises(SpaceError, match=r"torch_npu 2\.8\.0\.post4 has no option 'early_start'"):
        bind_space(listed, layout, spec, {"torch_npu": "2.8.0.post4"})


@pytest.mark.parametrize(
    ("installed", "state", "found"),
    [
        ("2.8.0", State.MISSING, "torch_npu 2.8.0 has none"),
        ("2.8.0.post4", State.OK, "without early_start, constant_codegen, auto_op_parallel, dcci_before_kernel_start"),
        ("2.14.0", State.OK, "with all options of SuperKernels"),
        ("2.6.0", State.OK, "older than all that are known"),
    ],
    indirect=["installed"],
)
def test_doctor_says_what_the_installed_release_has(installed: str, state: State, found: str) -> None:
    """Of npugraph_ex, and where one is if it has none."""
    (finding,) = examine()
    assert finding.state is state and found in finding.found and installed in finding.found
    assert (releases_with() in finding.fix) is (state is State.MISSING)


@pytest.mark.parametrize("installed", ["2.10.0.post4"], indirect=True)
@pytest.mark.parametrize("found_with", ["2.13.0", "2.10.0.post4", "not installed"])
def test_a_plan_that_was_found_with_another_release_is_applied_with_a_warning(
    installed: str, found_with: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A plan holds for the versions in its fingerprint; one that was simulated names none."""
    file = tmp_path / "plan.yaml"
    file.write_text(write_plan(Plan(), {"fingerprint": {"torch_npu": found_with}}, "npugraph-ex"))
    with caplog.at_level(logging.WARNING):
        sktune.apply(nn.Linear(1, 1), file)
    warned = [record.getMessage() for record in caplog.records]
    expected = f"{file} was found with torch_npu 2.13.0, here it is {installed}; run sktune recheck"
    assert warned == ([expected] if found_with == "2.13.0" else [])
