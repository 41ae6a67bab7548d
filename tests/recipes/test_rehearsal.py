"""`sktune search --rehearse`: one start of the program tells what a search would do, and leaves nothing behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import sktune
from sktune.core.errors import BackendError, BadInputError
from sktune.core.space import SpaceSpec
from sktune.program.sktune_program.task import DecodeCall
from sktune.recipes.rehearsal import FirstStart, Rehearsal, first_start, rehearse
from sktune.recipes.run import last_line_text
from sktune.reports.plan_names import plan_name
from sktune.targets.recipe import read_recipe
from sktune.tuning.loop import run
from sktune.tuning.request import Request
from tests import warm
from tests.builders import TESTS, decoder_layout, refusal, sktune_command, succeeded
from tests.fake_runner import FakeRunner
from tests.recipes.reporting import REPORTING
from tests.releases import keeps_bits

IGNORED = "res/\n__pycache__/\nlog_*.log\n"
"""What the projects themselves write; cann-recipes-infer ignores it, too."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with copies of the projects, in which ``python3`` is the Python of these tests, started warm."""
    for name in ("ranks", "faulty", "device"):
        shutil.copytree(TESTS / "projects" / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    folders = (warm.python_in(tmp_path / "bin").parent, Path(sys.executable).parent)
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, folders), os.environ["PATH"]]))
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    return tmp_path


def request_of(project: Path, name: str, **options: object) -> Request:
    """Return the request of a search for a project."""
    return Request("", recipe=project / name / "recipe.yaml", runs=project / "runs", **options)  # type: ignore[arg-type]


def git(folder: Path, *arguments: str) -> str:
    """Run git, and return what it prints."""
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.slow
def test_two_ranks_are_rehearsed(project: Path) -> None:
    """The facts are those of the program; no file is left in its folder or in that of the studies."""
    root = project / "ranks"
    (root / ".gitignore").write_text(IGNORED)
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "checkout")
    done = succeeded("search", "--recipe", "ranks/recipe.yaml", "--rehearse", "--json", folder=project)
    (line,) = done.stdout.splitlines()
    event = json.loads(line)
    assert event["event"] == "rehearsal" and event["can_start"]
    assert (event["decode"], event["ranks"], event["decode_steps"]) == ("TinyMoeForCausalLM.decode", 2, 160)
    assert (event["units"], event["layers"], event["kinds"]) == (11, 2, {"dense": 1, "moe": 1})
    assert 0 < event["loading_seconds"] < event["seconds"]
    assert event["loading_seconds"] + event["decode_steps"] * event["step_seconds"] < event["seconds"]
    assert [each["trials"] for each in event["durations"]] == [10, 20, 40]
    for each in event["durations"]:
        assert each["seconds"] == pytest.approx(each["runs"] * event["seconds"] + each["compile_seconds"])
    assert [each["trial"] for each in event["first_trials"]] == [0]
    assert not event["stand_ins"]
    assert "a search could start here" in done.stderr and "the sampler decides" in done.stderr
    assert not (project / "runs").exists()
    assert git(root, "status", "--porcelain") == ""


@keeps_bits
@pytest.mark.slow
def test_two_ranks_are_searched_as_was_rehearsed(project: Path) -> None:
    """A verified winner, or an honest "no scope", after as many runs as was said; the program's files are as before."""
    request = request_of(project, "ranks", trials=2, verify_steps=16, exact_starting_points=True)
    rehearsal = rehearse(request)
    result = run(request)
    layout = rehearsal.space.layout
    assert layout.digest == rehearsal.start.layout.digest
    did = [(record.number, record.origin, plan_name(record.plan, layout)) for record in result.trials]
    assert did == [(trial.trial, trial.origin, trial.shape) for trial in rehearsal.first]
    first = result.trials[0].outcome
    assert first and first.speedup, first
    complete = {str(record.number) for record in result.trials if record.outcome and record.outcome.is_complete}
    if len(complete) == 2:
        unverified = 0 if result.winner else 2  # only a winner runs twice more, on all steps
        assert runs_in(result.folder) == 1 + rehearsal.runs(2) - unverified
    assert result.verdict is not None
    assert {row.name for row in result.final} == {"baseline", *complete}
    assert result.final[0].bit_identical
    assert result.facts.alternates
    assert result.facts.command == "bash executor/scripts/infer.sh --model tiny_moe --yaml tiny_moe_2tp.yaml"
    assert (result.facts.decode or {})["function"] == "TinyMoeForCausalLM.decode"
    config = project / "ranks" / "models" / "tiny_moe" / "config"
    assert [path.name for path in config.iterdir()] == ["tiny_moe_2tp.yaml"]


