"""Studies of several shapes: each shape has a study of its own, and together they have one answer."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from sktune.core.codec import encoded
from sktune.core.errors import BadInputError, StudyError
from sktune.core.files import read_text, write_text
from sktune.core.plan import Plan
from sktune.core.printable import one_line
from sktune.core.shapes import StepShape
from sktune.core.space import StartingPoint
from sktune.study.facts import StudyFacts, stored_value
from sktune.study.records import feasible
from sktune.study.result import SearchResult, stored_result
from sktune.study.snapshot import snapshot_names
from sktune.study.storage import DATABASE, RECORD, shown
from sktune.study.stored_space import space_of
from sktune.study.study import folder_name, sqlite_url

FORMAT = 1
MAX_PLANS = 3
"""Sets of more plans are not looked for: the program would have to be compiled with each."""
MANY_PLANS = 60
"""Of more plans, not every set is looked at."""
REGRET = 0.01
"""What the fewest plans may lose at each shape, by default."""


@dataclass(frozen=True, slots=True)
class CrossPlans:
    """What a shape's study is to try of the others' plans, decided once.

    Attributes:
        trials: that the study then has in all.
        points: the plans to try, to verify and to compare there.
    """

    trials: int
    points: tuple[StartingPoint, ...]


@dataclass(frozen=True, slots=True)
class ShapeStudy:
    """A shape, the name of its study, and what was decided for its last trials; None before that."""

    shape: StepShape
    study: str
    crossing: CrossPlans | None = None


@dataclass(frozen=True, slots=True)
class ShapesRecord:
    """What is stored of a study of several shapes, beside the studies themselves.

    Attributes:
        study: its name.
        studies: of the shapes, in the order in which they were given.
        trials: for one shape, that the command asked for when the crossings were decided.
        objective: ``sum`` or ``worst``; see ``ShapesResult.single``.
        regret: share that the fewest plans may lose at each shape to its best one.
        storage: URL of the storage with the studies, without passwords; empty for the studies' folders.
        format: of the record.
    """

    study: str
    studies: Annotated[tuple[ShapeStudy, ...], Field(min_length=1)]
    trials: Annotated[int, Field(ge=1)]
    objective: Literal["sum", "worst"] = "sum"
    regret: Annotated[float, Field(gt=0, lt=1)] = REGRET
    storage: str = ""
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Write the record into the folder of the study of several shapes."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / RECORD, json.dumps(encoded(self), indent=1) + "\n")
        except OSError as failure:
            raise StudyError(f"{folder / RECORD} cannot be written ({failure.strerror}); fix that") from failure


def read_record(folder: Path) -> ShapesRecord | None:
    """Return the record in a folder; None if its study has a single shape.

    Raises:
        StudyError: it is damaged, or was made by a newer sktune.
    """
    path = folder / RECORD
    if not path.exists():
        return None
    text = read_text(path, StudyError, "restore it, or name another study with --study")
    try:
        values = json.loads(text)
        version = values.get("format") if isinstance(values, dict) else None
        if isinstance(version, int) and version > FORMAT:
            raise StudyError(f"{path} was made by a newer sktune; upgrade sktune, or name another study with --study")
    except ValueError as failure:
        raise StudyError(
            f"{path} cannot be read ({one_line(str(failure))}); restore it, or name another study with --study"
        ) from failure
    return stored_value(ShapesRecord, values, str(path))


@dataclass(frozen=True, slots=True)
class PlanAtShapes:
    """A plan, and the numbers of the shapes at which it is to be used, from 0."""

    plan: Plan
    shapes: tuple[int, ...]


@dataclass(frozen=True)
class ShapesResult:
    """The answer of a study of several shapes, from the final comparisons of the shapes' studies.

    Attributes:
        study: its name.
        folder: of its files.
        record: what is stored of it.
        results: of the shapes' studies, in their order.
    """

    study: str
    folder: Path
    record: ShapesRecord
    results: Sequence[SearchResult] = field(repr=False)

    @property
    def shapes(self) -> tuple[StepShape, ...]:
        """The shapes."""
        return tuple(each.shape for each in self.record.studies)

    @property
    def is_finished(self) -> bool:
        """Whether every shape has the verdict of a final comparison, or one that nothing is faster."""
        return all(
            result.verdict and result.baseline_ms and (result.is_compared or not result.winner)
            for result in self.results
        )

    @property
    def untried(self) -> tuple[StepShape, ...]:
        """The shapes at which plans that were chosen to be compared have not been tried yet, as time had run out."""
        pairs = zip(self.record.studies, self.results, strict=True)
        return tuple(each.shape for each, result in pairs if not has_tried(each, result))

    @property
    def without_plan(self) -> tuple[StepShape, ...]:
        """The shapes at which no plan could be used, fast or slow."""
        return tuple(shape for shape, result in zip(self.shapes, self.results, strict=True) if result.has_failed)

    @property
    def unverified(self) -> tuple[StepShape, ...]:
        """The shapes whose own answer has bits that were compared in its trial alone, and is not named for that."""
        pairs = zip(self.shapes, self.results, strict=True)
        return tuple(shape for shape, one in pairs if one.winner and one.winner.plan not in latencies_of(one))

    @property
    def is_simulated(self) -> bool:
        """Whether the figures come from a model of the device."""
        return any(result.is_simulated for result in self.results)

    @cached_property
    def latencies_ms(self) -> Mapping[Plan, tuple[float, ...]]:
        """Latency of each plan at each shape; infinite where it was not compared, or its bits were not verified.

        The empty plan is that of the baseline.

        Raises:
            StudyError: not every shape has its final comparison yet.
        """
        if not self.is_finished:
            raise StudyError(f"not every shape of {self.study!r} has its final comparison yet; run the command again")
        by_shape = [latencies_of(result) for result in self.results]
        plans = dict.fromkeys(plan for latencies in by_shape for plan in latencies)
        return {plan: tuple(latencies.get(plan, math.inf) for latencies in by_shape) for plan in plans}

    @cached_property
    def best_ms(self) -> tuple[float, ...]:
        """Latency of the best plan at each shape."""
        return tuple(map(min, zip(*self.latencies_ms.values(), strict=True)))

    def regrets(self, plan: Plan) -> tuple[float, ...]:
        """Return what a plan loses at each shape to the best one there, as a share of that one's latency.

        Raises:
            StudyError: it was compared at none of them.
        """
        if plan not in self.latencies_ms:
            raise StudyError(
                f"the plan was not compared at the shapes of {self.study!r}; give one of its trials' plans"
            )
        return tuple(latency / best - 1 for latency, best in zip(self.latencies_ms[plan], self.best_ms, strict=True))

    @cached_property
    def single(self) -> Plan:
        """The best plan for all shapes.

        By the objective, it has the least weighted sum of latencies, or the least of the largest regrets. The empty
        plan if the baseline is best.
        """
        weights = [shape.weight for shape in self.shapes]
        return best_single(self.latencies_ms, weights, self.record.objective)

    @cached_property
    def plans(self) -> tuple[PlanAtShapes, ...]:
        """The fewest plans of which one loses at most ``record.regret`` at each shape, each with its shapes.

        The empty plan is among them where the others are slower than the baseline.
        """
        weights = [shape.weight for shape in self.shapes]
        chosen = fewest_plans(self.latencies_ms, weights, self.record.regret)
        shapes: dict[Plan, list[int]] = {}
        for number in range(len(self.shapes)):
            best = min((*chosen, Plan()), key=lambda plan: self.latencies_ms[plan][number])
            shapes.setdefault(best, []).append(number)
        return tuple(PlanAtShapes(plan, tuple(numbers)) for plan, numbers in shapes.items())

    def plan_at(self, number: int) -> Plan:
        """Return the plan to use at a shape; ``IndexError`` if there is none with this number, from 0."""
        if not 0 <= number < len(self.shapes):
            raise IndexError(f"study {self.study!r} has {len(self.shapes)} shapes, from 0; got {number}")
        return next(each.plan for each in self.plans if number in each.shapes)

    def trial_of(self, number: int, plan: Plan) -> int | None:
        """Return the number of the trial that a plan has in a shape's final comparison; None for the baseline."""
        return next((int(name) for name, compared in compared_plans(self.results[number]) if compared == plan), None)


