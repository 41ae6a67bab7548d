"""Searches from Python: what ``sktune.search`` and ``sktune.load`` do, and the same for several shapes."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from sktune.core.errors import BadInputError, nearest
from sktune.core.search_options import SearchOptions, taking
from sktune.core.shapes import StepShape, check_shapes
from sktune.study.result import stored_result
from sktune.study.shapes import stored_shapes
from sktune.tuning import loop
from sktune.tuning.request import Request

if TYPE_CHECKING:
    from sktune.reports.result import Result, ShapesAnswer

_TYPES = get_type_hints(SearchOptions)
_OF_SHAPES = ("shapes", "objective", "regret")
_OPTIONS = [each.replace(annotation=_TYPES[each.name]) for each in inspect.signature(SearchOptions).parameters.values()]


@taking([each for each in _OPTIONS if each.name not in _OF_SHAPES])
def search(
    model: str = "", *, listener: Callable[[dict[str, Any]], None] = lambda event: None, **options: Any
) -> "Result":
    """Search as ``sktune search`` does, and return the study's result.

    Args:
        model: a preset, a folder with a ``config.json``, or ``file.py:function``; empty where ``recipe`` is given.
        listener: called with each event that ``--json`` prints, as a dictionary with the key ``event``.
        options: other fields of ``sktune.core.search_options.SearchOptions``, such as ``trials`` and ``time_budget_s``;
            paths may be strings.

    Raises:
        SktuneError: bad input, a model that cannot be tuned, or Ctrl-C.
    """
    if options.get("shapes"):
        raise BadInputError("several shapes have another result; use sktune.search_shapes")
    result = loop.search(_request(model, options), lambda event: listener(event.to_dict()))
    from sktune.reports.result import Result  # a search goes without reports until it ends

    return Result.of(result)


@taking(_OPTIONS)
def search_shapes(
    model: str = "",
    *,
    shapes: str | Path | Sequence[StepShape],
    listener: Callable[[dict[str, Any]], None] = lambda event: None,
    **options: Any,
) -> "ShapesAnswer":
    """Search as ``sktune search --shapes`` does, and return the answer for all shapes.

    Args:
        model: as for ``search``.
        shapes: such as ``"batch=1,8 context=1024"``, the path of a YAML file, or shapes.
        listener: called with each event, which also has the key ``study``.
        options: as for ``search``.

    Raises:
        SktuneError: as for ``search``, at any of the shapes.
    """
    from sktune.tuning.shapes import search

    given = str(shapes) if isinstance(shapes, Path) else tuple(shapes) if isinstance(shapes, list) else shapes
    if not isinstance(given, str):
        check_shapes(given)
    request = _request(model, options | {"shapes": given})
    answer = search(request, lambda study, event: listener(event.to_dict() | {"study": study}))
    from sktune.reports.result import ShapesAnswer

    return ShapesAnswer.of(answer)


def _request(model: str, options: dict[str, Any]) -> Request:
    if "rehearse" in options:
        raise BadInputError("a rehearsal has no result; use sktune.recipes.rehearsal.rehearse, or `--rehearse`")
    known = Request.__dataclass_fields__
    if unknown := options.keys() - known:
        raise BadInputError(f"a search has no option {min(unknown)!r}{nearest(min(unknown), known)}")
    return Request(model, **options)


def load(study: str, runs: Path | str = "runs", storage: str | None = None) -> "Result":
    """Return the result of a stored study.

    Args:
        study: its name.
        runs: folder that holds the studies.
        storage: URL of its Optuna storage; None for the database in its folder.

    Raises:
        SktuneError: there is no such study, or it cannot be read.
    """
    from sktune.reports.result import Result

    if stored_shapes(study, Path(runs), storage):
        raise BadInputError(f"study {study!r} is of several shapes; use sktune.load_shapes")
    return Result.of(stored_result(study, Path(runs), storage))


def load_shapes(study: str, runs: Path | str = "runs", storage: str | None = None) -> "ShapesAnswer":
    """Return the answer of a stored study of several shapes; arguments and errors are those of ``load``."""
    from sktune.reports.result import ShapesAnswer

    if (answer := stored_shapes(study, Path(runs), storage)) is None:
        raise BadInputError(f"there is no study {study!r} of several shapes; use sktune.load for one of a single shape")
    return ShapesAnswer.of(answer)