@pytest.mark.parametrize(("strategy", "foretold"), [("partition", 1), ("random", 2)])
def test_trials_are_foretold_up_to_the_first_that_depends_on_a_result(
    project: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, foretold: int
) -> None:
    """For each strategy the same trials in the same order."""
    decode = DecodeCall("Model.decode")
    start = FirstStart(decode, decoder_layout(("dense", "moe")), 160, True, (), 1.0, 0.01, 3.0)
    monkeypatch.setattr("sktune.recipes.rehearsal.first_start", lambda *_, **__: start)
    monkeypatch.setattr("sktune.recipes.rehearsal.examine_recipe", lambda recipe: ())
    request = request_of(project, "ranks", strategy=strategy, trials=2)
    rehearsal = rehearse(request)
    runner = FakeRunner(layout=start.layout, latency_ms=lambda plan: 9.0 if plan.scopes else 10.0)
    result = run(request, runner_factory=lambda setup: runner)
    did = [(record.number, record.origin, plan_name(record.plan, start.layout)) for record in result.trials]
    said = [(trial.trial, trial.origin, trial.shape) for trial in rehearsal.first]
    assert len(said) == foretold
    assert did[:foretold] == said
    assert {origin for _, origin, _ in did[foretold:]} <= set(rehearsal.later)


def runs_in(folder: Path) -> int:
    """Return how many runs of the program a study's folder has."""
    return len(list((folder / "work").glob("run-*")))


@pytest.mark.slow
def test_what_a_search_with_few_steps_cannot_measure(project: Path) -> None:
    """The first start is enough to know it."""
    path = project / "ranks" / "recipe.yaml"
    recipe = yaml.safe_load(path.read_text())
    recipe["yaml"]["set"] = {"scheduler_config.max_new_tokens": 9}
    path.write_text(yaml.safe_dump(recipe))
    with pytest.raises(BackendError, match="9 decode steps, but 10 are needed"):
        rehearse(request_of(project, "ranks"))


def test_the_wait_for_another_inference_is_in_no_figure(tmp_path: Path) -> None:
    """What is measured begins with the program's start."""
    called = '    events.append({"event": "called", "call": call, "clock_s": [time.monotonic()] * 2})\n'
    program = REPORTING.replace('"calls": 9', '"calls": 12').replace("else:\n    steps", f"{called}else:\n    steps")
    (tmp_path / "program.py").write_text(program)
    other = tmp_path / "infer.py"
    other.write_text("import time; print('up', flush=True); time.sleep(4)")
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({
        "version": 1, "name": "waits", "command": [sys.executable, "program.py", "12"], "latency": "steps",
        "other_inference": f"python.*{tmp_path.name}/infer\\.py",
    }))  # fmt: skip
    with subprocess.Popen([sys.executable, str(other)], stdout=subprocess.PIPE) as beside:
        assert beside.stdout is not None
        beside.stdout.readline()
        start = first_start(read_recipe(path), SpaceSpec(), tmp_path, stands_in=False)
        assert beside.wait() == 0
    assert 0 < start.loading_s + start.steps * start.step_s < start.seconds


def test_a_program_that_fails_to_start(project: Path) -> None:
    """One line with the last line of its log, which is removed."""
    program = project / "ranks" / "executor" / "core" / "model_worker.py"
    program.write_text("raise FileNotFoundError('no weights in /data')\n" + program.read_text())
    done = sktune_command("search", "--recipe", "ranks/recipe.yaml", "--rehearse", folder=project)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "its last line: FileNotFoundError: no weights in /data" in line
    assert not (project / "runs").exists()


