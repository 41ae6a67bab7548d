"""The command: what it prints, how it ends, and what bad input gets."""

import csv
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import sktune
from tests.builders import OWN_MODEL, ROOT, check, checked, refusal, sktune_command, sktune_process, succeeded

FAULTY = str(ROOT / "tests" / "models" / "faulty.py")

FEW_STEPS = ("--verify-steps", "256")
"""The thousands of a real search cost half a minute each time."""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "--model", "deepsek-v3"], "unknown model 'deepsek-v3'; did you mean 'deepseek-v3'"),
        (["search", "--model", "deepseek-v3", "--trials", "0"], "--trials must be at least 1"),
        (["search", "--model", "deepseek-v3", "--scale", "huge"], "no scale 'huge'; it has tiny, small, full"),
        (["search", "--model", "nothing.py:target"], "there is no file 'nothing.py'"),
        (["search", "--model", "deepseek-v3", "--sampler", "tpee"], "did you mean 'tpe'"),
        (["search", "--model", "deepseek-v3", "--device", "npu9"], "--device must be cpu, cuda or npu"),
        (["search", "--model", "deepseek-v3", "--backend", "gpu"], "--backend must be inductor, npu, npugraph-ex, sim"),
        (["search", "--model", "llama", "--backend", "npu", "--device", "cuda"], "npu runs on npu, not on cuda"),
        (["search", "--model", "llama", "--constants", "a3.yaml"], "add --backend sim"),
        (["search", "--model", "llama", "--time-budget", "10 minutes"], "a time such as 90s, 3m, 1h or 1h30m"),
        (["search", "--model", "llama", "--strategy", "botom-up"], "did you mean 'bottom-up'"),
        (["search", "--model", "llama", "--study", ""], "the value after --study is empty"),
        (["compare", "nothing"], "there is no study"),
        (["calibrate", "nothing.csv"], "nothing.csv"),
        (["search", "--model", "deepseek-v3", "--weights", "."], "no config.json there"),
        (["search", "--model", "deepseek-v3", "--space", "none.yaml"], "none.yaml cannot be read"),
        (["search", "--model", "deepseek-v3", "--storage", "nonsense"], "give a URL such as sqlite"),
        (["search", "--model", "deepseek-v3", "--trails", "3"], "No such option: --trails"),
        (["search"], "give --model, or --recipe"),
        (["show", "nothing"], "there is no study"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(tmp_path: Path, words: list[str], message: str) -> None:
    """The line names the fix, and nothing is left behind."""
    assert message in refusal(*words, folder=tmp_path)
    assert not list(tmp_path.rglob("*.db"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 1\nspace:\n  unist: [mlp]\n", "space.yaml:3: unknown key 'space.unist'; did you mean 'units'"),
        ("version: 1\nspace:\n  layers_per_scope: [some]\n", "space.yaml:3"),
        ("version: 1\nspace: {units: [a}\n", "space.yaml:2: this is not YAML"),
        ("version: 1\nversion: 1\nspace: {}\n", "space.yaml:2: key 'version' appears twice"),
        (
            "version: 1\nspace:\n  options: {inductor: {cpu: {cpp_wraper: [true]}}}\n",
            "no option 'cpp_wraper'; did you mean 'cpp_wrapper'",
        ),
        (
            "version: 1\nspace:\n  options: {inductor: {cpu: {cpp_wrapper: [1]}}}\n",
            "option cpp_wrapper must be one of [False, True], got 1",
        ),
        ("version: 1\nspace:\n  options: {indutcor: {}}\n", "backend 'indutcor'"),
    ],
)
def test_a_misspelt_space_is_refused_with_file_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    """Before a model is loaded."""
    (tmp_path / "space.yaml").write_text(text)
    assert message in refusal("search", "--model", OWN_MODEL, "--space", "space.yaml", folder=tmp_path)


@pytest.mark.slow
def test_a_unit_that_the_model_lacks_is_refused(tmp_path: Path, runs: Path) -> None:
    """Known only once the model is traced; the study can be used when the space is fixed."""
    (tmp_path / "space.yaml").write_text("version: 1\nspace:\n  units: [atention]\n")
    words = ["search", "--model", OWN_MODEL, "--backend", "sim", "--space", "space.yaml"]
    words += ["--trials", "1", "--runs", str(runs)]
    done = sktune_command(*words, folder=tmp_path)
    assert done.returncode == 2
    assert "did you mean 'attention'" in done.stderr
    (tmp_path / "space.yaml").write_text("version: 1\nspace:\n  units: [attention]\n")
    succeeded(*words, folder=tmp_path)


@pytest.mark.slow
def test_a_model_beyond_the_memory_is_refused(runs: Path) -> None:
    """Known only once it is built; the line says what makes it smaller."""
    words = ["search", "--model", "deepseek-v3", "--batch", "1000000000", "--trials", "1", "--runs", str(runs)]
    done = sktune_command(*words)
    assert done.returncode == 2, done.stderr
    assert "does not fit into memory" in done.stderr.splitlines()[-1]
    assert "choose a smaller --scale, --batch or --context" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_inspect_prints_units_parameters_size_and_starting_points() -> None:
    """For people on standard output, or as one JSON line with everything for people on standard error."""
    done = succeeded("inspect", "--model", "deepseek-v3")
    for expected in (
        "deepseek-v3, tiny: 4 of 61 layers",
        "layer kind dense: 1 layer (model.layers.0)",
        "layer kind moe: 3 layers (model.layers.1 to model.layers.3)",
        "lm_head",
        "moe.self_attn",
        "emulate_precision_casts",
        "whole step (1 scope)",
    ):
        assert expected in done.stdout
    found = json.loads(sktune_command("inspect", "--model", "deepseek-v3", "--json").stdout)
    assert found["event"] == "inspected"
    assert found["kinds"].keys() == {"dense", "moe"}
    assert found["plans"] > 10_000


@pytest.fixture(scope="module")
def own_study(runs: Path) -> tuple[list[dict[str, Any]], Path]:
    """Search the example model with --json; return the events and the study's folder."""
    words = ["search", "--model", OWN_MODEL, "--trials", "3", "--study", "own", "--runs", str(runs), "--json"]
    done = succeeded(*words, *FEW_STEPS)
    return [json.loads(line) for line in done.stdout.splitlines()], runs / "own"


@pytest.mark.slow
def test_the_last_json_line_sums_up_the_study(own_study: tuple[list[dict[str, Any]], Path]) -> None:
    """With the keys that programs rely on."""
    events, folder = own_study
    last = events[-1]
    keys = (
        "event study trials complete pruned baseline_ms best_ms speedup ci95 repeatability bit_identical "
        "processes verification model_difference gain_left plan"
    )
    assert list(last) == keys.split()
    assert last["event"] == "study_finished"
    assert last["trials"] == 3 == last["complete"] + sum(last["pruned"].values())
    assert set(last["pruned"]) == {"compile_failed", "timeout", "crashed", "mismatch", "slower"}
    assert last["speedup"] > 1
    assert 0 <= last["gain_left"] < 1
    assert last["ci95"][0] <= last["speedup"] <= last["ci95"][1]
    assert last["bit_identical"] is True
    assert Path(last["plan"]) == folder / "best_plan.yaml"


@pytest.mark.slow
def test_every_line_of_a_measured_search_follows_its_schema(own_study: tuple[list[dict[str, Any]], Path]) -> None:
    """Simulated ones are in test_schemas.py."""
    events, _ = own_study
    check(events)
    assert "noise_floor" in {event["event"] for event in events}


@pytest.mark.slow
def test_the_study_leaves_a_plan_a_table_and_a_report(own_study: tuple[list[dict[str, Any]], Path]) -> None:
    """The plan loads, the table has a row for each trial, the report the references."""
    events, folder = own_study
    plan = sktune.read_plan(folder / "best_plan.yaml")
    assert plan.scopes
    table = pd.read_csv(folder / "trials.csv")
    assert list(table["trial"]) == list(range(3))
    report = (folder / "report.md").read_text()
    for expected in (
        "times as fast as the baseline",
        "the model uncompiled",
        "torch.compile",
        "## Trials",
        "own model",
    ):
        assert expected in report
    finished = [event for event in events if event["event"] == "trial_finished"]
    assert all((folder / event["log"]).is_file() for event in finished)


@pytest.mark.slow
def test_the_same_command_again_returns_the_stored_result(own_study: tuple[list[dict[str, Any]], Path]) -> None:
    """Nothing is left to do, so no worker starts."""
    _, folder = own_study
    words = ["search", "--model", OWN_MODEL, "--study", "own", "--runs", str(folder.parent), "--json"]
    again = sktune_command(*words, *FEW_STEPS, "--trials", "3")
    assert [json.loads(line)["event"] for line in again.stdout.splitlines()] == ["study_finished"]


@pytest.mark.slow
def test_show_and_report_read_the_record(own_study: tuple[list[dict[str, Any]], Path]) -> None:
    """Without a model or a device."""
    _, folder = own_study
    shown = sktune_command("show", "own", "--runs", str(folder.parent))
    assert "times as fast as the baseline" in " ".join(shown.stdout.split())
    event = json.loads(sktune_command("show", "own", "--json", "--runs", str(folder.parent)).stdout.splitlines()[-1])
    with (folder / "trials.csv").open() as table:
        guilty = [row["blamed"] for row in csv.DictReader(table) if row["blamed"]]
    assert event["blamed"] == Counter(guilty)
    compared = {row["name"]: row for row in event["final"]}
    assert next(iter(compared)) == "baseline"
    assert event["speedup"] in {row["speedup"] for row in compared.values()}
    (folder / "report.md").unlink()
    succeeded("report", "own", "--runs", str(folder.parent))
    assert (folder / "report.md").is_file()


@pytest.mark.slow
def test_another_seed_is_another_study(own_study: tuple[list[dict[str, Any]], Path]) -> None:
    """A study of another fingerprint is refused, with both shown, and stays as it was."""
    _, folder = own_study
    before = (folder / "report.md").read_bytes()
    done = sktune_command(
        "search", "--model", OWN_MODEL, "--study", "own", "--runs", str(folder.parent), "--seed", "5", "--trials", "12"
    )
    assert done.returncode == 2
    assert "was made with seed '0', but now it is '5'" in done.stderr
    assert "--study" in done.stderr
    assert (folder / "report.md").read_bytes() == before


def start_search(runs: Path, *words: str) -> subprocess.Popen[str]:
    """Start a search of the faulty model's sound plans in the background."""
    command = [
        sys.executable,
        "-m",
        "tests.command",
        "search",
        "--model",
        OWN_MODEL,
        "--runs",
        str(runs),
        *words,
        *FEW_STEPS,
        "--json",
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(process: subprocess.Popen[str], event: str, count: int = 1) -> None:
    """Read the process's events until ``event`` has come ``count`` times."""
    assert process.stdout is not None
    for line in process.stdout:
        count -= json.loads(line)["event"] == event
        if count == 0:
            return
    raise AssertionError(f"ended without {event}: {process.stderr.read() if process.stderr else ''}")


@pytest.mark.slow
def test_a_killed_search_goes_on_where_it_was(runs: Path) -> None:
    """Killed at three moments, it ends with all trials, none lost, none run twice; no worker survives it."""
    words = ("--study", "killed", "--trials", "6", "--backend", "sim")  # what is killed is a process all the same
    for event, count in (("target_ready", 1), ("trial_stage", 2), ("trial_finished", 2)):
        process = start_search(runs, *words)
        wait_for(process, event, count)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    deadline = time.monotonic() + 10
    while workers_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not workers_of(process.pid)
    process = start_search(runs, *words)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert json.loads(output.splitlines()[-1])["trials"] == 6
    connection = sqlite3.connect(runs / "killed" / "study.db")
    states = [row[0] for row in connection.execute("SELECT state FROM trials ORDER BY number")]
    connection.close()
    assert len(states) == 6
    assert set(states) <= {"COMPLETE", "PRUNED"}
    table = pd.read_csv(runs / "killed" / "trials.csv")
    assert table["plan"].is_unique


def workers_of(parent: int) -> list[int]:
    """Return the workers that a dead search left behind."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                status = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended while we looked
            if b"sktune.worker.server" in words and int(status[1]) in (1, parent):
                found.append(int(entry.name))
    return found


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once(runs: Path) -> None:
    """It says how to go on; the first one would wait for the trial, as agents/test_mcp.py shows."""
    process = start_search(runs, "--study", "stopped", "--trials", "30")
    wait_for(process, "trial_stage")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "run the same command to continue" in errors
    assert checked(output)[-1]["event"] == "stopped"
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_that_nothing_could_be_tried_is_no_answer(tmp_path: Path) -> None:
    """Where every plan fails the search says so and fails, too."""
    space = ROOT / "tests" / "models" / "faulty.yaml"
    only_faults = tmp_path / "space.yaml"
    only_faults.write_text(
        space.read_text().replace("units: [mix, fault]", "units: [fault]").partition("  starting_points")[0]
    )
    done = sktune_command(
        "search",
        "--model",
        f"{FAULTY}:raises",
        "--space",
        str(only_faults),
        "--trials",
        "5",
        "--json",
        *FEW_STEPS,
        folder=tmp_path,
    )
    assert done.returncode == 1
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["event"] == "error"
    assert last["message"].startswith("Nothing could be tried: no plan could be measured (")
    assert "No scope" not in done.stderr
    assert not list(tmp_path.rglob("best_plan.yaml"))


def test_an_installed_sktune_needs_no_checkout(tmp_path: Path) -> None:
    """Presets are found from any folder."""
    done = sktune_process("search", "--model", "qwen", folder=tmp_path)
    assert "did you mean 'qwen3' or 'qwen3-moe'" in done.stderr
    assert list(tmp_path.iterdir()) == []
