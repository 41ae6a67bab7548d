"""Programs that sktune does not own: recipes, what a rank sees, and every way in which a run can fail."""

import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from sktune.core.errors import BackendError, BadInputError, MachineError, TargetError
from sktune.core.outcome import Outcome, Reason, Stage
from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import plan_values, read_plan_file, write_plan
from sktune.launch import SITE
from sktune.program.sktune_program.rank import GatedMarks, MarkedStep
from sktune.program.sktune_program.reporter import Reporter
from sktune.program.sktune_program.task import VERIFIED_STEPS, RankTask, is_baselines_turn
from sktune.recipes.discover import draft_recipe
from sktune.recipes.peers import LocalPeer
from sktune.recipes.rank_reports import draw_turns, read_reports
from sktune.recipes.run import Launcher, step_latencies_ms
from sktune.recipes.runner import ProgramRunner
from sktune.recipes.step_times import (
    FIRST_ROUND,
    MIN_ALTERNATING,
    compare_runs,
    compare_turns,
    compare_two,
    latency_of,
    rounds,
)
from sktune.recipes.yaml_copy import varied_yaml
from sktune.reports.application import how_to_apply
from sktune.study.result import result_of
from sktune.study.study import TuningStudy, sqlite_url
from sktune.targets import RecipeSpec
from sktune.targets.recipe import read_recipe
from sktune.tuning.request import Request
from sktune.worker.jobs import Compare, Judge, SampleNoiseFloor
from tests import warm
from tests.builders import TESTS, one_line_error, study_of
from tests.program.pythons import STANDINS, ran
from tests.recipes.reporting import program_runner, reporting

PROJECTS = TESTS / "projects"
EXACT = (("emulate_precision_casts", True), ("matmul", "aten"), ("reductions", "aten"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with copies of the projects, in which ``python3`` is the Python of these tests, started warm."""
    for name in ("ranks", "plain", "faulty"):
        shutil.copytree(PROJECTS / name, tmp_path / name)
    folders = (warm.python_in(tmp_path / "bin").parent, Path(sys.executable).parent)
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, folders), os.environ["PATH"]]))
    return tmp_path


class TestLatencyLines:
    """The log formats of cann-recipes-infer."""

    def test_steps_and_their_drafts(self) -> None:
        """A draft model's part belongs to the step before it; prefill is none, averages do not count beside steps."""
        log = (
            "[INFO][2026-01-01 10:00:00.123][scheduler.py:570] [Main] Inference time (prefill): 300.00 ms\n"
            "[INFO][2026-01-01 10:00:00.123][scheduler.py:570] [Main] Inference time (decode): 12.34 ms\n"
            "[INFO][2026-01-01 10:00:00.125][scheduler.py:572] [MTP 0] Inference time (decode): 1.25 ms\n"
            "[INFO][2026-01-01 10:00:00.223][scheduler.py:570] [Main] Inference time (decode): 12.00 ms\n"
            "[INFO][2026-01-01 10:00:00.323][infer.py:116] tiny decode average inference time cost is 12.17 ms\n"
        )
        assert step_latencies_ms(log) == [13.59, 12.0]

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("tiny decode average inference time cost is 12.34 ms", [12.34]),
            ("tiny main and mtp model average inference time cost is 7.5 ms", [7.5]),
            ("tiny ffn average inference time cost is 3 ms", [3.0]),
            ("tiny inference time cost of decode is 9.25 ms", [9.25]),
            ("[decode] inference time cost 8.5 ms", [8.5]),
            ("nothing of that kind", []),
        ],
    )
    def test_other_runners(self, line: str, expected: list[float]) -> None:
        """Older runners, and those of single models."""
        assert step_latencies_ms(line) == expected

    def test_a_pattern_of_the_users_own(self) -> None:
        """Its first group is milliseconds."""
        assert step_latencies_ms("step 1: 4.5ms\nstep 2: 4.25ms\n", r"step \d+: ([\d.]+)ms") == [4.5, 4.25]

    @pytest.mark.parametrize("found", ["n/a", "", "-"])
    def test_what_is_no_number_is_not_a_latency(self, found: str) -> None:
        """A pattern that matches too much does not end the search in a traceback."""
        assert math.isnan(step_latencies_ms(f"step 1: {found}ms", r"step \d+: (.*)ms")[0])

    def test_a_group_that_took_no_part_is_not_a_latency(self) -> None:
        """Of an alternative that did not match."""
        assert math.isnan(step_latencies_ms("skipped", r"step: (\d+)|skipped")[0])

    def test_thousands_may_be_separated(self) -> None:
        """As logs for people do."""
        assert step_latencies_ms("step 1: 1,234.5ms", r"step \d+: (.*)ms") == [1234.5]


