"""The border between the two sides: tasks and reports are files of one version, and another version is refused."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sktune.core.errors import BadInputError
from sktune.core.plan import Plan, Scope
from sktune.core.space import SpaceSpec
from sktune.program.sktune_program.task import FORMAT, TASK, DecodeCall, RankTask
from sktune.recipes.agreement import decode_step
from sktune.recipes.rank_reports import RankReport, read_reports
from tests.program.pythons import STANDINS, VERSIONS, python, ran

PLAN = Plan((Scope("layers.0.attention", "layers.0.mlp", (("early-start", 0),)),))
CALL = DecodeCall("Model.forward")
TASKS = RankTask(False, "npu", decode=CALL, scopes=PLAN.marked, watches_state=True)
PROGRAM = str(STANDINS / "decode.py")


def reports_of(run: Path, task: RankTask, command: str) -> tuple[list[RankReport], dict[str, object]]:
    """Run the program without tensors in a Python; return its reports, and what it printed."""
    run.mkdir()
    task.write(run)
    done = ran([command, PROGRAM], STANDINS, STANDINS / "ascend", variables={"SKTUNE_RUN": str(run)})
    assert done.returncode == 0, done.stderr
    return read_reports(run), json.loads(done.stdout)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_rank_does_the_same_under_every_python(version: str, tmp_path: Path) -> None:
    """With a stand-in of torch: layout, digests and scopes are those of this Python."""
    here, there = (
        [reports_of(tmp_path / f"{name}-{index}", task, command) for index, task in enumerate((
            replace(TASKS, inspects=True), TASKS,
        ))]
        for name, command in (("here", sys.executable), ("there", python(version)))
    )  # fmt: skip
    call, layout = decode_step(there[0][0], SpaceSpec())
    assert (call.function, layout.digest) == ("Model.forward", decode_step(here[0][0], SpaceSpec())[1].digest)
    assert [unit.name for unit in layout.units] == [
        "layers.0.attention", "layers.0.mlp", "layers.1.attention", "layers.1.mlp",
    ]  # fmt: skip
    assert [layer.kind for layer in layout.layers] == ["dense", "dense_2"] or len(layout.kinds) == 1
    (one,), (other,) = here[1][0], there[1][0]
    assert other.error is None and other.has_ended and other.is_written is not None
    assert (other.outputs, other.states) == (one.outputs, one.states)
    assert len(other.outputs) == 8 and all(output.digests for output in other.outputs)
    label = f"{PLAN.scopes[0].label} [early-start=0]"
    assert there[1][1]["entered"] == [label] * 12
    names = there[1][1]["modules"]
    assert isinstance(names, list) and {name.partition(".")[0] for name in names} == {"sktune_program"}


def test_a_task_survives_its_file(tmp_path: Path) -> None:
    """Every field of it."""
    task = RankTask(True, "inductor", "Model", CALL, PLAN.marked, {"a": 1}, 7, 20, True, True)
    task.write(tmp_path)
    assert RankTask.read(tmp_path) == task
    assert json.loads((tmp_path / TASK).read_text())["format"] == FORMAT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": 2}', "has the format 2, and the sktune_program on PYTHONPATH knows 1"),
        ("{}", "has the format None"),
        ('{"format": 1, "decode": null}', "is no task"),
        ("[", "is no task"),
        ("[1]", "is no task"),
        (None, "cannot be read (No such file or directory)"),
    ],
)
def test_a_task_of_another_format_ends_the_rank_in_one_line(text: str | None, message: str, tmp_path: Path) -> None:
    """Which its report has, too, if it can write one."""
    if text is not None:
        (tmp_path / TASK).write_text(text)
    with pytest.raises(BadInputError):
        RankTask.read(tmp_path)
    done = ran([sys.executable, PROGRAM], STANDINS, variables={"SKTUNE_RUN": str(tmp_path)})
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and len(done.stderr.splitlines()) == 1
    (report,) = read_reports(tmp_path)
    assert report.error and message in report.error[1]


def test_a_report_of_another_format_is_refused_in_one_line(tmp_path: Path) -> None:
    """As where another sktune's folder comes first."""
    (tmp_path / "rank-0.jsonl").write_text('{"event": "start", "format": 2, "pid": 1, "host": 0}\n')
    (report,) = read_reports(tmp_path)
    assert report.error and "has the format 2, and this sktune knows 1" in report.error[1]
    assert len(report.error[1].splitlines()) == 1


def test_a_torch_whose_inductor_is_unknown_is_refused_in_one_line(tmp_path: Path) -> None:
    """The stand-in is of torch 2.6; the rank's report says so."""
    replace(TASKS, backend="inductor").write(tmp_path)
    done = ran([sys.executable, PROGRAM], STANDINS, STANDINS / "ascend", variables={"SKTUNE_RUN": str(tmp_path)})
    assert done.returncode != 0
    (report,) = read_reports(tmp_path)
    assert report.error is not None
    stage, message = report.error
    assert stage == "mark"
    assert message.startswith("it is not known which bits the Inductor of torch 2.6.0 keeps; use torch 2.8 to 2.15")


def test_a_plan_that_is_in_force_is_said_once(tmp_path: Path) -> None:
    """In production, on stderr; not where the plan fits nothing, and not in a search."""
    plan, run = tmp_path / "plan.json", tmp_path / "run"

    def stderr(first: str, **variables: str) -> str:
        scopes = [{"first": first, "last": "layers.0.mlp"}]
        plan.write_text(json.dumps({"version": 1, "backend": "npu", "plan": {"scopes": scopes}}))
        command = [sys.executable, str(tmp_path / "twice.py")]
        done = ran(command, STANDINS, STANDINS / "ascend", variables={"SKTUNE_PLAN": str(plan), **variables})
        assert done.returncode == 0, done.stderr
        return done.stderr

    program = Path(PROGRAM).read_text()
    again = "step = torch.compile(model.forward, dynamic=False)\n"
    assert again in program
    (tmp_path / "twice.py").write_text(program.replace(again, f"{again}step(1)\n{again}"))  # two steps that it fits
    assert stderr("layers.0.attention") == f"sktune: {plan} is in force: 1 scope on the decode step\n"
    said = stderr("layers.0.other")
    assert "runs without scopes" in said and "in force" not in said
    run.mkdir()
    TASKS.write(run)
    assert stderr("layers.0.attention", SKTUNE_RUN=str(run)) == ""
