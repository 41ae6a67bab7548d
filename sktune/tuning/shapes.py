"""Searches for several shapes: ``--shapes``.

Each shape has a study of its own: its baseline, its bits, its figures. The search goes through them twice. First the
shape that counts most is searched with half of the trials, and each other one with a few, which learn from the shapes
before. Then the plans that may be the answer for several shapes are tried where they have not been, and each shape has
its final comparison, in which they take part.
"""

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sktune.core.errors import BackendError, BadInputError, NothingTriedError, SktuneError, StudyError
from sktune.core.events.base import Event
from sktune.core.plan import Plan
from sktune.core.shapes import StepShape, fields_of_shape
from sktune.core.space import StartingPoint
from sktune.samplers import find_strategy
from sktune.samplers.partition import PartitionSampler
from sktune.study.claims import locked
from sktune.study.records import feasible
from sktune.study.result import SearchResult, result_of
from sktune.study.shapes import (
    REGRET,
    CrossPlans,
    ShapesRecord,
    ShapesResult,
    ShapeStudy,
    best_single,
    fewest_plans,
    has_room,
    is_in,
    read_record,
    stored_shapes,
    with_crossing,
)
from sktune.study.snapshot import names_before_search
from sktune.study.storage import DATABASE, shown
from sktune.study.stored_space import space_of
from sktune.study.study import folder_name
from sktune.tuning import earlier, loop
from sktune.tuning.request import DEFAULT_TRIALS, Request

MOST_TRIALS = 1.5
"""Trials at all shapes together, in those that one shape would get."""
FIRST_SHARE, OTHERS_SHARE = 0.5, 0.5
"""Of the trials for one shape: those of the first shape, and those of all others together; the rest are crossings."""
FIRST_TIME, OTHERS_TIME = 0.3, 0.3
"""The same of the time budget; the rest is for crossings and final comparisons."""
MIN_TRIALS = 3
"""At each other shape."""
MAX_SOURCES = 3
"""Shapes that another one learns from, the nearest ones: each of them takes time at every proposal."""
LEAST_SHARE = 0.05
"""Of the baseline's latency, which no plan is expected to beat by more: the model of what scopes save is linear."""
SINGLES = 3
"""Plans that are tried at all shapes, as the single plan, if there are trials for them."""

ShapeListener = Callable[[str, Event], None]


