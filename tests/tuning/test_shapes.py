"""Searches for several shapes: what is tried where, what is stored, and how it goes on."""

import math
import re
import shutil
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import optuna
import pytest
from rich.console import Console

import sktune
from sktune.cli.views.shapes import shapes_view
from sktune.core.errors import BackendError, BadInputError, PlanError, SktuneError, StudyError
from sktune.core.outcome import Outcome, Reason, Stage
from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import read_plan_file
from sktune.core.shapes import StepShape, parse_shapes
from sktune.reports.shapes import answer_lines, rows_of
from sktune.reports.texts import TEXTS
from sktune.study.claims import locked
from sktune.study.shapes import has_compared, has_room, has_tried, read_record
from sktune.study.study import sqlite_url
from sktune.tuning import loop
from sktune.tuning.request import Request
from sktune.tuning.shapes import Allotment, in_order, plans_to_cross
from sktune.tuning.trials import Trials
from tests.builders import refusal, succeeded
from tests.projects import long_gaps

UNCHECKED: Any = StepShape
"""With arguments that a type checker would refuse."""
ONE, TWO, THREE = (Plan((Scope(name, name),)) for name in "abc")


def searched(runs: Path, **options: Any) -> Any:
    """Search on the simulated device at two shapes."""
    constants = long_gaps(runs.parent)
    given = {"backend": "sim", "trials": 6, "shapes": "batch=1,8", "study": "s", "runs": runs, "constants": constants}
    return sktune.search_shapes("llama", **{**given, **options})


class StoppedError(Exception):
    """Ends a search as a kill would."""