def best_single(latencies_ms: Mapping[Plan, Sequence[float]], weights: Sequence[float], objective: str) -> Plan:
    """Return the plan with the least weighted sum of latencies, or with the least of the worst regrets.

    Of equals the simplest; there must be one plan that works at all shapes, which the empty one does.
    """
    best: list[float] = list(map(min, zip(*latencies_ms.values(), strict=True)))

    def worth(plan: Plan) -> float:
        latencies = latencies_ms[plan]
        if objective == "worst":
            return max(latency / least for latency, least in zip(latencies, best, strict=True))
        return float(sum(weight * latency for weight, latency in zip(weights, latencies, strict=True)))

    return min(latencies_ms, key=lambda plan: (worth(plan), plan.complexity))


def fewest_plans(
    latencies_ms: Mapping[Plan, Sequence[float]], weights: Sequence[float], regret: float
) -> tuple[Plan, ...]:
    """Return the fewest plans of which one, or the empty one, loses at most ``regret`` at each shape to the best there.

    The empty one, the baseline, is at hand everywhere and counts as none. Of sets with as many plans, the one with the
    least weighted sum of latencies. Beyond ``MAX_PLANS`` a plan is added for the shape that gains most by its own best
    one, until the regret holds.
    """
    shapes = range(len(weights))
    best: list[float] = list(map(min, zip(*latencies_ms.values(), strict=True)))
    limits = [(1 + regret) * least for least in best]

    def latency(chosen: Sequence[Plan], shape: int) -> float:
        return min(latencies_ms[plan][shape] for plan in (*chosen, Plan()))

    def holds(chosen: Sequence[Plan]) -> bool:
        return all(latency(chosen, shape) <= limits[shape] for shape in shapes)

    def worth(chosen: Sequence[Plan]) -> float:
        return sum(weights[shape] * latency(chosen, shape) for shape in shapes)

    at: dict[Plan, frozenset[int]] = {
        plan: frozenset(shape for shape in shapes if latencies[shape] <= limits[shape])
        for plan, latencies in latencies_ms.items()
    }
    useful = [plan for plan, held in at.items() if held]
    if len(useful) > MANY_PLANS:  # of those that hold at the same shapes, the best there is enough
        useful.sort(key=lambda plan: -sum(weights[shape] * latencies_ms[plan][shape] for shape in at[plan]))
        useful = list({at[plan]: plan for plan in useful}.values())
    for count in range(1, min(MAX_PLANS, len(shapes)) + 1):
        if holding := [chosen for chosen in combinations(useful, count) if holds(chosen)]:
            return min(holding, key=lambda chosen: (worth(chosen), [plan.complexity for plan in chosen]))
    chosen = [best_single(latencies_ms, weights, "sum")]
    while not holds(chosen):
        worst = max(shapes, key=lambda shape: latency(chosen, shape) / best[shape])
        chosen.append(min(useful, key=lambda plan: (latencies_ms[plan][worst], plan.complexity)))
    return tuple(chosen)


