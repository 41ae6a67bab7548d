"""Earlier studies whose findings a search begins with: `--learn-from`."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

from sktune.core.earlier import EarlierStudy
from sktune.core.errors import BadInputError, SktuneError, nearest
from sktune.core.layout import OUTSIDE, Layout
from sktune.core.shapes import StepShape
from sktune.learning.history import Learned
from sktune.learning.segments import unit_types
from sktune.study.result import SearchResult
from sktune.study.shapes import names_of_shapes, stored_shapes
from sktune.study.snapshot import names_before_search, snapshot
from sktune.study.storage import DATABASE, shown
from sktune.study.stored_space import space_of
from sktune.study.study import folder_name, sqlite_url
from sktune.tuning.request import Request

AUTO = "auto"
MAX_STUDIES = 4
"""The most studies that ``auto``, or a study of several shapes, stands for: each takes time at every proposal."""


def check_names(request: Request, own: str, taken: Sequence[EarlierStudy] = ()) -> None:
    """Check the names of the studies that a request learns from, without loading a model.

    Args:
        request: names them.
        own: the name of the study that learns.
        taken: from which it learns already.

    Raises:
        BadInputError: one does not exist, or the study already learns from others.
        StudyError: one cannot be read.
    """
    took = [study.name for study in taken]
    names = [name for name in request.learn_from if name not in (AUTO, *took)]
    stored = names_before_search(request.runs, request.storage) if names else []
    # Those of its shapes, if the name is no study's: their own study may be gone.
    names = [name for name in names if name in stored or not any(one.startswith(f"{name}.") for one in took)]
    if names and taken:
        raise BadInputError(
            f"--learn-from {names[0]}: study {own!r} learns from {', '.join(took)}, and from "
            "nothing else; leave it out, or begin a new study with --study"
        )
    known = [name for name in stored if name != own]
    for name in _studies_of(request, names):
        if name == own and name not in names:
            continue  # one of the shapes of a study that is named
        if name not in known:
            if name != own and not request.storage and (request.runs / folder_name(name) / DATABASE).exists():
                _result(request, name)  # which says why it cannot be read
            where = f" in {shown(request.storage)}" if request.storage else ""
            others = [*known, *names_of_shapes(request.runs)]
            raise BadInputError(f"--learn-from: there is no other study {name!r}{where}{nearest(name, others)}")
        if not _result(request, name).has_figures:
            raise _measured_nothing(name)


def _studies_of(request: Request, names: Sequence[str]) -> list[str]:
    """Return the studies with these names; for one of several shapes those of its shapes that have figures.

    Of many shapes the nearest ones to the request's are taken.

    Raises:
        BadInputError: a study of several shapes has measured nothing yet.
    """
    shape = StepShape(request.batch, request.context)
    studies: list[str] = []
    for name in names:
        if (answer := stored_shapes(name, request.runs, request.storage)) is None:
            studies.append(name)
            continue
        measured = [pair for pair in zip(answer.shapes, answer.results, strict=True) if pair[1].has_figures]
        if not measured:
            raise _measured_nothing(name)
        measured.sort(key=lambda pair: shape.distance(pair[0]))
        studies += [result.study for _, result in measured[:MAX_STUDIES]]
    return list(dict.fromkeys(studies))


def earlier_studies(
    request: Request, own: str, layout: Layout, *, is_simulated: bool, is_new: bool
) -> tuple[EarlierStudy, ...]:
    """Return what the studies that a request names have found.

    Args:
        request: names the studies, and where they are.
        own: the name of the study that begins, which does not learn from itself.
        layout: of its model.
        is_simulated: whether it is a simulation, which ``auto`` keeps apart from real ones.
        is_new: whether it has no trial, from which another one may have learned; otherwise ``auto`` takes none.

    Raises:
        BadInputError: a study has measured nothing, or none of this model's layers.
        StudyError: it cannot be read.
    """
    types = _in_layers(layout)
    studies = _studies_of(request, [name for name in request.learn_from if name != AUTO])
    named = [name for name in studies if name != own]
    found = []
    for name in named:
        result = _result(request, name)
        if not _shared(result, types):
            raise BadInputError(f"--learn-from {name}: it shares no unit of a layer with this model; leave it out")
        if any(study.name == own for study in result.facts.earlier):
            raise BadInputError(f"--learn-from {name}: it has itself learned from {own!r}; leave it out")
        if (study := _findings(result)) is None:
            raise _measured_nothing(name)
        found.append(study)
    if is_new and AUTO in request.learn_from:
        names = [name for name in names_before_search(request.runs, request.storage) if name not in (own, *named)]
        related = list(_related(request, names, types, is_simulated=is_simulated))
        related.sort(key=lambda result: (_shared(result, types), len(result.trials)), reverse=True)
        found += islice(filter(None, map(_findings, related)), MAX_STUDIES)
    return tuple(found)


def _measured_nothing(name: str) -> BadInputError:
    return BadInputError(f"--learn-from {name}: it has measured nothing yet; let it run first, or leave it out")


def _in_layers(layout: Layout) -> set[str]:
    """Return the types of units in layers: every model has an embedding and a head."""
    return {kind for kind in unit_types(layout) if not kind.startswith(f"{OUTSIDE}.")}


def _shared(result: SearchResult, types: set[str]) -> int:
    """Return how many types of units in layers a study has in common with a model."""
    layout = result.facts.layout
    return len(types & _in_layers(layout)) if layout else 0


def _findings(result: SearchResult) -> EarlierStudy | None:
    if (space := space_of(result.facts, result.history)) is None:
        return None
    learned = Learned(space)
    learned.read_once(result.history)
    return learned.findings(result.study) if learned.model.count else None


def _related(request: Request, names: Sequence[str], types: set[str], *, is_simulated: bool) -> Iterator[SearchResult]:
    """Yield the studies with such units that can be read here; nobody asked for the others by name."""
    for name in names:
        with suppress(SktuneError):
            result = _result(request, name)
            if _shared(result, types) and result.is_simulated == is_simulated:
                yield result


def _result(request: Request, name: str) -> SearchResult:
    folder = request.runs / folder_name(name)
    return snapshot(name, request.storage or sqlite_url(folder), folder)
