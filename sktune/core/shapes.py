"""Shapes: the batch sizes and contexts, or a program's recipes, that one command searches for: ``--shapes``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictFloat, StrictInt

from sktune.core.codec import LEFT_OUT_IF_NONE
from sktune.core.documents import Document, read_document
from sktune.core.errors import BadInputError

NAMES = ("batch", "context")
MAX_SIZE, MAX_WEIGHT = 10**9, 1e9
EXAMPLE = '"batch=1,8,32 context=1024,8192"'


@dataclass(frozen=True, slots=True)
class StepShape:
    """A shape of the decode step.

    Attributes:
        batch, context: sequences decoded together, and tokens in the KV cache before the first step; None for the
            model's own.
        recipe: of the program that runs this shape, instead of both.
        weight: how much its step counts among the others.
    """

    batch: Annotated[int | None, LEFT_OUT_IF_NONE] = None
    context: Annotated[int | None, LEFT_OUT_IF_NONE] = None
    recipe: Annotated[Path | None, LEFT_OUT_IF_NONE] = None
    weight: float = 1.0

    @property
    def name(self) -> str:
        """The shape as it is given: ``batch=1 context=1024``, or the name of its recipe's file."""
        return self.recipe.stem if self.recipe else " ".join(f"{name}={value}" for name, value in self.sizes.items())

    @property
    def sizes(self) -> Mapping[str, int]:
        """Batch and context, as far as they are given."""
        values = ((name, getattr(self, name)) for name in NAMES)
        return {name: value for name, value in values if value is not None}

    @property
    def suffix(self) -> str:
        """What a study's name gets for the shape, safe in names of folders if the recipe's is."""
        return self.recipe.stem if self.recipe else ".".join(f"{name}-{value}" for name, value in self.sizes.items())

    def distance(self, other: "StepShape") -> float:
        """Return how far apart two shapes are: the ratios of their sizes, as logarithms."""
        return sum(abs(math.log(self.sizes[name] / other.sizes[name])) for name in self.sizes.keys() & other.sizes)


class _ShapeEntry(Document):
    batch: StrictInt | None = None
    context: StrictInt | None = None
    recipe: Path | None = None
    weight: StrictInt | StrictFloat = 1.0


class _ShapesFile(Document):
    version: Literal[1]
    shapes: Annotated[list[_ShapeEntry], Field(min_length=1)]


def parse_shapes(text: str) -> tuple[StepShape, ...]:
    """Return the shapes of ``"batch=1,8 context=1024"``, every combination, or of a YAML file with their weights.

    Raises:
        BadInputError: it is neither, a shape is empty, or there is one twice.
    """
    shapes = _of_text(text) if "=" in text else _of_file(Path(text))
    check_shapes(shapes)
    return shapes


def check_shapes(shapes: Sequence[StepShape]) -> None:
    """Raise ``BadInputError`` if there is no shape, one is empty or has no sensible sizes, or two have one name."""
    if not isinstance(shapes, tuple) or not shapes or not all(isinstance(shape, StepShape) for shape in shapes):
        raise BadInputError(f"--shapes must be such as {EXAMPLE}, a YAML file, or a list of StepShape; got {shapes!r}")
    for number, shape in enumerate(shapes, 1):
        if not all(type(size) is int for size in shape.sizes.values()) or type(shape.weight) not in (int, float):
            raise BadInputError(f"--shapes: shape {number} must have whole sizes and a number as its weight")
        if not isinstance(shape.recipe, Path | None):
            raise BadInputError(f"--shapes: the recipe of shape {number} must be a pathlib.Path")
        if not shape.name or (shape.recipe and shape.sizes):
            raise BadInputError(f"--shapes: shape {number} must have batch, context or both, or a recipe alone")
        if not all(1 <= size <= MAX_SIZE for size in shape.sizes.values()) or not 0 < shape.weight <= MAX_WEIGHT:
            raise BadInputError(
                f"--shapes: {shape.name} with weight {shape.weight:g}: sizes must be 1 to {MAX_SIZE}, and weights "
                f"more than 0, up to {MAX_WEIGHT:g}"
            )
        if any(shape.suffix == other.suffix for other in shapes[: number - 1]):
            fix = "rename one of the files" if shape.recipe else "leave one out"
            raise BadInputError(f"--shapes: {shape.name} is there twice; {fix}")


def _of_text(text: str) -> tuple[StepShape, ...]:
    sizes: dict[str, tuple[int, ...]] = {}
    for part in text.split():
        name, _, values = part.partition("=")
        are_sizes = all(value.isdecimal() and len(value) < 10 and int(value) for value in values.split(","))
        if name not in NAMES or name in sizes or not are_sizes:
            raise BadInputError(f"--shapes must be such as {EXAMPLE}, or a YAML file; got {text!r}")
        sizes[name] = tuple(int(value) for value in values.split(","))
    combinations = product(*sizes.values())
    given: list[dict[str, Any]] = [dict(zip(sizes, values, strict=True)) for values in combinations]
    return tuple(StepShape(**values) for values in given)


def _of_file(path: Path) -> tuple[StepShape, ...]:
    if not path.is_file():
        raise BadInputError(f"--shapes must be such as {EXAMPLE}, or a YAML file; got {str(path)!r}")
    entries = read_document(path, _ShapesFile, BadInputError).shapes
    return tuple(
        StepShape(entry.batch, entry.context, entry.recipe and path.parent / entry.recipe, entry.weight)
        for entry in entries
    )


def fields_of_shape(shape: StepShape) -> dict[str, Any]:
    """Return the options of a search at the shape."""
    return {"recipe": shape.recipe} if shape.recipe else dict(shape.sizes)