class TestTurns:
    """Runs that alternate between plan and baseline."""

    def test_verified_steps_are_the_plans_and_later_ones_shared(self) -> None:
        """In each block of four both have two turns, in mirror order; which comes first is drawn."""
        turns = turns_of(VERIFIED_STEPS + 400)
        assert not any(turns[:VERIFIED_STEPS])
        blocks = {tuple(turns[start : start + 4]) for start in range(VERIFIED_STEPS, len(turns), 4)}
        assert blocks == {(True, False, False, True), (False, True, True, False)}

    def test_no_two_runs_have_the_same_order(self) -> None:
        """What comes first in a block is not the same in every run; what was drawn gives the order again."""
        first, second = draw_turns(), draw_turns()
        assert turns_of(400, first) != turns_of(400, second)
        assert turns_of(400, first) == turns_of(400, first)

    def test_each_coin_is_fair(self) -> None:
        """Over many runs each block begins with the baseline in half of them: 400 tosses, within five deviations."""
        begins = [[turns_of(VERIFIED_STEPS + 8)[place] for place in (8, 12)] for _ in range(400)]
        for place in range(2):
            assert abs(sum(begin[place] for begin in begins) - 200) < 50
        assert abs(sum(first == second for first, second in begins) - 200) < 50

    def test_what_slows_the_machine_cancels(self) -> None:
        """The machine becomes half as fast again and again; the slowest rank counts."""
        weather, turns = [1.5 if step % 37 < 15 else 1.0 for step in range(200)], turns_of(200)

        def steps(plan_ms: float) -> list[float]:
            return [(4.0 if turns[step] else plan_ms) * slow for step, slow in enumerate(weather)]

        found = compare_turns([steps(2.0), steps(2.5)], turns)
        assert found.latency_ms == pytest.approx(2.5, rel=0.5)
        assert found.ratio == pytest.approx(4.0 / 2.5, rel=0.01)
        assert found.bounds[0] > 1.5

    def test_the_shortest_run_that_alternates_decides(self) -> None:
        """Whole blocks count, after the one in which the baseline's step is compiled."""
        turns = turns_of(MIN_ALTERNATING + 3)
        steps = [4.0 if is_baselines else 2.0 for is_baselines in turns]
        assert rounds(steps, turns).shape == ((MIN_ALTERNATING - FIRST_ROUND) // 2, 2)
        assert compare_turns([steps], turns).bounds[0] > 1


def turns_of(steps: int, drawn: int | None = None) -> list[bool]:
    """Return the turns of a run, of a new one where none is given."""
    drawn = draw_turns() if drawn is None else drawn
    return [is_baselines_turn(step, drawn) for step in range(steps)]


class TestRecipeFile:
    """What a user can get wrong."""

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"ranks": 0}, "ranks"),
            ({"comand": "x"}, "did you mean 'command'"),
            ({"command": "bash 'unclosed"}, "cannot be split"),
            ({"directory": "nowhere"}, "not a folder"),
            ({"latency": {"pattern": "no group"}}, "group"),
            ({"logs": "/abs/log_*.log"}, "not a pattern for files below directory"),
            ({"logs": ""}, "not a pattern for files below directory"),
            ({"other_inference": "server("}, "not a regular expression"),
            ({"other_inference": ""}, "matches every process"),
            ({"command": "bash infer.sh {yaml_file}"}, "{yaml_name}"),
            ({"yaml": {"file": "none.yaml"}}, "there is no file"),
            ({"command": "bash infer.sh", "yaml": {"file": "recipe.yaml"}}, "{yaml"),
        ],
    )
    def test_a_mistake_is_named_with_its_fix(self, project: Path, change: dict[str, object], message: str) -> None:
        """One line, with the key."""
        path = project / "ranks" / "recipe.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
        with pytest.raises(TargetError) as failure:
            read_recipe(path)
        assert message in str(failure.value)
        assert "\n" not in str(failure.value)

    @pytest.mark.parametrize("change", [{"directory": "loop"}, {"yaml": {"file": "loop"}}])
    def test_a_link_to_itself_is_no_file(self, project: Path, change: dict[str, object]) -> None:
        """Python's ``resolve`` raises RuntimeError."""
        path = project / "ranks" / "recipe.yaml"
        (path.parent / "loop").symlink_to("loop")
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
        with pytest.raises(TargetError, match=r"not a folder|there is no file loop"):
            read_recipe(path)

    def test_braces_of_the_program_stay(self, project: Path) -> None:
        """JSON and shell have their own; only the YAML's places are filled."""
        path = project / "ranks" / "recipe.yaml"
        command = ["python3", "-c", "x={}; '{0} {'", '{"a": 1}', "--yaml={yaml}", "{yaml_name}"]
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"command": command}))
        assert read_recipe(path).argv(Path("/copy.yaml")) == [*command[:4], "--yaml=/copy.yaml", "copy.yaml"]

    def test_what_the_program_decides_is_refused(self, project: Path) -> None:
        """A search takes no model options beside a recipe, and no recipe beside a model."""
        recipe = project / "ranks" / "recipe.yaml"
        with pytest.raises(BadInputError, match="--dtype"):
            Request("", recipe=recipe, dtype="float32")
        with pytest.raises(BadInputError, match="--recipe"):
            Request("llama", recipe=recipe)
        with pytest.raises(BadInputError, match="--recipe"):
            Request("")

    def test_a_change_of_the_programs_source_is_another_target(self, project: Path) -> None:
        """Figures hold for the source that was run."""
        before = Request("", recipe=project / "ranks" / "recipe.yaml").target()[0].fingerprint()
        source = project / "ranks" / "models" / "tiny_moe" / "models" / "modeling_tiny_moe.py"
        source.write_text(source.read_text().replace("192, 2", "192, 3"))
        assert Request("", recipe=project / "ranks" / "recipe.yaml").target()[0].fingerprint() != before


