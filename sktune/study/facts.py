"""Facts about a study as a whole, each stored as an attribute of its Optuna study."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import SerializerFunctionWrapHandler, ValidationError, model_serializer, model_validator

from sktune.core.codec import LEFT_OUT_IF_EMPTY, decoded, encoded
from sktune.core.delivery import Delivery
from sktune.core.earlier import EarlierStudy
from sktune.core.errors import PlanError, StudyError
from sktune.core.events.values import ProfileFigures
from sktune.core.layout import Layout
from sktune.core.printable import one_line
from sktune.core.verification import Verification
from sktune.learning.attributes import PREFIX
from sktune.measure.final_comparison import FinalComparison
from sktune.measure.noise_floor import NoiseFloorSample, noise_floor

FORMAT = 1
"""Of the stored facts."""


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """The compiled code that was written for a trial's plan.

    Attributes:
        trial: number of the winner at that time.
        delivery: the code; None if the backend does not write any.
        problem: why it could not be written; empty if nothing failed.
    """

    trial: int
    delivery: Delivery | None = None
    problem: Annotated[str, LEFT_OUT_IF_EMPTY] = ""

    @model_serializer(mode="wrap")
    def _flat(self, encode: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = encode(self)
        return values | (values.pop("delivery") or {})

    @model_validator(mode="before")
    @classmethod
    def _nested(cls, values: Any) -> Any:
        return values | {"delivery": values if "code" in values else None} if isinstance(values, dict) else values


@dataclass(frozen=True, slots=True)
class StudyFacts:
    """Facts about a study as a whole; unknown ones have their defaults.

    Attributes:
        format: of the stored facts.
        fingerprint: everything that the figures depend on, by name.
        target: how to build the model again (``spec``), and which of its modules are units (``units``).
        description: of the target, in one line.
        space_size: number of plans, as digits: it may be too large for a database.
        model_difference: where the baseline differs from the uncompiled model; empty if it does not, None if not
            compared.
        modules: digests of the files that the target imported, by path.
        layout: of the traced decode step.
        baseline_ms: the baseline latency that the values of all trials refer to.
        floor_looks: samples of the noise floor, in the order of the search.
        verifications: verifications made after their trials had ended, by trial number.
        final: the final comparison.
        final_trials: number of trials before it.
        is_complete: whether what follows a final comparison was done, too: the code of its plans and the bound.
        final_seconds: time that it took, by stage; see ``sktune.core.outcome.Stage``, and ``open`` before the first.
        uncompared: whether the last search ended before its final comparison.
        seconds: total time of the study's searches.
        exhausted: whether every plan of the space was tried.
        reached: trials after which a search stopped as its bound on what is left was within the share that was asked
            for, or the noise floor, and that share; None if none did.
        gain_left: with 95% probability no plan saves more than this beyond the answer, as a share of the baseline.
        earlier: studies that this one learns from, as they were when it began.
        calls: types and shapes with which the decode step calls the first unit of each type, by name; of a program
            those with which it calls the compiled function.
        delivery: the winner's compiled code.
        deliveries: that of other plans which were asked for; see ``sktune.tuning.request.Request.points``.
        profile: figures of the profile that was given to an analysis.
        command, directory: how and where the program of a recipe is started; None for other targets.
        environment: variables that the recipe sets for it.
        yaml: ``file``, and the values ``set`` in it, if the recipe's program reads a YAML.
        decode: ``function`` and ``signature`` of the program's decode step.
        verified: in words, how each trial of the program is verified.
        alternates: whether the program alternates between the plan and the baseline.
        versions: of the program's Python, torch, torch_npu and transformers, by name; empty for other targets.
    """

    format: int = FORMAT
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    target: Mapping[str, Any] | None = None
    description: str = ""
    space_size: str = ""
    model_difference: str | None = None
    modules: Mapping[str, str] = field(default_factory=dict)
    layout: Layout | None = None
    baseline_ms: float | None = None
    floor_looks: tuple[NoiseFloorSample, ...] = ()
    verifications: Mapping[str, Verification] = field(default_factory=dict)
    final: FinalComparison | None = None
    final_trials: int | None = None
    is_complete: bool = True
    final_seconds: Mapping[str, float] = field(default_factory=dict)
    uncompared: bool = False
    seconds: float = 0.0
    exhausted: bool = False
    reached: tuple[int, float] | None = None
    gain_left: float | None = None
    earlier: tuple[EarlierStudy, ...] = ()
    calls: Mapping[str, str] = field(default_factory=dict)
    delivery: DeliveryRecord | None = None
    deliveries: tuple[DeliveryRecord, ...] = ()
    profile: ProfileFigures | None = None
    command: str | None = None
    directory: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    yaml: Mapping[str, Any] | None = None
    decode: Mapping[str, Any] | None = None
    verified: str | None = None
    alternates: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def final_s(self) -> float:
        """Seconds of the final comparison."""
        return sum(self.final_seconds.values())

    @property
    def noise_floor(self) -> float:
        """The largest relative difference measured between the baseline and itself so far."""
        return noise_floor([look.speedup for look in self.floor_looks])

    @classmethod
    def from_attributes(cls, study: str, attributes: Mapping[str, Any]) -> "StudyFacts":
        """Read the facts of a study from its Optuna attributes, ignoring those that are not sktune's.

        Raises:
            StudyError: they were stored by a newer sktune, or one of them is damaged.
        """
        stored_format = attributes.get(PREFIX + "format", FORMAT)
        if isinstance(stored_format, int) and stored_format > FORMAT:
            raise StudyError(
                f"study {study!r} was made by a newer sktune (its facts have format {stored_format}, this one reads "
                f"up to {FORMAT}); upgrade sktune, or name another with --study"
            )
        stored = [name for name in get_type_hints(cls) if attributes.get(PREFIX + name) is not None]
        return cls(**{name: cls.stored(study, name, attributes) for name in stored})

    @classmethod
    def stored(cls, study: str, name: str, attributes: Mapping[str, Any]) -> Any:
        """Return one fact of a study from its Optuna attributes, its default if it is not stored.

        Raises:
            StudyError: it is damaged.
        """
        if (value := attributes.get(PREFIX + name)) is None:
            return getattr(cls(), name)
        return stored_value(
            get_type_hints(cls, include_extras=True)[name], value, f"study {study!r}: its fact {name!r}"
        )

    @classmethod
    def to_attributes(cls, **facts: Any) -> dict[str, Any]:
        """Return facts as the attributes to store: plain values, ready for JSON.

        Raises:
            TypeError: there is no such fact.
        """
        kinds = get_type_hints(cls, include_extras=True)
        if unknown := facts.keys() - kinds.keys():
            raise TypeError(f"a study has no facts {', '.join(sorted(unknown))}")
        return {PREFIX + name: encoded(value, kinds[name]) for name, value in facts.items()}


T = TypeVar("T")


def stored_value(kind: type[T], stored: Any, what: str) -> T:
    """Return the value of type ``kind`` that is stored in a study.

    Raises:
        StudyError: it is damaged; ``what`` says which it is.
    """
    try:
        return decoded(kind, stored)
    except (ValidationError, PlanError) as failure:
        reason = str(failure)
        if isinstance(failure, ValidationError):
            first = failure.errors()[0]
            reason = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise StudyError(
            f"{what} cannot be read ({one_line(reason)}); restore the study, or name another with --study"
        ) from failure