def compared_plans(result: SearchResult) -> list[tuple[str, Plan]]:
    """Return the plans of a final comparison by the names of their rows."""
    plans = {str(record.number): record.judged_plan for record in result.trials}
    return [(row.name, plans[row.name]) for row in result.final if row.name in plans]


def latencies_of(result: SearchResult) -> dict[Plan, float]:
    """Return the latency of each plan that may be used at a shape: compared there, with bits that were verified.

    It is the baseline's over the measured speedup. No plan counts as faster than the verdict's answer: what is not told
    apart from it is no better.
    """
    assert result.baseline_ms is not None and result.speedup is not None, "the shape has no final comparison"
    latencies, least_ms = {Plan(): result.baseline_ms}, result.baseline_ms / result.speedup
    rows = {row.name: row for row in result.final}
    for name, plan in compared_plans(result):
        speedup = result.final_speedup(rows[name])
        if speedup and rows[name].bit_identical is not False and _is_verified(result, int(name)):
            latencies[plan] = max(least_ms, min(latencies.get(plan, math.inf), result.baseline_ms / speedup.ratio))
    return latencies


def has_compared(result: SearchResult, points: Sequence[StartingPoint]) -> bool:
    """Whether each plan of the points that has worked was in the final comparison, and was verified, as the winner."""
    space = space_of(result.facts, result.history)
    wanted = {space.plan(point.values) for point in points} if space else set()
    rows = {row.name: row for row in result.final}
    winner = result.winner.number if result.winner else None
    numbers = [record.number for record in feasible(result.trials) if record.plan in wanted or record.number == winner]
    return all(
        (row := rows.get(str(number)))
        and (row.speedup is None or row.bit_identical is False or _is_verified(result, number))
        for number in numbers
    )