class TestVariedYaml:
    """The copy that the program reads."""

    def test_scopes_of_the_program_are_off_and_values_set(self, tmp_path: Path) -> None:
        """Wherever the switch is kept; new keys are made."""
        file = tmp_path / "a.yaml"
        file.write_text("model_config:\n  custom_params: {enable_superkernel: True}\n  next_n: 1\n")
        data = yaml.safe_load(varied_yaml(file, {"model_config.next_n": 0, "scheduler_config.max_new_tokens": 32}))
        assert data == {
            "model_config": {"custom_params": {"enable_superkernel": False}, "next_n": 0},
            "scheduler_config": {"max_new_tokens": 32},
        }

    def test_a_path_through_a_value_is_refused(self, tmp_path: Path) -> None:
        """With the key that is no mapping."""
        file = tmp_path / "a.yaml"
        file.write_text("exe_mode: ge_graph\n")
        with pytest.raises(TargetError, match="exe_mode"):
            varied_yaml(file, {"exe_mode.inner": 1})


class TestScouting:
    """``sktune recipe init``."""

    def test_a_checkout_of_recipes(self, project: Path) -> None:
        """Command, YAML, ranks and logs are found, and what is written is a recipe."""
        draft = draft_recipe(project / "ranks", Path("tiny_moe_2tp.yaml"))
        (project / "out.yaml").write_text(draft.text)
        recipe = read_recipe(project / "out.yaml")
        assert recipe.command[-1] == "{yaml_name}"
        assert recipe.ranks == 2
        assert recipe.yaml is not None
        assert recipe.yaml.file.name == "tiny_moe_2tp.yaml"
        assert recipe.logs == "models/tiny_moe/res/*/*tiny_moe_2tp*/log_*.log"

    def test_what_would_spoil_a_comparison_is_set_otherwise(self, project: Path) -> None:
        """Sampling, caches, modes without scopes, and runs that take for ever."""
        file = project / "ranks" / "models" / "tiny_moe" / "config" / "tiny_moe_2tp.yaml"
        text = file.read_text().replace("ge_graph", "eager").replace("160", "4096")
        file.write_text(text.replace("model_name:", "enable_cache_compile: True\n  temperature: 0.7\n  model_name:"))
        draft = draft_recipe(project / "ranks" / "models" / "tiny_moe")
        assert draft.values["yaml"]["set"]["scheduler_config.max_new_tokens"] >= MIN_ALTERNATING
        assert draft.values["yaml"]["set"] == {
            "model_config.enable_cache_compile": False,
            "model_config.temperature": 0.0,
            "model_config.exe_mode": "ge_graph",
            "scheduler_config.max_new_tokens": 160,
        }

    def test_a_program_of_its_own(self, project: Path) -> None:
        """The only program is the command; what cannot be known is said."""
        draft = draft_recipe(project / "plain")
        assert draft.values["command"] == "python3 generate.py"
        assert any("ranks" in line for line in draft.to_do)

    def test_a_command_with_an_open_quote(self, project: Path) -> None:
        """One line that names the option."""
        with one_line_error(BadInputError, "--command cannot be split"):
            draft_recipe(project / "plain", command="x 'y")

    def test_nothing_to_start(self, tmp_path: Path) -> None:
        """The fix is an option."""
        with pytest.raises(BadInputError, match="--command"):
            draft_recipe(tmp_path)