@dataclass(frozen=True, slots=True)
class Allotment:
    """Trials of the first shape, of each other one, and of all crossings together."""

    first: int
    other: int
    crossings: int

    @classmethod
    def of(cls, trials: int, shapes: int) -> "Allotment":
        """Return how ``trials``, the number for one shape, and half as many again are divided."""
        if shapes == 1:
            return cls(trials, 0, 0)
        first = max(1, math.ceil(FIRST_SHARE * trials))
        other = max(MIN_TRIALS, int(OTHERS_SHARE * trials) // (shapes - 1))
        return cls(first, other, max(shapes - 1, int(MOST_TRIALS * trials) - first - other * (shapes - 1)))


def search(
    request: Request, listener: ShapeListener = lambda study, event: None, began_s: float | None = None
) -> ShapesResult:
    """Search for all shapes of a request, or continue.

    Args:
        request: with ``shapes``.
        listener: called with the name of a shape's study, and each event of its search.
        began_s: when the time budget began, on the clock of ``time.monotonic``; None for now.

    Raises:
        SktuneError: as ``loop.run``, at any of the shapes.
    """
    targets = [each.target()[0] for each in alone(request)]
    name = request.study or targets[0].study_name
    folder = request.runs / folder_name(name)
    is_new = not folder.exists()
    with locked(folder), _forgotten_if_nothing_runs(request, name, folder, is_new):
        return _search(request, name, folder, listener, began_s)


def _search(request: Request, name: str, folder: Path, listener: ShapeListener, began_s: float | None) -> ShapesResult:
    record = _record(request, name)
    shapes = [each.shape for each in record.studies]
    requests = dict(zip(request.shapes or (), alone(replace(request, study=name)), strict=True))
    run = partial(_run, listener, time.monotonic() if began_s is None else began_s)
    allotment = Allotment.of(record.trials, len(shapes))
    learns = find_strategy(request.strategy).learns
    results: dict[StepShape, SearchResult] = {}
    if not read_record(folder):  # what is refused below leaves a stored one as it is
        record.write(folder)
    begun = {shape: _begun(requests[shape]) for shape in shapes}
    if request.learn_from:  # before any shape has run for nothing
        for shape, known in begun.items():
            if known:
                earlier.check_names(requests[shape], known.study, known.facts.earlier)
    has_taken = {shape for shape, known in begun.items() if known and (known.trials or known.facts.earlier)}
    trials = {shape: allotment.other if number else allotment.first for number, shape in enumerate(in_order(shapes))}
    ended = {shape: known for shape, known in begun.items() if known and loop.has_ended(known, trials[shape], request)}
    is_decided = len(ended) == len(shapes) and all(has_room(each, ended[each.shape]) for each in record.studies)
    if is_decided:
        results = ended
    for number, shape in enumerate(() if is_decided else trials):
        sources = sorted((other for other in results if results[other].has_figures), key=shape.distance)
        names = tuple(results[other].study for other in sources[:MAX_SOURCES]) if learns else ()
        if shape in has_taken:  # what it learns from, and others may learn from it
            names = ()
        wanted = replace(
            requests[shape],
            trials=trials[shape],
            learn_from=(*request.learn_from, *names),
            time_budget_s=_time(request, FIRST_TIME + OTHERS_TIME * number / max(1, len(shapes) - 1)),
            compares=len(shapes) == 1,
        )
        try:
            results[shape] = run(wanted)
        except NothingTriedError:  # its part of the time was too short to load the model
            results[shape] = run(replace(wanted, trials=1, time_budget_s=request.time_budget_s))
    if len(shapes) > 1 and not is_decided:
        for shape, crossing in _crossings(results, record, allotment.crossings, request.seed).items():
            record = with_crossing(record, requests[shape].study or "", crossing)
    record.write(folder)
    before = FIRST_TIME + OTHERS_TIME
    for number, each in enumerate(record.studies):
        if each.crossing:
            results[each.shape] = run(
                replace(
                    requests[each.shape],
                    trials=each.crossing.trials,
                    points=each.crossing.points,
                    until=None,
                    until_converged=False,
                    time_budget_s=_time(request, before + (1 - before) * (number + 1) / len(shapes)),
                )
            )
    from sktune.reports import shapes as reports  # a search goes without reports until it ends

    answer = ShapesResult(name, folder, record, [results[each.shape] for each in record.studies])
    reports.write(answer)
    return answer


def alone(request: Request) -> list[Request]:
    """Return the request for each of its shapes; itself if it has none."""
    return [
        replace(
            request, shapes=None, objective="sum", regret=None,
            study=request.study and f"{request.study}.{shape.suffix}", **fields_of_shape(shape),
        )
        for shape in request.shapes or ()
    ] or [request]  # fmt: skip


@contextmanager
def _forgotten_if_nothing_runs(request: Request, name: str, folder: Path, is_new: bool) -> Iterator[None]:
    """Remove a new study's folder if its first search fails before a trial: its name is free again."""
    try:
        yield
    except SktuneError:
        with suppress(SktuneError):  # the first error is the one to tell
            begun = stored_shapes(name, request.runs, request.storage) if is_new else None
            if is_new and not (begun and any(result.trials for result in begun.results)):
                shutil.rmtree(folder, ignore_errors=True)
        raise


def _run(listener: ShapeListener, began_s: float, request: Request) -> SearchResult:
    return loop.run(request, partial(listener, request.study or ""), began_s)


def _begun(request: Request) -> SearchResult | None:
    """Return the study of a shape as it is, a damaged one from its backup; None if it has not begun."""
    name = request.study or ""
    folder = request.runs / folder_name(name)
    if request.storage and name not in names_before_search(request.runs, request.storage):
        return None  # it would be created
    if not request.storage and not folder.exists():
        return None
    with locked(folder):
        study = loop.stored_study(request, name, folder)
        return result_of(study, folder) if study else None


def _time(request: Request, share: float) -> float | None:
    """Return the part of the time budget, from its beginning, after which a search has to end."""
    is_alone = len(request.shapes or ()) == 1
    return request.time_budget_s and (1.0 if is_alone else share) * request.time_budget_s


def _record(request: Request, name: str) -> ShapesRecord:
    """Return the record to go on with, as the request has it.

    Raises:
        BadInputError: a study with the name has a single shape, or other ones.
    """
    folder = request.runs / folder_name(name)
    if any(folder.glob(f"{DATABASE}*")) or (
        request.storage and name in names_before_search(request.runs, request.storage)
    ):
        raise BadInputError(f"study {name!r} has a single shape; name another one with --study")
    shapes, stored = request.shapes or (), read_record(folder)
    if stored and stored.study != name:
        raise BadInputError(f"the folder of {name!r} has the study {stored.study!r}; name another one with --study")
    if stored and not is_in(stored, request.storage):
        place = f"in the storage {stored.storage}" if stored.storage else f"in {request.runs}, without --storage"
        raise BadInputError(f"study {name!r} is {place}; give the same again, or name another one with --study")
    trials = request.trials or (stored.trials if stored else DEFAULT_TRIALS)
    if stored and all(each.crossing for each in stored.studies):
        trials = max(trials, stored.trials)  # those that it has stay
    if stored and {each.shape.suffix for each in stored.studies} != {shape.suffix for shape in shapes}:
        names = ", ".join(each.shape.name for each in stored.studies)
        raise BadInputError(f"study {name!r} is of the shapes {names}; give them again, or name another with --study")
    objective: Any = request.objective
    wanted = trials, objective, request.regret or REGRET
    known: dict[tuple[str, float], CrossPlans | None] = {}
    if stored and (stored.trials, stored.objective, stored.regret) == wanted:
        known = {(each.shape.suffix, each.shape.weight): each.crossing for each in stored.studies}
    if stored:  # in the order in which they learned from each other
        before = [each.shape.suffix for each in stored.studies]
        shapes = tuple(sorted(shapes, key=lambda shape: before.index(shape.suffix)))
    return ShapesRecord(
        name,
        tuple(ShapeStudy(shape, f"{name}.{shape.suffix}", known.get((shape.suffix, shape.weight))) for shape in shapes),
        *wanted,
        shown(request.storage or ""),
    )


def in_order(shapes: Sequence[StepShape]) -> list[StepShape]:
    """Return the shape that counts most, of equals the first, and then whichever is nearest to one before it."""
    left = list(shapes)
    ordered = [max(left, key=lambda shape: shape.weight)]
    left.remove(ordered[0])
    while left:
        nearest = min(left, key=lambda shape: min(map(shape.distance, ordered)))
        left.remove(nearest)
        ordered.append(nearest)
    return ordered


def _crossings(
    results: Mapping[StepShape, SearchResult], record: ShapesRecord, most: int, seed: int
) -> dict[StepShape, CrossPlans]:
    """Decide which plans each shape still has to try, from what the studies expect of all plans that have worked."""
    points: dict[Plan, StartingPoint] = {}
    for shape, result in results.items():
        for one in feasible(result.trials):
            points.setdefault(one.plan, StartingPoint(f"of {shape.name}", one.values))
    plans, shapes = list(points), [each.shape for each in record.studies]
    expected_ms: dict[Plan, list[float]] = {plan: [] for plan in (Plan(), *plans)}
    if not (measured_at := [shape for shape in shapes if results[shape].has_figures]):
        if any(result.has_failed for result in results.values()):
            raise BackendError(f"study {record.study!r}: no plan could be used at any shape; see {_logs(results)}")
        raise StudyError(f"study {record.study!r} has measured nothing; run the same command again with more time")
    digests = set()
    for shape in shapes:
        result = results[shape]
        space = space_of(result.facts, result.history)
        if space is None:
            raise StudyError(f"study {result.study!r} has no trial; run the same command again with more time")
        digests.add(space.digest)
        tried = {one.plan for one in result.trials}
        failed = tried - {one.plan for one in feasible(result.trials)}
        saved = PartitionSampler(space, seed).promise(result.history, plans) if plans else ()
        # Where no plan has worked yet, the baseline of the nearest shape stands in.
        baseline_ms = result.facts.baseline_ms or results[min(measured_at, key=shape.distance)].facts.baseline_ms
        assert baseline_ms is not None, "a study has figures, but no baseline"
        expected_ms[Plan()].append(baseline_ms)
        for plan, share in zip(plans, saved, strict=True):
            expected_ms[plan].append(math.inf if plan in failed else baseline_ms * max(LEAST_SHARE, 1 - share))
    if len(digests) > 1:
        raise StudyError("the model has other units or options at some of the shapes; search for these on their own")
    measured = [{one.plan for one in feasible(results[shape].trials)} for shape in shapes]
    wanted = plans_to_cross(
        expected_ms, measured, [shape.weight for shape in shapes], record.objective, record.regret, most
    )
    crossings = {}
    for shape, chosen, known in zip(shapes, wanted, measured, strict=True):
        # Those that a time limit or a kill has left behind come first, and count, too.
        unfinished = sum(not trial.state.is_finished() for trial in results[shape].history)
        trials = len(results[shape].trials) + unfinished + len(set(chosen) - known)
        crossings[shape] = CrossPlans(trials, tuple(points[plan] for plan in chosen))
    return crossings


def _logs(results: Mapping[StepShape, SearchResult]) -> str:
    return ", ".join(str(result.folder / "logs") for result in results.values() if result.has_failed)


def plans_to_cross(
    expected_ms: Mapping[Plan, Sequence[float]],
    measured: Sequence[set[Plan]],
    weights: Sequence[float],
    objective: str,
    regret: float,
    most: int,
) -> list[list[Plan]]:
    """Return the plans that each shape has to compare.

    Args:
        expected_ms: latency of each plan at each shape; infinite where it cannot work.
        measured: the plans that have been measured, by shape.
        weights: of the shapes.
        objective, regret: see ``ShapesRecord``.
        most: trials that this may take.
    """
    everywhere = range(len(weights))
    wanted: list[list[Plan]] = [[] for _ in weights]
    left = most

    def want(plan: Plan, shapes: Sequence[int]) -> None:
        """Have a plan compared at all of some shapes, or at none if there are not enough trials."""
        nonlocal left
        missing = [shape for shape in shapes if plan not in measured[shape] and plan not in wanted[shape]]
        if plan.is_baseline or len(missing) > left:
            return
        left -= len(missing)
        for shape in shapes:
            if plan not in wanted[shape]:
                wanted[shape].append(plan)

    best_ms = list(map(min, zip(*expected_ms.values(), strict=True)))
    others = {plan: latencies for plan, latencies in expected_ms.items() if all(map(math.isfinite, latencies))}
    singles: list[Plan] = []
    while others and len(singles) < SINGLES:
        singles.append(best_single(others, weights, objective))
        del others[singles[-1]]
    chosen = fewest_plans(expected_ms, weights, regret)
    for plan in singles[:1]:
        want(plan, everywhere)
    for shape in everywhere:
        want(min((*chosen, Plan()), key=lambda plan: expected_ms[plan][shape]), [shape])
        want(min(expected_ms, key=lambda plan: expected_ms[plan][shape]), [shape])
    for plan in singles[1:]:
        want(plan, everywhere)
    for plan in chosen:
        want(plan, [shape for shape in everywhere if expected_ms[plan][shape] <= (1 + 2 * regret) * best_ms[shape]])
    return wanted