def test_a_rank_that_fails_after_its_model_is_built(project: Path) -> None:
    """How far it got is said, with what ended it; the script itself ends with exit code 0."""
    program = project / "ranks" / "executor" / "core" / "model_worker.py"
    program.write_text(
        program.read_text().replace("    worker.generate(", "    raise ValueError('no input')\n    worker(")
    )
    with pytest.raises(BackendError) as failure:
        rehearse(request_of(project, "ranks"))
    assert "rank 0: it ended with ValueError: no input" in str(failure.value)
    assert "built the model of TinyMoeForCausalLM.decode, and no decode step began" in str(failure.value)


def test_what_is_missing_is_said_before_the_start(project: Path) -> None:
    """As by ``doctor``; the program is not started."""
    path = project / "ranks" / "recipe.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "ranks": 3}))
    (project / "ranks" / "executor" / "scripts" / "infer.sh").unlink()
    with pytest.raises(BackendError, match=r"was not started: command: there is no executor/scripts/infer\.sh"):
        rehearse(request_of(project, "ranks"))


def rehearsed_device(project: Path, monkeypatch: pytest.MonkeyPatch, operator: str) -> Rehearsal:
    """Rehearse the program for an NPU, which calls an operator of torch_npu somewhere."""
    monkeypatch.setenv("OPERATOR", operator)
    return rehearse(request_of(project, "device"))


def test_a_program_for_an_npu_without_its_operators(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Device, HCCL, streams, scopes and TorchAir's backend have stand-ins; a search could not start here."""
    rehearsal = rehearsed_device(project, monkeypatch, "")
    assert rehearsal.start.stand_ins == ("torch_npu", "torchair")
    assert (rehearsal.start.decode.function, rehearsal.start.steps) == ("Model.decode", 16)
    assert not rehearsal.can_start
    assert not (project / "runs").exists()


@pytest.mark.parametrize(
    ("operator", "name", "progress"),
    [
        ("import", "torch.npu.get_device_name", "no rank was about to compile a model"),
        ("prefill", "torch_npu.npu_rms_norm", "built the model of Model.decode, and no decode step began"),
        ("decode", "torch_npu.npu_rms_norm", "built the model of Model.decode, and decode steps began"),
    ],
)
def test_an_operator_that_needs_an_npu(
    project: Path, monkeypatch: pytest.MonkeyPatch, operator: str, name: str, progress: str
) -> None:
    """One line names it, and how far the program got; no operator is imitated."""
    with pytest.raises(BackendError) as failure:
        rehearsed_device(project, monkeypatch, operator)
    assert f"{name} needs an NPU" in str(failure.value)
    assert progress in str(failure.value)
    assert "\n" not in str(failure.value)


def test_a_search_has_no_stand_ins(project: Path) -> None:
    """They are for rehearsals alone: without torch_npu the first run of a search fails."""
    with pytest.raises(BackendError, match="the program does not run eagerly"):
        run(request_of(project, "device", trials=1))
    assert "No module named 'torch_npu'" in last_line_text(project / "device" / "log_0.log")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_rehearsal_that_is_stopped(project: Path, number: signal.Signals) -> None:
    """The program is ended, and nothing is left; also where a shell runs it in the background, without SIGINT."""
    (project / "device" / "generate.py").write_text(
        "import os, time\nopen('began', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    command = [sys.executable, "-m", "tests.command", "search", "--recipe", "device/recipe.yaml", "--rehearse"]
    began = project / "device" / "began"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        signal.signal(signal.SIGINT, before)
        while not (began.exists() and began.read_text()):
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == 1
    assert "stopped" in errors and len(errors.strip().splitlines()) == 1
    assert not is_running(int(began.read_text()))
    assert not (project / "runs").exists()


def is_running(pid: int) -> bool:
    """Return whether a process has not ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "llama", "--rehearse"], "give --recipe"),
        (["--recipe", "ranks/recipe.yaml", "--rehearse", "--engine", "ray"], "leave out --engine"),
        (["--models", "models.yaml", "--rehearse"], "leave out --models"),
    ],
)
def test_a_rehearsal_is_of_one_recipe_on_this_host(project: Path, arguments: list[str], words: str) -> None:
    """One line, exit code 2."""
    assert words in refusal("search", *arguments, folder=project)


def test_a_rehearsal_is_no_result() -> None:
    """``sktune.search`` says where it is."""
    with pytest.raises(BadInputError, match=r"sktune\.recipes\.rehearsal\.rehearse"):
        sktune.search(recipe="recipe.yaml", rehearse=True)