def has_tried(study: ShapeStudy, result: SearchResult) -> bool:
    """Whether a shape's study has tried every plan that was decided for it."""
    if study.crossing is None or not study.crossing.points:
        return True
    space, tried = space_of(result.facts, result.history), {record.plan for record in result.trials}
    return space is not None and all(space.plan(point.values) in tried for point in study.crossing.points)


def has_room(study: ShapeStudy, result: SearchResult) -> bool:
    """Whether what was decided for a shape's study still holds: it was tried, or there are trials left for it."""
    if study.crossing is None:
        return False
    left = study.crossing.trials - len(result.trials)
    return left > 0 or (left == 0 and has_tried(study, result))


def _is_verified(result: SearchResult, number: int) -> bool:
    if not result.is_verified or result.usage.is_own_program:  # a program's runs are verified in each trial
        return True
    return str(number) in result.facts.verifications and result.facts.verifications[str(number)].is_identical


def names_of_shapes(runs: Path) -> list[str]:
    """Return the names of the studies of several shapes in a folder of runs, in alphabetical order.

    One whose record cannot be read has that of its folder.
    """
    names = []
    for path in runs.glob(f"*/{RECORD}"):
        try:
            record = read_record(path.parent)
        except StudyError:
            record = None
        names.append(record.study if record else path.parent.name)
    return sorted(names)


def is_in(record: ShapesRecord, storage: str | None) -> bool:
    """Whether a study of several shapes is in a storage, by whatever URL; None for the folders of its studies."""
    if not storage or not record.storage:
        return not storage and not record.storage
    if record.storage == shown(storage):
        return True
    names = snapshot_names(storage)
    return any(each.study in names for each in record.studies)


def stored_shapes(
    name: str, runs: Path, storage: str | None = None, read: Callable[[str], SearchResult] | None = None
) -> ShapesResult | None:
    """Return the answer of the study ``name``; None if it has a single shape.

    ``read`` returns the result of a shape's study that has begun; by default the stored one.

    Raises:
        StudyError: it, or the study of one of its shapes, cannot be read, or it is in a storage and none is given.
    """
    folder = runs / folder_name(name)
    if (record := read_record(folder)) is None or record.study != name:
        return None
    if record.storage and not storage:
        raise StudyError(f"study {name!r} is in the storage {record.storage}; give that with --storage")
    if not is_in(record, storage):
        return None
    stored: Sequence[str] = snapshot_names(storage) if storage else ()
    read = read or partial(stored_result, runs=runs, storage=storage)
    results = []
    for each in record.studies:
        its_folder = runs / folder_name(each.study)
        if not storage:  # a database is there before its study
            file = its_folder / DATABASE
            stored = snapshot_names(sqlite_url(its_folder)) if file.exists() and file.stat().st_size else ()
        has_begun = each.study in stored
        results.append(
            read(each.study) if has_begun else SearchResult(each.study, its_folder, (), None, None, StudyFacts())
        )
    return ShapesResult(name, folder, record, results)


def by_shape(answers: Sequence[ShapesResult]) -> list[list[SearchResult]]:
    """Return the studies of each shape that all answers have begun, in their order.

    Raises:
        BadInputError: they have no such shape in common.
    """
    studies = [
        {
            shape.name: result
            for shape, result in zip(answer.shapes, answer.results, strict=True)
            if result.facts.fingerprint
        }
        for answer in answers
    ]
    if not (shared := [name for name in studies[0] if all(name in each for each in studies)]):
        names = ", ".join(answer.study for answer in answers)
        raise BadInputError(f"{names} have no shape in common; compare studies of the same shapes")
    return [[each[name] for each in studies] for name in shared]


def with_crossing(record: ShapesRecord, study: str, crossing: CrossPlans) -> ShapesRecord:
    """Return the record with what was decided for a shape."""
    studies = (replace(each, crossing=crossing) if each.study == study else each for each in record.studies)
    return replace(record, studies=tuple(studies))