def stopped(runs: Path, event: str, study: str = "", number: int = 1, **options: Any) -> None:
    """Search until an event comes for the ``number``-th time, of one shape's study or of any."""
    seen = count(1)

    def listen(each: dict[str, Any]) -> None:
        if each["event"] == event and study in ("", each["study"]) and next(seen) == number:
            raise StoppedError

    with pytest.raises(StoppedError):
        searched(runs, listener=listen, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The answer of a search that was not disturbed."""
    return searched(tmp_path_factory.mktemp("whole") / "runs")


def test_trials_are_divided() -> None:
    """All shapes together get half as many again as one would; with few trials, at least a few at each."""
    assert Allotment.of(40, 6) == Allotment(20, 4, 20)
    assert Allotment.of(40, 1) == Allotment(40, 0, 0)
    assert Allotment.of(4, 6) == Allotment(2, 3, 5)  # a plan that is compared at one shape may be at the five others
    for trials, shapes in ((40, 2), (20, 6)):
        allotment = Allotment.of(trials, shapes)
        assert allotment.first + allotment.other * (shapes - 1) + allotment.crossings == 1.5 * trials


def test_shapes_are_searched_from_the_heaviest_to_its_neighbours() -> None:
    """Each learns best from one that is near."""
    one, eight, many = parse_shapes("batch=1,8,64")
    assert in_order([one, eight, many]) == [one, eight, many]
    assert in_order(parse_shapes("batch=64,1,8"))[1].batch == 8


class TestCrossing:
    """Which plans are tried where they have not been."""

    def test_the_expected_single_plan_is_tried_everywhere(self) -> None:
        """And nothing else, if it is within the regret at every shape."""
        expected = {Plan(): [2.0, 2.0], ONE: [1.0, 1.0], TWO: [1.5, 1.5]}
        wanted = plans_to_cross(expected, [{ONE}, {TWO}], [1, 1], "sum", 0.01, 1)
        assert wanted == [[ONE], [ONE]]

    def test_a_plan_that_fails_at_a_shape_is_not_tried_there(self) -> None:
        """It may still be that of the other one."""
        expected = {Plan(): [2.0, 2.0], ONE: [1.0, math.inf], TWO: [1.9, 1.9]}
        wanted = plans_to_cross(expected, [{ONE}, {TWO}], [1, 1], "sum", 0.01, 9)
        assert ONE in wanted[0]
        assert ONE not in wanted[1]

    def test_no_more_trials_are_taken_than_there_are(self) -> None:
        """What was measured anyway costs none."""
        expected = {Plan(): [2.0] * 3, ONE: [1.0, 1.5, 1.5], TWO: [1.5, 1.0, 1.5], THREE: [1.5, 1.5, 1.0]}
        measured = [{ONE}, {TWO}, {THREE}]
        for most in range(7):
            wanted = plans_to_cross(expected, measured, [1, 1, 1], "sum", 0.01, most)
            new = sum(plan not in known for chosen, known in zip(wanted, measured, strict=True) for plan in chosen)
            assert new <= most
            assert all(known <= set(chosen) for chosen, known in zip(wanted, measured, strict=True))


@pytest.mark.slow
def test_one_answer_for_all_shapes(whole: Any) -> None:
    """A study for each, which learn from each other; a table, a plan file with all plans, and no trial too many."""
    assert whole.is_finished
    assert sum(len(result.trials) for result in whole.results) <= 9
    assert [len(result.facts.earlier) for result in whole.results] == [0, 1]
    assert Counter(shape for each in whole.plans for shape in each.shapes) == {0: 1, 1: 1}
    for number in range(2):
        assert whole.regrets(whole.plan_at(number))[number] <= 0.01
        assert whole.latencies_ms[whole.plan_at(number)][number] <= whole.latencies_ms[Plan()][number]
        assert whole.trial_of(number, whole.single) is not None
    file = read_plan_file(whole.folder / "best_plan.yaml")
    assert file.to_plan() == whole.single
    assert [entry.name for entry in file.shapes] == ["batch=1", "batch=8"]
    with pytest.raises(PlanError, match="its shapes: batch=1, batch=8"):
        file.entry_of("batch=2", "file")
    assert "batch=8" in (whole.folder / "report.md").read_text()
    page = (whole.folder / "report.html").read_text()
    linked = [whole.folder / link for link in re.findall('href="([^"]+/report.html)"', page)]
    assert len(linked) == 2
    assert all(path.exists() for path in linked)
    assert "for all 2 shapes" in str(whole)
    assert all(f"{shape.name} " in str(whole).partition("beyond the best one there: ")[2] for shape in whole.shapes)
    runs = whole.folder.parent
    assert str(sktune.load_shapes("s", runs)) == str(whole)
    shown = succeeded("show", "s", "--runs", str(runs), "--json")
    assert '"event": "shapes_finished"' in shown.stdout.splitlines()[-1]
    succeeded("compare", "s", "--runs", str(runs))


def test_no_size_is_folded_on_a_narrow_terminal(whole: Any) -> None:
    """Nor a figure or a word; a plan's regret may stand below its latency."""
    studies = [replace(each, shape=replace(each.shape, context=131072)) for each in whole.record.studies]
    console = Console(width=80)
    with console.capture() as shown:
        console.print(shapes_view(replace(whole, record=replace(whole.record, studies=tuple(studies)))))
    rows = shown.get().partition("─")[2].splitlines()
    assert rows[1].split()[0] == "batch=1" and rows[1].split()[-1] == str(len(whole.results[0].trials))
    assert rows[2].split()[0] == "context=131072"
    figures = rows[1].split()[1:]
    assert figures[0] == f"{whole.results[0].baseline_ms:.3f}" and figures[5:7] == ["A", figures[4]]


def test_the_page_is_also_in_chinese(whole: Any, tmp_path: Path) -> None:
    """With no English sentence left."""
    shutil.copytree(whole.folder.parent, tmp_path / "runs")
    succeeded("report", "s", "--runs", str(tmp_path / "runs"), "--language", "zh")
    page = (tmp_path / "runs/s/report.html").read_text()
    assert '<html lang="zh">' in page
    assert "对全部 2 个 shape,按“加权时延之和最小”,最佳的单一方案是" in page
    words = {name: english.partition("{")[0] for name, (english, _) in TEXTS.items() if name.startswith("shapes.")}
    assert not [name for name, begin in words.items() if len(begin.split()) > 2 and begin in page]
    assert sktune.load_shapes("s", tmp_path / "runs").report().read_text() == (whole.folder / "report.html").read_text()


@pytest.mark.slow
def test_a_search_that_was_stopped_goes_on(whole: Any, tmp_path: Path) -> None:
    """To the same trials and the same answer as one that was not, and the same command again runs nothing."""

    for last in (2, 3):
        stopped(tmp_path / "runs", "trial_finished", number=last)
    halves = searched(tmp_path / "runs")
    assert [[one.plan for one in result.trials] for result in halves.results] == [
        [one.plan for one in result.trials] for result in whole.results
    ]
    assert halves.latencies_ms == whole.latencies_ms
    events: list[str] = []
    searched(tmp_path / "runs", listener=lambda event: events.append(event["event"]))
    assert "trial_finished" not in events


@pytest.mark.slow
def test_names_of_shapes_and_of_one_are_kept_apart(whole: Any, tmp_path: Path) -> None:
    """A study has several shapes, always the same ones, or a single one."""
    runs = tmp_path / "runs"
    shutil.copytree(whole.folder, runs / "s")
    with pytest.raises(BadInputError, match="is of several shapes"):
        sktune.search("llama", backend="sim", trials=1, study="s", runs=runs)
    with pytest.raises(BadInputError, match="is of several shapes"):
        loop.search(Request("llama", backend="sim", trials=1, study="s", runs=runs, proxy_layers=1))
    assert [path.name for path in runs.iterdir()] == ["s"]  # no few layers were searched for nothing
    assert "did you mean 's'" in refusal("show", "ss", "--runs", str(runs))
    assert "there is no study at" in refusal("compare", "s", "sss", "--runs", str(runs))
    with pytest.raises(BadInputError, match="is of the shapes batch=1, batch=8"):
        searched(runs, shapes="batch=1,4")
    sktune.search("llama", backend="sim", trials=1, study="alone", runs=runs)
    with pytest.raises(BadInputError, match="has a single shape"):
        searched(runs, study="alone")
    with locked(runs / "s"), pytest.raises(StudyError, match="is being run by"):
        searched(runs)  # it would decide other crossings
    (runs / "s/shapes.json").write_text("{")
    with pytest.raises(StudyError, match="cannot be read"):
        searched(runs)


@pytest.mark.slow
def test_what_is_decided_anew_is_compared(whole: Any, tmp_path: Path) -> None:
    """With another objective, regret or weight: every plan that may be the answer is in the comparison of its shapes.

    The order of the shapes changes nothing, nor does the way in which their file is named.
    """
    runs = tmp_path / "runs"
    shutil.copytree(whole.folder.parent, runs)
    events: list[str] = []

    def listen(event: dict[str, Any]) -> None:
        events.append(event["event"])

    searched(runs, shapes="batch=8,1", listener=listen)
    assert "search_started" not in events
    record = read_record(runs / "s")
    with pytest.raises(BadInputError, match="seed"):
        searched(runs, objective="worst", seed=3)
    assert read_record(runs / "s") == record
    answer = searched(runs, objective="worst", regret=0.2, listener=listen)
    assert (answer.record.objective, answer.record.regret) == ("worst", 0.2)
    (tmp_path / "shapes.yaml").write_text("version: 1\nshapes: [{batch: 1}, {batch: 8, weight: 100}]\n")
    answer = searched(runs, shapes=str(tmp_path / "shapes.yaml"))
    for each, result in zip(answer.record.studies, answer.results, strict=True):
        assert each.crossing is not None and has_compared(result, each.crossing.points)
        assert not has_compared(replace(result, comparison=None), each.crossing.points)  # would be compared


@pytest.mark.slow
def test_what_a_time_limit_cut_off_is_made_up_for(whole: Any, tmp_path: Path) -> None:
    """By the same command; one with fewer trials runs none, and changes nothing."""
    runs = tmp_path / "runs"
    shutil.copytree(whole.folder.parent, runs)
    events: list[str] = []

    def listen(event: dict[str, Any]) -> None:
        events.append(event["event"])

    fewer = searched(runs, trials=2, listener=listen)
    assert "search_started" not in events and fewer.latencies_ms == whole.latencies_ms
    record = runs / "s/shapes.json"
    record.write_text(record.read_text().replace('"trials": 6', '"trials": 12'))  # as if there had been no more time
    answer = searched(runs, trials=12)
    allotment = Allotment.of(12, 2)
    trials = [len(result.trials) for result in answer.results]
    assert trials[0] >= allotment.first and trials[1] >= allotment.other
    for each, result in zip(answer.record.studies, answer.results, strict=True):
        assert each.crossing is not None and each.crossing.trials == len(result.trials)
    with (runs / "s.batch-8/study.db").open("r+b") as database:
        database.write(b"x" * 4096)
    events.clear()
    restored = searched(runs, trials=12, listener=listen)
    assert "search_started" not in events and restored.latencies_ms == answer.latencies_ms


@pytest.mark.slow
def test_a_shape_that_was_stopped_before_its_first_trial_goes_on_in_another_order(tmp_path: Path) -> None:
    """It keeps what it learns from, whatever would be nearest now."""

    stopped(tmp_path / "runs", "target_ready", "s.batch-8", shapes="batch=1,8,64")
    shapes = [StepShape(1), StepShape(8), StepShape(64, weight=9.0)]
    answer = searched(tmp_path / "runs", shapes=shapes)
    assert answer.is_finished
    assert [study.name for study in answer.results[1].facts.earlier] == ["s.batch-1"]


@pytest.mark.slow
def test_an_answer_stays_until_there_is_another(whole: Any, tmp_path: Path) -> None:
    """While a shape's study is away, too; what is asked of it is told in one line."""
    runs = tmp_path / "runs"
    shutil.copytree(whole.folder.parent, runs)
    before = (runs / "s/best_plan.yaml").read_bytes()
    shutil.move(runs / "s.batch-8", tmp_path / "away")
    succeeded("report", "s", "--runs", str(runs))
    assert (runs / "s/best_plan.yaml").read_bytes() == before
    with pytest.raises(StudyError, match="was not compared at the shapes of 's'"):
        whole.regrets(Plan((Scope("nowhere", "nowhere"),)))
    with pytest.raises(IndexError, match="has 2 shapes, from 0; got 2"):
        whole.plan_at(2)


@pytest.mark.slow
def test_a_storage_may_be_a_new_file(tmp_path: Path) -> None:
    """As for a single shape, also if the search learns from others; and one shape is none too few.

    Who reads studies is told that there are none.
    """
    assert "there is no study" in refusal("studies", "--storage", f"sqlite:///{tmp_path}/wrong.db")
    runs, storage = tmp_path / "runs", f"sqlite:///{tmp_path}/new.db"
    (tmp_path / "shapes.yaml").write_text("version: 1\nshapes: [{batch: 2}]\n")
    options = {"trials": 1, "storage": storage, "learn_from": ("auto",)}
    answer = searched(runs, shapes=tmp_path / "shapes.yaml", **options)
    assert answer.is_finished and "The best plan for batch=2 is" in str(answer)


@pytest.mark.slow
def test_a_study_is_shown_before_all_its_shapes_have_begun(tmp_path: Path) -> None:
    """Its answer is not made up, and a search that fails before a trial leaves its name free."""

    runs = tmp_path / "runs"
    assert "nope" in refusal("search", "--model", "nope", "--shapes", "batch=1,8", "--study", "s", "--runs", str(runs))
    with pytest.raises(SktuneError):
        searched(runs, shapes="batch=1,8,4", context=0)
    assert not (runs / "s").exists()
    stopped(runs, "trial_finished")
    (runs / "s.batch-8").mkdir(exist_ok=True)
    optuna.storages.RDBStorage(sqlite_url(runs / "s.batch-8"))  # it was killed before its study was in it
    shown = succeeded("show", "s", "--runs", str(runs))
    assert "Not every shape has its final comparison yet (batch=1 has 1 trial, batch=8 has 0 trials)" in " ".join(
        shown.stdout.split()
    )
    answer = sktune.load_shapes("s", runs)
    assert "<table" not in answer._repr_html_()
    with pytest.raises(StudyError, match="not every shape of 's' has its final comparison"):
        _ = answer.single


def refuse(monkeypatch: pytest.MonkeyPatch, batch: int, first: float = math.inf) -> None:
    """Have the compiler refuse the ``first`` plans at a batch size."""
    foreseen, numbers = Trials._foreseen, count()

    def refused(self: Trials, *arguments: Any) -> Outcome | None:
        if self._request.batch == batch and next(numbers) < first:
            return Outcome(Reason.COMPILE_FAILED, "refused", stage=Stage.COMPILE)
        return foreseen(self, *arguments)

    monkeypatch.setattr(Trials, "_foreseen", refused)


@pytest.mark.slow
def test_a_shape_whose_own_plans_fail_tries_those_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not keep the others from their answer."""
    refuse(monkeypatch, batch=8, first=3)
    answer = searched(tmp_path / "runs")
    assert [record.outcome.is_feasible for record in answer.results[1].trials[:3]] == [False] * 3
    assert answer.is_finished and answer.results[1].has_figures
    assert answer.single in {record.plan for record in answer.results[1].trials[3:]}


@pytest.mark.slow
def test_a_shape_at_which_no_plan_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model stays as it is there alone, and the same command does not run again what has failed."""
    refuse(monkeypatch, batch=8)
    answer = searched(tmp_path / "runs")
    assert "At batch=8 no plan could be used" in str(answer)
    assert answer.single.is_baseline and not answer.plan_at(0).is_baseline and answer.plan_at(1).is_baseline
    file = read_plan_file(answer.folder / "best_plan.yaml")
    assert [alone.to_plan() for _, alone in file.alone] == [answer.plan_at(0), Plan()]
    trials = [len(result.trials) for result in answer.results]
    assert [len(result.trials) for result in searched(tmp_path / "runs").results] == trials
    refuse(monkeypatch, batch=1)
    with pytest.raises(BackendError, match="no plan could be used at any shape; see"):
        searched(tmp_path / "other")


@pytest.mark.slow
def test_a_trial_that_was_left_behind_takes_no_decided_plans_place(tmp_path: Path) -> None:
    """A time limit or a kill may have cut it off; it comes first, and counts as one more."""
    runs = tmp_path / "runs"
    stopped(runs, "search_started", "s.batch-1", number=2)
    left = optuna.load_study(study_name="s.batch-8", storage=f"sqlite:///{runs}/s.batch-8/study.db").ask()
    record = read_record(runs / "s")
    assert record is not None
    replace(record, studies=tuple(replace(each, crossing=None) for each in record.studies)).write(runs / "s")
    answer = searched(runs)
    assert answer.is_finished and not answer.untried
    cut = replace(answer, results=[answer.results[0], replace(answer.results[1], trials=answer.results[1].trials[:1])])
    assert cut.untried == (StepShape(8),)
    assert left.number in {one.number for one in answer.results[1].trials}
    for each, result in zip(answer.record.studies, answer.results, strict=True):
        assert each.crossing is not None and has_tried(each, result)
        assert has_room(each, result) and each.crossing.trials == len(result.trials)


@pytest.mark.slow
def test_starting_points_take_no_decided_plans_place(tmp_path: Path) -> None:
    """Those that a shape's few trials do not come to are left out, also with a strategy that begins with them."""
    answer = searched(tmp_path / "runs", strategy="tpe")
    assert not answer.untried
    assert sum(len(result.trials) for result in answer.results) <= 1.5 * 6


@pytest.mark.slow
def test_earlier_studies_are_checked_before_any_shape_runs(tmp_path: Path) -> None:
    """One that is named too late is refused; of one with several shapes those that have figures are taken."""

    runs = tmp_path / "runs"
    stopped(runs, "target_ready", "s.batch-8")
    learned = sktune.search("llama", backend="sim", trials=1, study="l", runs=runs, learn_from=("s",))
    assert [study.name for study in learned.facts.earlier] == ["s.batch-1"]
    searched(runs)
    events: list[dict[str, Any]] = []
    with pytest.raises(BadInputError, match=r"study 's.batch-8' learns from s.batch-1, and from nothing else"):
        searched(runs, trials=12, learn_from=("l",), listener=events.append)
    assert not events
    assert sktune.search("llama", backend="sim", trials=1, study="l", runs=runs, learn_from=("s",)).trials


@pytest.mark.slow
def test_a_part_of_the_time_that_is_too_short_for_a_trial_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command would come to the same end again: each shape gets a trial first, if there is time at all."""
    monkeypatch.setattr("sktune.tuning.shapes.FIRST_TIME", 1e-6)
    monkeypatch.setattr("sktune.tuning.shapes.OTHERS_TIME", 1e-6)
    answer = searched(tmp_path / "runs", time_budget_s=120.0)
    assert all(result.trials for result in answer.results)


def test_a_winner_without_time_to_be_verified_is_told(whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not named, and its interval stands beside no other plan."""
    monkeypatch.setattr("sktune.study.shapes._is_verified", lambda result, number: False)
    answer = replace(whole)
    assert answer.unverified == answer.shapes and answer.single.is_baseline
    assert [row.ci95 for row in rows_of(answer)] == [None, None]
    assert any("At batch=1, batch=8 there was no time to verify" in line for line in answer_lines(answer))
    assert not has_compared(whole.results[0], ())  # would be verified by the same command
    monkeypatch.undo()
    assert not replace(whole).unverified


@pytest.mark.slow
def test_names_lead_back_to_their_studies(whole: Any, tmp_path: Path) -> None:
    """Also one that is no folder's name, and one in a storage, where a study of a single shape may have it."""
    runs, storage = tmp_path / "runs", f"sqlite:///{tmp_path}/all.db"
    searched(runs, study="my study", trials=2)
    listed = succeeded("studies", "--runs", str(runs)).stdout
    assert "my study" in listed
    learned = sktune.search("llama", backend="sim", trials=1, study="l", runs=runs, learn_from=("my study",))
    assert [study.name for study in learned.facts.earlier] == ["my study.batch-1", "my study.batch-8"]
    folder = next(path.parent for path in runs.glob("*/shapes.json"))
    assert f"{folder.name} " not in listed
    with pytest.raises(BadInputError, match="has the study 'my study'"):
        searched(runs, study=folder.name)
    sktune.search("llama", backend="sim", trials=1, study="w", runs=runs, storage=storage)
    with pytest.raises(BadInputError, match="has a single shape"):
        searched(runs, study="w", storage=storage)
    assert "my study " not in succeeded("studies", "--runs", str(runs), "--storage", storage).stdout


@pytest.mark.slow
def test_a_study_in_a_storage_is_not_begun_anew_without_it(tmp_path: Path) -> None:
    """Nor shown as one that has no trial, which would overwrite its report."""
    runs, storage = tmp_path / "runs", f"sqlite:///{tmp_path}/all.db"
    answer = searched(runs, trials=1, storage=storage)
    report = (answer.folder / "report.md").read_text()
    for command in ("show", "report"):
        assert f"study 's' is in the storage {storage}; give that with --storage" in refusal(
            command, "s", "--runs", str(runs)
        )
    with pytest.raises(BadInputError, match=r"study 's' is in the storage sqlite:.*give the same again"):
        searched(runs, trials=1)
    assert (answer.folder / "report.md").read_text() == report
    for url in (storage, f"sqlite:///{tmp_path}/./all.db"):
        assert sktune.load_shapes("s", runs, url).single == answer.single


@pytest.mark.slow
def test_a_search_that_stopped_early_is_answered(tmp_path: Path) -> None:
    """By its bound: the same command runs nothing, and one that wants to know more goes on."""
    events: list[str] = []

    def listen(event: dict[str, Any]) -> None:
        events.append(event["event"])

    def search(until: float) -> int:
        events.clear()
        constants = long_gaps(tmp_path)
        result = sktune.search(
            "llama", backend="sim", until=until, study="s", runs=tmp_path / "runs", constants=constants, workers=2,
            listener=listen,
        )  # fmt: skip
        return len(result.trials)

    shapes = {"until": 0.5, "trials": None, "study": "all", "listener": listen}
    stopped = len(searched(tmp_path / "runs", **shapes).results[0].trials)
    assert "converged" in events and stopped < 20
    events.clear()
    searched(tmp_path / "runs", **shapes)
    assert set(events) == {"study_finished"}
    stopped = search(0.5)
    assert "converged" in events
    assert search(0.5) == search(0.9) == stopped
    assert events == ["study_finished"]
    search(0.4)
    assert "final_started" in events


@pytest.mark.parametrize(
    "shapes",
    [[], None, ["batch=1"], [StepShape(1), StepShape(1)], [StepShape(-3)], [StepShape(1, weight=math.nan)], 5,
     [UNCHECKED("1")], [UNCHECKED(1, weight="2")], [UNCHECKED(1.5)], [UNCHECKED(True)], [UNCHECKED(recipe="a.yaml")],
     f"batch={'9' * 5000}", [StepShape(recipe=Path("a/x.yaml")), StepShape(recipe=Path("b/x.yaml"))]],
)  # fmt: skip
def test_shapes_that_make_no_sense_are_refused(tmp_path: Path, shapes: Any) -> None:
    """In Python as on the command line."""
    with pytest.raises(BadInputError, match="--shapes"):
        searched(tmp_path, shapes=shapes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shapes", "batch=1,8", "--batch", "4"], "--shapes gives them; leave --batch out"),
        (["--shapes", "batch=1,8", "--proxy-layers", "1"], "--proxy-layers"),
        (["--shapes", "batch=1,8", "--join"], "--join: --shapes cannot be used with it yet"),
        (["--regret", "2%"], "add --shapes"),
        (["--objective", "worst"], "add --shapes"),
        (["--shapes", "batch=1,8", "--regret", "2"], "--regret must be a share of the step"),
        (["--shapes", "batch=1,8", "--rehearse"], "leave out --shapes"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, options: list[str], message: str) -> None:
    """Before anything is loaded, in one line."""
    assert message in refusal("search", "--model", "llama", "--backend", "sim", "--runs", str(tmp_path), *options)