def scoped(*options: tuple[str, object]) -> Plan:
    """Return a plan for the faulty program: its first block."""
    return Plan((Scope("blocks.0", "blocks.0", options or EXACT),))  # type: ignore[arg-type]


def test_a_run_too_short_to_be_verified_is_none(tmp_path: Path) -> None:
    """One average latency does not hide that outputs of some steps, and the state after them, were never there."""
    command = [sys.executable, "program.py", f"{VERIFIED_STEPS - 1}"]
    with (
        reporting(tmp_path, command=command) as runner,
        pytest.raises(BackendError, match="rank 0 ran 7 decode steps, and verification needs 8; have the program"),
    ):
        runner.open()
    with reporting(tmp_path / "long") as runner:
        assert runner.open().layout.units


@pytest.mark.parametrize("latency", ["0", "0.0", "n/a"])
def test_a_step_that_took_no_time_is_refused(tmp_path: Path, latency: str) -> None:
    """In one line that says what to change; no logarithm is taken of it."""
    with (
        reporting(tmp_path, latency={"pattern": "decode (.*) ms"}) as runner,
        pytest.raises(BackendError, match=r"decode step of .* ms; make the latency pattern match times above 0"),
    ):
        program = tmp_path / "program.py"
        program.write_text(
            program.read_text().replace("tiny decode average inference time cost is 12.34", f"decode {latency}")
        )
        runner.open()


def test_an_average_alone_says_nothing() -> None:
    """It has no interval, be it a plan's or the baseline's."""
    plan, baseline = latency_of([[5.0]]), latency_of([[10.0]])
    for found in (compare_two(plan, baseline), compare_runs(plan, [baseline, baseline])):
        assert found.ratio == pytest.approx(2.0)
        assert found.bounds[0] < 0.2
        assert found.bounds[1] > 20


def test_a_file_of_the_users_is_not_taken_for_the_yamls_copy(tmp_path: Path) -> None:
    """It is neither overwritten nor deleted; a copy that a killed search has left is in nobody's way."""
    (tmp_path / "a.yaml").write_text("x: 1\n")
    mine = tmp_path / "a_sktune.yaml"
    mine.write_text("x: 2\n")
    keep = "import shutil, sys; shutil.copy('a_sktune.yaml', 'left.yaml'); sys.argv[1] = '8'"
    command = [sys.executable, "-c", f"{keep}; import runpy; runpy.run_path('program.py')", "{yaml_name}"]
    with reporting(tmp_path, command=command, yaml={"file": "a.yaml", "set": {"x": 3}}) as runner:
        with pytest.raises(TargetError, match=r"a_sktune\.yaml was not written by sktune.*; rename it"):
            runner.open()
        assert mine.read_text() == "x: 2\n"
        mine.unlink()
        runner.open()
        assert not mine.exists()
        assert yaml.safe_load((tmp_path / "left.yaml").read_text()) == {"x": 3}
        (tmp_path / "left.yaml").rename(mine)
        runner.run(Judge(Plan((Scope("a", "a"),)), "trial.log"), lambda stage: None)
        assert not mine.exists()


def test_folders_of_runs_may_be_deleted_between_two(tmp_path: Path) -> None:
    """The next run has a number that no other has."""
    with reporting(tmp_path) as runner:
        runner.open()
        shutil.rmtree(tmp_path / "study" / "work" / "run-0001")
        runner.run(Judge(Plan((Scope("a", "a"),)), "trial.log"), lambda stage: None)
    assert [path.name[-1] for path in sorted((tmp_path / "study" / "work").iterdir())] == ["2", "3", "4"]


