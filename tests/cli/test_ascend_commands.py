"""The commands for Ascend, as far as they work on a machine without an NPU."""

import importlib.util
import json
from pathlib import Path

import pytest
import yaml

from sktune.backends.availability import examine, usable
from sktune.core.events.commands import State
from sktune.core.scope_options import has_superkernel
from sktune.sim.constants import ATLAS_A3
from sktune.tuning.request import Request, bind_space, check_space_options, space_spec
from tests import profiles
from tests.builders import TESTS, decoder_layout, refusal, sktune_command, succeeded

DATA = TESTS / "data"


def space_file(folder: Path, options: str) -> Path:
    """Write a space with options for the npu backend."""
    path = folder / "space.yaml"
    path.write_text(f"version: 1\nspace:\n  options:\n    npu:\n      npu:\n        {options}\n")
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("stream-funsion: [0, 1]", "no option 'stream-funsion'; did you mean 'stream-fusion'"),
        ("stream-fusion: [false, true]", "option stream-fusion must be 0 or 1, got False"),
        ('dcci-disable-on-kernel: ["Mul:Add"]', "cannot contain ':'"),
        ("feed-sync-all: [0, 1]", "is for rescue, not for a search"),
        ("strict-scope-check: [abort]", "is for probe, not for a search"),
        ("topology_sorting_strategy: [Stable]", "StableRDFS"),
        ("early-start: []", "has no values; list at least one"),
    ],
)
def test_wrong_options_in_a_space_are_reported_before_a_model_is_loaded(
    tmp_path: Path, options: str, message: str
) -> None:
    """One line, exit code 2, for any backend."""
    space = space_file(tmp_path, options)
    assert message in refusal("search", "--model", "llama", "--space", str(space), "--trials", "1", folder=tmp_path)


def test_doctor_names_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    """Every row that is not ok has a fix, what a prediction leaves out is counted; the last line is for programs."""
    done = succeeded("doctor", "--json", folder=tmp_path)
    event = json.loads(done.stdout.splitlines()[-1])
    assert event["event"] == "doctor_finished"
    assert {"inductor", "sim"} <= set(event["backends"])
    assert all(row["fix"] for row in event["findings"] if row["state"] != "ok")
    assert "how to get it" in done.stderr
    parts = event["not_modelled"]
    assert len(parts) == len({part["what"] for part in parts}) >= 8
    assert all(part["consequence"] for part in parts)
    assert any("libascendsk.so" in part["what"] for part in parts)
    assert f"not modelled: {len(parts)}" in done.stderr


