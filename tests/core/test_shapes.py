"""Shapes as users give them: in text, or in a YAML file with weights."""

from pathlib import Path

import pytest

from sktune.core.errors import BadInputError
from sktune.core.shapes import StepShape, parse_shapes


def test_every_combination_is_a_shape() -> None:
    """Named as it was given, and in a study's name without blanks."""
    shapes = parse_shapes("batch=1,8 context=1024,8192")
    assert [shape.name for shape in shapes] == [
        f"batch={batch} context={context}" for batch in (1, 8) for context in (1024, 8192)
    ]
    assert shapes[3].suffix == "batch-8.context-8192"
    assert parse_shapes("batch=4")[0].sizes == {"batch": 4}


def test_a_file_has_weights_and_recipes(tmp_path: Path) -> None:
    """A recipe is found beside the file."""
    (tmp_path / "shapes.yaml").write_text("version: 1\nshapes:\n- {batch: 1, weight: 3}\n- {batch: 8}\n")
    assert [shape.weight for shape in parse_shapes(str(tmp_path / "shapes.yaml"))] == [3, 1]
    (tmp_path / "recipes.yaml").write_text("version: 1\nshapes:\n- recipe: short.yaml\n- recipe: long.yaml\n")
    assert parse_shapes(str(tmp_path / "recipes.yaml"))[1] == StepShape(recipe=tmp_path / "long.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch=0", "--shapes must be such as"),
        ("batch=1,", "--shapes must be such as"),
        ("batch=-1", "--shapes must be such as"),
        ("batch=1 batch=2", "--shapes must be such as"),
        ("rows=1", "--shapes must be such as"),
        ("nowhere.yaml", "--shapes must be such as"),
        ("batch=1,2,1", "batch=1 is there twice"),
    ],
)
def test_what_is_no_shape_is_refused(text: str, message: str) -> None:
    """In one line that shows how."""
    with pytest.raises(BadInputError, match=message):
        parse_shapes(text)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ("[{weight: 2}]", "must have batch, context or both, or a recipe"),
        ("[{batch: 1, recipe: a.yaml}]", "a recipe alone"),
        ("[null]", "a mapping of keys is expected, got None"),
        ("[{batch: 1, weight: 0}]", "weight"),
        ("[{batches: 1}]", "did you mean 'batch'"),
        ("[]", "shapes must not be empty"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, shapes: str, message: str) -> None:
    """With its line, and the nearest key."""
    path = tmp_path / "shapes.yaml"
    path.write_text(f"version: 1\nshapes: {shapes}\n")
    with pytest.raises(BadInputError, match=message):
        parse_shapes(str(path))


def test_nearness_is_a_matter_of_ratios() -> None:
    """From 1 to 4 is as far as from 8 to 32; what one of them leaves open does not count."""
    one, four, eight, many = parse_shapes("batch=1,4,8,32")
    assert one.distance(four) == pytest.approx(eight.distance(many))
    assert one.distance(StepShape(context=32)) == 0