def test_a_resumed_search_reads_its_own_runs_alone(tmp_path: Path) -> None:
    """What the run before a resume has printed is kept, and is no latency of the next one."""
    ratios = []
    for _ in range(2):
        with reporting(tmp_path) as runner:
            runner.open()
            outcome = runner.run(Judge(Plan((Scope("a", "a"),)), "trial.log"), lambda stage: None)
        assert outcome.reason is not Reason.CRASHED, outcome.detail
        ratios.append(outcome.speedup)
    assert ratios[0] == ratios[1]
    assert "12.34 ms" in (tmp_path / "study" / "logs" / "trial.before-1.log").read_text()


def test_logs_are_found_if_the_clock_was_set_back(tmp_path: Path) -> None:
    """They are older than the run that has written them; those of earlier runs are not read again."""
    lines = (
        "import os, runpy, sys; sys.argv = ['program.py', '8']; count = len([*os.scandir()])",
        "sys.stdout = open(f'log_{count}.log', 'w'); runpy.run_path('program.py'); sys.stdout.close()",
        "os.utime(f'log_{count}.log', (1, 1))",
    )
    with reporting(tmp_path, command=[sys.executable, "-c", "; ".join(lines)], logs="log_*.log") as runner:
        runner.open()
        outcome = runner.run(Judge(Plan((Scope("a", "a"),)), "trial.log"), lambda stage: None)
    assert outcome.reason is not Reason.CRASHED, outcome.detail
    assert len(list((tmp_path / "study" / "logs").glob("trial.log_*.log"))) == 1


def test_logs_that_a_program_appends_to_are_read_from_where_they_were(tmp_path: Path) -> None:
    """As Python's loggers do; one that is written anew is read as a whole, whatever its size."""
    lines = (
        "import os, runpy, sys; sys.argv = ['program.py', '8']; sys.stdout = open('log_0.log', 'MODE')",
        "print(f'step {9.5 + len([*os.scandir()])} ms'); runpy.run_path('program.py'); sys.stdout.close()",
        "os.makedirs('log_folder.log', exist_ok=True)",
    )
    latency = {"pattern": "step ([0-9.]+) ms"}
    for mode in "aw":
        command = [sys.executable, "-c", "; ".join(lines).replace("MODE", mode)]
        with reporting(tmp_path / mode, command=command, logs="log_*.log", latency=latency) as runner:
            runner.open()
            latencies = [each.latency_ms for each in runner._runs.baselines]
        assert len(latencies) == len(set(latencies)) == 2, "each run has a latency of its own"
        copies = (tmp_path / mode / "study" / "logs").glob("baseline*.log_0.log")
        assert [copy.read_text().count("step ") for copy in copies] == [1, 1], "and what is said of it is its own"


def test_a_run_that_an_exception_ends_is_none(tmp_path: Path) -> None:
    """Also after its verified steps, and where a launch script hides the exit code."""
    (tmp_path / "task.json").write_text("{}")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from sktune_program.reporter import Reporter\n"
        "Reporter(sys.argv[2]).begin()\n"
        "raise RuntimeError('507014 aicore timeout')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(SITE), str(tmp_path)], capture_output=True, text=True)
    assert "507014 aicore timeout" in done.stderr
    (report,) = read_reports(tmp_path)
    assert report.has_ended
    assert report.error == ("run", "it ended with RuntimeError: 507014 aicore timeout")


def test_hosts_with_one_program_in_one_folder_have_files_of_their_own(tmp_path: Path) -> None:
    """Each its copy of the YAML, after which launch scripts name logs."""
    (tmp_path / "a.yaml").write_text("x: 1\n")
    command = [sys.executable, "program.py", "8", "{yaml}"]
    with reporting(tmp_path, command=command, yaml={"file": "a.yaml"}) as runner:
        recipe = runner._recipe
    copies = [Launcher(recipe, tmp_path, tmp_path, host=host)._copies for host in ("one", "two", "")]
    assert len({path for each in copies for path in each}) == 3


