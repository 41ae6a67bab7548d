"""Studies side by side."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sktune.cli.views.search import comparison_table
from sktune.core.errors import BadInputError, StudyError
from sktune.core.shapes import StepShape
from sktune.reports.comparison import ComparedStudies, compare, write_picture
from sktune.study.shapes import ShapesRecord, ShapeStudy, read_record
from tests.builders import refusal, study_of, succeeded
from tests.reports.test_page import Reader


def shown(compared: ComparedStudies) -> str:
    """Return the table as shown by a terminal with 80 columns."""
    console = Console(width=80)
    with console.capture() as captured:
        console.print(comparison_table(compared.events(), compared.is_simulated))
    return captured.get()


def test_incumbents_are_shown_after_5_10_20_trials(tmp_path: Path) -> None:
    """A shorter study has no figure; failed and slower trials are not incumbents."""
    slow = study_of(tmp_path, "slow", [None, 0.8, 1.1, None, 1.05, 1.2, 1.2, 1.3, 1.1, 1.15, 1.4])
    quick = study_of(tmp_path, "quick", [1.35, 1.3, 1.2, 1.1, 1.36])
    events = compare([slow, quick]).events()
    assert [event.best_after for event in events] == [{"5": 1.1, "10": 1.3}, {"5": 1.36, "10": None}]
    assert events[0].failed_share == pytest.approx(2 / 11)
    assert events[0].strategies == ("grid",)
    assert events[0].seconds == 12.5
    assert [event.differs for event in events] == [(), ()]
    text = shown(compare([slow, quick]))
    assert "no final comparison yet" in text
    assert "differs" not in text


@pytest.mark.parametrize(
    ("made_with", "difference"),
    [({"backend": "npu"}, "backend 'npu'"), ({"dtype": "float32"}, "dtype"), ({"model": "llama-tiny 9999"}, "model")],
)
def test_other_targets_are_refused_with_the_difference(
    tmp_path: Path, made_with: dict[str, str], difference: str
) -> None:
    """Figures of two devices do not compare two strategies."""
    first, second = study_of(tmp_path, "a", [1.1]), study_of(tmp_path, "b", [1.1], **made_with)
    with pytest.raises(
        BadInputError, match=f"study 'b' has {difference}.*compare studies of the same target"
    ) as caught:
        compare([first, second])
    assert "\n" not in str(caught.value)


def test_another_seed_or_version_is_reported(tmp_path: Path) -> None:
    """Strategies are compared over several seeds, which also determine the weights."""
    other: dict[str, Any] = {"model": "llama-tiny 4567", "seed": "1", "torch": "2.12", "OMP_NUM_THREADS": "1"}
    compared = compare([study_of(tmp_path, "a", [1.1] * 5), study_of(tmp_path, "b", [1.1] * 5, **other)])
    assert compared.curves[1].differs == ("torch", "seed", "OMP_NUM_THREADS")
    assert "torch, seed" in shown(compared)


def test_simulated_figures_are_marked(tmp_path: Path) -> None:
    """In the table, the events and the picture."""
    compared = compare([study_of(tmp_path, "a", [1.1] * 5, backend="sim")])
    assert compared.is_simulated
    assert "simulated speedup" in shown(compared)
    assert all(event.simulated for event in compared.events())
    assert "so far, simulated" in write_picture([compared], ["a"], None, tmp_path).read_text()


def test_the_picture_works_offline_and_escapes_names(tmp_path: Path) -> None:
    """It is one file, and names of studies are text."""
    name = "<script>alert(1)</script>"
    compared = compare([study_of(tmp_path, name, [1.1, 1.2])])
    path = write_picture([compared], [name], tmp_path / "deep" / "page.html", tmp_path)
    page = path.read_text()
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert not any({"src", "href"} & attributes.keys() for _, attributes in Reader(page).tags)
    assert "Plotly.newPlot" in page


def test_a_picture_that_cannot_be_written_gets_one_line(tmp_path: Path) -> None:
    """The line names the option."""
    (tmp_path / "file").write_text("")
    compared = compare([study_of(tmp_path, "a", [1.1])])
    with pytest.raises(StudyError, match="another file with --html"):
        write_picture([compared], ["a"], tmp_path / "file" / "page.html", tmp_path)


def test_the_command_prints_a_table_and_json_lines(tmp_path: Path) -> None:
    """A missing study gets one line."""
    study_of(tmp_path, "a", [1.1] * 5)
    study_of(tmp_path, "b", [1.2] * 5)
    done = succeeded("compare", "a", "b", "--runs", str(tmp_path), "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["event"] for line in lines] == ["study_compared", "study_compared", "compare_finished"]
    assert Path(lines[-1]["picture"]).is_file()
    assert "1.200" in done.stderr
    assert "there is no study" in refusal("compare", "a", "c", "--runs", str(tmp_path))


def test_studies_of_several_shapes_are_compared_at_each_shape(tmp_path: Path) -> None:
    """At those that both have; one of several and one of a single shape have none in common."""
    shapes = {"a": (1, 4, 8), "b": (4, 1), "c": (16,)}
    for name, batches in shapes.items():
        studies = []
        for batch in batches:
            result = study_of(tmp_path, f"{name}.{batch}", [1.1] * 5, batch=str(batch))
            studies.append(ShapeStudy(StepShape(batch=batch), result.study))
        ShapesRecord(name, tuple(studies), trials=5).write(tmp_path / name)
    study_of(tmp_path, "single", [1.1] * 5)
    record = read_record(tmp_path / "b")
    assert record
    not_begun = ShapeStudy(StepShape(batch=8), "b.8")
    replace(record, studies=(*record.studies, not_begun)).write(tmp_path / "b")

    done = succeeded("compare", "a", "b", "--runs", str(tmp_path), "--json")
    *rows, last = map(json.loads, done.stdout.splitlines())
    assert [row["study"] for row in rows] == ["a.1", "b.1", "a.4", "b.4"]
    assert last["studies"] == ["a", "b"]
    assert Path(last["picture"]).read_text().count("Plotly.newPlot(") == 2
    assert "have no shape in common" in refusal("compare", "a", "c", "--runs", str(tmp_path))
    assert "compare those of one: a.1, a.4, a.8" in refusal("compare", "single", "a", "--runs", str(tmp_path))