def test_a_backend_that_lacks_something_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No C++ compiler, no inductor."""
    monkeypatch.setenv("PATH", "")
    findings = examine()
    assert any(finding.what == "C++ compiler" and finding.state is State.MISSING for finding in findings)
    assert "inductor" not in usable(findings)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch_npu") is not None, reason="torch_npu is there")
def test_a_search_without_torch_npu_says_so_in_one_line(tmp_path: Path) -> None:
    """Without a traceback: the line says what is missing, and what to do."""
    done = sktune_command("search", "--model", "llama", "--device", "npu", "--trials", "1", folder=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "torch_npu cannot be imported" in line
    assert "sktune doctor" in line


@pytest.mark.slow
def test_the_simulation_uses_calibrated_constants(tmp_path: Path) -> None:
    """A profile with larger gaps makes a slower simulated baseline."""
    kernels = profiles.kernel_details(profiles.deepseek(gap=9)).replace(",2.0,", ",9.0,")
    profiles.write(tmp_path / "kernel_details.csv", kernels)
    succeeded("calibrate", "kernel_details.csv", "--out", "mine.yaml", folder=tmp_path)
    constants = yaml.safe_load((tmp_path / "mine.yaml").read_text())["constants"]
    assert constants["dispatch_gap_us"]["value"] == pytest.approx(9.0, abs=0.5)
    search = ("search", "--model", "llama", "--backend", "sim", "--trials", "1", "--json")
    shipped = sktune_command(*search, "--study", "shipped", folder=tmp_path)
    fitted = sktune_command(*search, "--study", "fitted", "--constants", "mine.yaml", folder=tmp_path)
    baselines = [json.loads(each.stdout.splitlines()[-1])["baseline_ms"] for each in (shipped, fitted)]
    assert baselines[1] > baselines[0]


@pytest.mark.slow
def test_a_study_finds_what_its_device_is(tmp_path: Path) -> None:
    """On a simulated device with gaps that nobody expects, `show --why` and `calibrate --study` say so."""
    device = yaml.safe_load(ATLAS_A3.read_text(encoding="utf-8"))
    device["constants"]["dispatch_gap_us"]["value"] = 4.0
    (tmp_path / "device.yaml").write_text(yaml.safe_dump(device))
    search = ("search", "--model", "deepseek-v3", "--backend", "sim", "--study", "s")
    succeeded(*search, "--constants", "device.yaml", "--trials", "16", folder=tmp_path)
    done = sktune_command("show", "s", "--why", "--json", folder=tmp_path)
    known = {row["name"]: row for row in json.loads(done.stdout.splitlines()[-1])["why"]["device"]}
    vector = known["gap and head, less a barrier of vector cores"]
    assert vector["us"] > 3.0
    assert "gap and head, less" in done.stderr
    succeeded("calibrate", "--study", "s", "--out", "mine.yaml", folder=tmp_path)
    constants = yaml.safe_load((tmp_path / "mine.yaml").read_text())["constants"]
    parts = {"dispatch_gap_us": 1, "head_us": 1, "head_per_aiv_us": 24}  # of a vector operator on half of the cores
    task_us = sum(count * constants[name]["value"] for name, count in parts.items())
    assert task_us == pytest.approx(5.8, abs=1.5)
    assert constants["barrier_vector_us"]["value"] == 0.75
    for wrong, message in (
        (("calibrate",), "give either profiles or --study"),
        (("calibrate", "a.csv", "--study", "s"), "give either profiles or --study"),
        (("calibrate", "--study", "other"), "other"),
    ):
        done = sktune_command(*wrong, folder=tmp_path)
        assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
        assert message in done.stderr


@pytest.mark.parametrize(
    ("name", "known"), [("Ascend910_9391", True), ("Ascend910B3", True), ("Ascend310P3", False), ("Ascend910A", False)]
)
def test_products_are_recognised_by_the_names_of_their_dies(name: str, known: bool) -> None:
    """Atlas A3 and A2 have SuperKernel, earlier ones do not."""
    assert has_superkernel(name) is known


def test_a_profile_adds_the_hottest_operator_types_to_the_space(tmp_path: Path) -> None:
    """The dcci options take operator types, which only a profile can name; an empty value is left out of plans."""
    profile = profiles.write(tmp_path / "kernel_details.csv", profiles.kernel_details(profiles.deepseek()))
    request = Request("deepseek-v3", device="npu", profile=profile)
    spec, preset = request.target()
    space_file = space_spec(request, spec, preset)
    check_space_options(space_file)
    space = bind_space(space_file, decoder_layout(("dense", "moe")), spec)
    off, hottest, *_ = space.choices["dcci-disable-on-kernel"]
    assert off == ""
    assert str(hottest) in profile.read_text()
    values = {**space.starting_points[0].values, "dcci-disable-on-kernel": hottest}
    assert space.plan(space.starting_points[0].values).scopes[0].options == ()
    assert space.plan(values).scopes[0].options == (("dcci-disable-on-kernel", hottest),)


def test_fusion_is_reported_from_dump_and_profile(tmp_path: Path) -> None:
    """TorchAir's dump shows what was marked; the profile shows that a SuperKernel was formed."""
    dump = DATA / "torchair_dump.txt"
    done = succeeded("fusion", str(dump), "--json", folder=tmp_path)
    event = json.loads(done.stdout.splitlines()[-1])
    scope = event["scopes"][0]
    assert scope["marked"]
    assert "what was fused is not known" in done.stderr
    first, last = scope["marked"][0]["name"], scope["marked"][-1]["name"]
    kernels = [
        profiles.Kernel("SuperKernel", 0, 9, "MIX_AIC", step=1, name=f"sk_{scope['label']}_start_{first}_end_{last}")
    ]
    profile = profiles.write(tmp_path / "kernel_details.csv", profiles.kernel_details(kernels))
    done = sktune_command("fusion", str(dump), "--profile", str(profile), folder=tmp_path)
    assert "1 SuperKernel (" in done.stdout
    log = tmp_path / "eb0500.log"
    log.write_text(
        "EB0500: [Super Kernel] Invalid compile option: feed-sync-all=3, which should be 0 or 1.[FUNC:Check]\n"
    )
    done = sktune_command("fusion", str(dump), "--log", str(log), "--json", folder=tmp_path)
    assert "logs: the compiler rejects the options (EB0500)" in done.stderr
    assert "feed-sync-all is 0 or 1" in json.loads(done.stdout)["findings"][0]
    log.write_text("all is well\n")
    done = sktune_command("fusion", str(dump), "--log", str(log), folder=tmp_path)
    assert done.stdout.splitlines()[-1] == "logs: they name no scope, and no error that is known"
    missing = sktune_command("fusion", "nothing.txt", folder=tmp_path)
    assert (missing.returncode, len(missing.stderr.strip().splitlines())) == (2, 1)