def test_hosts_read_no_logs_that_are_named_after_others_yaml(tmp_path: Path) -> None:
    """While others run in the folder; a host that shares none with another names its logs as it likes."""
    (tmp_path / "a.yaml").write_text("x: 1\n")
    command = [sys.executable, "program.py", "8", "{yaml}"]
    with reporting(tmp_path, command=command, yaml={"file": "a.yaml"}, logs="*.log") as runner:
        recipe = runner._recipe
    one, two = (Launcher(recipe, tmp_path, tmp_path, host=host) for host in ("one", "two"))
    for name in ("rank_0", *(f"{host._copies[0].stem}-rank_0" for host in (one, two))):
        (tmp_path / f"{name}.log").touch()
    own, of_two = (f"{host._copies[0].stem}-rank_0" for host in (one, two))
    assert not one._has_others()
    assert {path.stem for path in one._logs([], {}, are_others=False)} == {own, "rank_0"}
    two._copies[0].touch()
    assert one._has_others() and not two._has_others()
    assert {path.stem for path in one._logs([], {}, are_others=True)} == {own}
    assert {path.stem for path in two._logs([], {}, are_others=True)} == {of_two}


@pytest.fixture
def faulty(project: Path) -> Iterator[ProgramRunner]:
    """A program that fails as FAULT says, after its baseline has run."""
    path = project / "faulty" / "recipe.yaml"
    runner = program_runner(path, project)
    with runner:
        yield runner


def judge(runner: ProgramRunner, fault: str, **changes: object) -> Outcome:
    """Return what becomes of a plan whose ranks have ``fault``."""
    recipe = runner._recipe.model_copy(update={"environment": {"FAULT": fault}, **changes})
    runner._runs.launcher._recipe = runner._runs.recipe = runner._recipe = recipe
    return runner.run(Judge(scoped(), f"trial-{fault}.log"), lambda stage: None)


@pytest.mark.slow
def test_a_run_that_fails_is_an_outcome_that_names_the_rank(faulty: ProgramRunner) -> None:
    """One bit in one of two ranks, its state alone, and a rank that dies while the other waits."""
    opened = faulty.open()
    assert "not compared" in opened.description  # memory that nobody has written differs from run to run
    assert "unwritten" in opened.description

    wrong = judge(faulty, "bit")
    assert wrong.reason is Reason.MISMATCH
    assert "rank 1, step 0: output" in wrong.detail
    assert wrong.blamed == "blocks.0"

    state = judge(faulty, "state")
    assert state.reason is Reason.MISMATCH
    assert "rank 1: state" in state.detail
    assert f"after {VERIFIED_STEPS} steps" in state.detail

    dead = judge(faulty, "die")
    assert dead.reason is Reason.CRASHED
    assert "rank 1 died after decode step 5" in dead.detail


