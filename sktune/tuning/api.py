"""Searches from Python: what ``sktune.search`` and ``sktune.load`` do."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from sktune.core.errors import BadInputError, nearest
from sktune.core.search_options import SearchOptions, taking
from sktune.study.result import stored_result
from sktune.study.shapes import stored_shapes
from sktune.tuning import loop
from sktune.tuning.request import Request

if TYPE_CHECKING:
    from sktune.reports.result import Result, ShapesAnswer

_TYPES = get_type_hints(SearchOptions)


@taking([each.replace(annotation=_TYPES[each.name]) for each in inspect.signature(SearchOptions).parameters.values()])
def search(
    model: str = "", *, listener: Callable[[dict[str, Any]], None] = lambda event: None, **options: Any
) -> "Result | ShapesAnswer":
    """Search as ``sktune search`` does, and return the study's result, or with ``shapes`` that of all of them.

    Args:
        model: a preset, a folder with a ``config.json``, or ``file.py:function``; empty where ``recipe`` is given.
        listener: called with each event that ``--json`` prints, as a dictionary with the key ``event``.
        options: other fields of ``sktune.core.search_options.SearchOptions``, such as ``trials`` and ``time_budget_s``;
            paths may be strings.

    Raises:
        SktuneError: bad input, a model that cannot be tuned, or Ctrl-C.
    """
    if "rehearse" in options:
        raise BadInputError("a rehearsal has no result; use sktune.recipes.rehearsal.rehearse, or `--rehearse`")
    known = Request.__dataclass_fields__
    if unknown := options.keys() - known:
        raise BadInputError(f"a search has no option {min(unknown)!r}{nearest(min(unknown), known)}")
    request = Request(model, **options)
    if request.shapes:
        from sktune.tuning import shapes

        answer = shapes.search(request, lambda study, event: listener(event.to_dict() | {"study": study}))
        from sktune.reports.result import ShapesAnswer

        return ShapesAnswer.of(answer)
    result = loop.search(request, lambda event: listener(event.to_dict()))
    from sktune.reports.result import Result  # a search goes without reports until it ends

    return Result.of(result)


def load(study: str, runs: Path | str = "runs", storage: str | None = None) -> "Result | ShapesAnswer":
    """Return the result of a stored study, or of one of several shapes.

    Args:
        study: its name.
        runs: folder that holds the studies.
        storage: URL of its Optuna storage; None for the database in its folder.

    Raises:
        SktuneError: there is no such study, or it cannot be read.
    """
    from sktune.reports.result import Result, ShapesAnswer

    if shapes := stored_shapes(study, Path(runs), storage):
        return ShapesAnswer.of(shapes)
    return Result.of(stored_result(study, Path(runs), storage))