@pytest.mark.parametrize(
    ("fault", "reason", "detail"),
    [
        ("refuse", Reason.CRASHED, "rank 0: this rank has no memory left"),
        ("silent", Reason.CRASHED, "its log has no latency line"),
        ("die", Reason.CRASHED, "rank 0 died after decode step 5, and the others went on"),
        pytest.param(
            "hang",
            Reason.TIMEOUT,
            "the run did not end within 8 s; rank 0 is stuck after decode step 5",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_a_program_does_is_an_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, reason: Reason, detail: str
) -> None:
    """Every process of the run is ended then, and no other; the next run is sound again."""
    monkeypatch.setattr("sktune.recipes.run.ORPHAN_S", 0.5)
    beside = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        with reporting(tmp_path, environment={"FAULT": fault}, timeout_s=8) as runner:
            plan = Plan((Scope("a", "a"),))
            outcome = runner.run(Judge(plan, "trial.log"), lambda stage: None)
            assert (outcome.reason, outcome.detail.partition("; set")[0]) == (reason, detail)
            assert outcome.blamed == "a"
            assert outcome.stage is not Stage.COMPILE
            here = runner._runs.launcher._hosts[0]
            assert isinstance(here, LocalPeer) and not here.members()
            assert runner.run(SampleNoiseFloor(1))
        assert beside.poll() is None
    finally:
        beside.kill()


@pytest.mark.parametrize("fault", ["full disk", "full disk in the log"])
def test_a_machine_that_fails_is_no_outcome(tmp_path: Path, fault: str) -> None:
    """Whether a rank says so or the program's log: no trial is stored as a failure of its plan."""
    with (
        reporting(tmp_path, environment={"FAULT": fault}) as runner,
        pytest.raises(MachineError, match=r"the machine fails, not the plan: .*No space left on device; mend that"),
    ):
        runner.run(Judge(Plan((Scope("a", "a"),)), "trial.log"), lambda stage: None)


def test_a_finalist_that_is_killed_once_is_compared_all_the_same(tmp_path: Path) -> None:
    """It has passed its trial: a single failure may come from outside, and only a second one counts."""
    plan = Plan((Scope("a", "a"),))
    with reporting(tmp_path, environment={"FAULT": "refuse once:5"}) as runner:
        assert runner.run(Judge(plan, "trial.log"), lambda stage: None).is_complete
        rows = runner.run(Compare([("0", plan)]), lambda stage: None).rows
    assert [row.verdict for row in rows if row.name == "0"] == ["identical on 8 steps"]
    assert len(list(tmp_path.rglob("final-1-0*.log"))) == 2


def test_another_inference_is_waited_for_and_then_refused(project: Path) -> None:
    """Nothing is started beside it."""
    other = project / "infer.py"
    other.write_text("import time; print('up', flush=True); time.sleep(600)")
    path = project / "faulty" / "recipe.yaml"
    path.write_text(path.read_text() + f"wait_s: 1\nother_inference: 'python.*{project.name}/infer\\.py'\n")
    beside = subprocess.Popen([sys.executable, str(other)], stdout=subprocess.PIPE)
    assert beside.stdout is not None
    beside.stdout.readline()
    try:
        runner = program_runner(path, project)
        with runner, pytest.raises(BackendError, match=f"process {beside.pid} runs another inference"):
            runner.open()
        assert not list((project / "faulty").glob("log_*"))
    finally:
        beside.kill()


def test_torch_is_taken_over_by_whoever_looked_for_it_before(project: Path) -> None:
    """Libraries ask whether torch is there, long before anyone imports it."""
    (project / "plan.yaml").write_text(write_plan(Plan((Scope("blocks.0", "blocks.0"),)), {}, "npu", 3))
    program = (
        "import importlib.util, sktune_program.launch\n"
        "sktune_program.launch.install()\n"
        "assert importlib.util.find_spec('torch') and importlib.util.find_spec('torch')\n"
        "import torch\n"
        "print(torch.compile.__module__, torch.compile.__qualname__, torch.__spec__.loader is torch.__loader__)\n"
    )
    done = ran([sys.executable, "-c", program], STANDINS, variables={"SKTUNE_PLAN": str(project / "plan.yaml")})
    assert done.stdout.split() == ["sktune_program.rank", "Rank.compile", "True"], done.stderr


def test_a_python_that_runs_no_model_imports_little() -> None:
    """A launch script may start many of them."""
    program = "import sys; print(sorted({'numpy', 'scipy', 'torch', 'pydantic', 'sktune'} & sys.modules.keys()))"
    environment = {**os.environ, "SKTUNE_RUN": "somewhere", "PYTHONPATH": str(SITE)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_plan_is_launched_without_an_edit(project: Path) -> None:
    """Scopes act in decode alone: prefill shares its compiled function, the draft has the same modules but fewer."""
    plan = Plan((Scope("blocks.0", "blocks.2", EXACT),))
    decode = {"function": "Model.forward", "signature": "int64[1,1]"}
    (project / "plan.yaml").write_text(write_plan(plan, {}, "inductor", 3, decode))
    assert read_plan_file(project / "plan.yaml").decode is not None
    environment = {**os.environ, "SKTUNE_PLAN": str(project / "plan.yaml"), "TORCH_LOGS": "graph_code"}
    program = [sys.executable, "-m", "sktune.launch", "--", str(project / "plain" / "generate.py"), "4"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    graphs = done.stderr.split("TRACED GRAPH")[1:]
    marked = [graph for graph in graphs if "scope_enter" in graph]
    assert len(graphs) == 3  # prefill, draft, decode
    assert len(marked) == 1
    assert "i64[1, 1]" in marked[0] or "1, 1" in marked[0]
    without = subprocess.run([sys.executable, program[-2], "4"], capture_output=True, text=True, check=True)
    assert done.stdout == without.stdout


@pytest.mark.slow
def test_each_call_is_launched_with_the_plan_of_its_shape(project: Path) -> None:
    """By the signature of the call; one of another shape runs without scopes."""
    plans = {
        "int64[1,8]": Plan((Scope("blocks.0", "blocks.2", EXACT),)),
        "int64[1,1]": Plan((Scope("head", "head", EXACT),)),
    }
    entries = [
        {"recipe": signature, **plan_values(plan, {}, {"function": "Model.forward", "signature": signature})}
        for signature, plan in plans.items()
    ]
    single = write_plan(Plan(), {}, "inductor", 3, shapes=entries)
    (project / "plan.yaml").write_text(single)
    environment = {**os.environ, "SKTUNE_PLAN": str(project / "plan.yaml"), "TORCH_LOGS": "graph_code"}
    program = [sys.executable, "-m", "sktune.launch", "--", str(project / "plain" / "generate.py"), "3"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    marked = [graph for graph in done.stderr.split("TRACED GRAPH")[1:] if "scope_enter" in graph]
    assert ["blocks.0..blocks.2" in graph for graph in marked] == [True, False]  # prefill, decode
    assert done.stderr.count("is in force: 1 scope on the decode step of one of its shapes") == 2
    without = subprocess.run([sys.executable, program[-2], "3"], capture_output=True, text=True, check=True)
    assert done.stdout == without.stdout


def test_an_installed_command_is_launched_and_so_are_its_processes(project: Path) -> None:
    """Like ``vllm serve``, which starts others."""
    folder = project / "installed"
    folder.mkdir()
    child = "import torch; print(torch.compile.__qualname__)"
    (folder / "serve").write_text(
        f"#!{sys.executable}\nimport subprocess, sys\nimport torch\nprint(sys.argv[1:], torch.compile.__qualname__)\n"
        f"sys.stdout.flush()\nsubprocess.run([sys.executable, '-c', {child!r}], check=True)\n"
    )
    (folder / "binary").write_bytes(b"\x7fELF")
    for name in ("serve", "binary"):
        (folder / name).chmod(0o755)
    (project / "plan.yaml").write_text(write_plan(Plan((Scope("blocks.0", "blocks.0"),)), {}, "npu", 3))
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    modules = os.pathsep.join([str(STANDINS), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "SKTUNE_PLAN": str(project / "plan.yaml"), "PATH": path, "PYTHONPATH": modules}

    def launched(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sktune.launch", "--", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    done = launched("serve", "MODEL")
    assert done.stdout.splitlines() == ["['MODEL'] Rank.compile", "Rank.compile"], done.stderr
    for name, message in (("binary", "is no Python script"), ("nowhere", "no such command on PATH")):
        done = launched(name)
        assert done.returncode == 1
        assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_in_production_nothing_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are neither timed nor compared where no search asks for it."""

    def never(*_: object) -> Any:
        raise AssertionError

    monkeypatch.setattr("sktune.program.sktune_program.rank.clock_of", lambda tensors: never)
    monkeypatch.setattr("sktune.program.sktune_program.rank.digests_of", never)
    module, inputs = nn.Linear(2, 2), torch.ones(1, 2)
    task, reporter = RankTask(False, "npu"), Reporter(None)
    step = MarkedStep(module.forward, None, module, module.forward, task, lambda: GatedMarks(module, ()), reporter)
    assert torch.equal(step(inputs), module(inputs))


def test_the_report_says_how_the_program_was_started(tmp_path: Path) -> None:
    """From wherever its reader stands, and with what differed in the YAML."""
    study_of(tmp_path, "a", [1.3])
    study = TuningStudy.open("a", sqlite_url(tmp_path / "a"), create=False)
    changed = {"file": "decode.yaml", "set": {"model_config.exe_mode": "ge_graph"}}
    target = {"spec": RecipeSpec("recipe.yaml", dtype="").to_dict(), "units": {}}
    study.remember(
        uncompared=True, target=target, command="bash infer.sh --yaml decode.yaml", directory="program", yaml=changed,
        environment={"HCCL_BUFFSIZE": "512", "PYTHONPATH": "my libs", "EXTRA": "a 'b'"},
    )  # fmt: skip
    result = result_of(study, tmp_path / "a")
    assert result.winner is not None
    text = how_to_apply(result, result.winner.plan)
    assert "Start the program with the plan, in `program`" in text
    assert f"SKTUNE_PLAN={tmp_path / 'a' / 'best_plan.yaml'} bash infer.sh" in text
    assert "export HCCL_BUFFSIZE=512\n" in text
    assert f"export PYTHONPATH={SITE}:'my libs'${{PYTHONPATH:+:$PYTHONPATH}}\n" in text
    assert shlex.split(text.partition("EXTRA=")[2].partition("\n")[0]) == ["a 'b'"]
    assert "`enable_superkernel: False`, `model_config.exe_mode: ge_graph` in `decode.yaml`" in text
