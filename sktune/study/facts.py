"""Facts about a study as a whole, each stored as an attribute of its Optuna study."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypedDict, get_type_hints

from pydantic import TypeAdapter, ValidationError

from sktune.core.delivery import Delivery
from sktune.core.errors import StudyError
from sktune.core.layout import Layout
from sktune.core.outcome import Stage
from sktune.core.plan import Option
from sktune.core.verification import Verification
from sktune.learning.history import PREFIX, VERIFICATIONS
from sktune.measure.final_comparison import FinalComparison
from sktune.measure.noise_floor import NoiseFloorSample, noise_floor

FORMAT = 1
"""Of the stored facts. 1: that of sktune 0.1.0, whose studies do not state a format."""


@dataclass(frozen=True, slots=True)
class CarriedPlan:
    """A plan from a search on fewer layers: its trial and speedup there, and its parameters."""

    trial: int
    speedup: float
    values: Mapping[str, Option]


@dataclass(frozen=True, slots=True)
class ProxyFindings:
    """The plans to carry over from a search of ``trials`` trials on ``layers`` layers of each kind."""

    study: str
    layers: int
    trials: int
    carried: tuple[CarriedPlan, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {**asdict(self), "carried": [asdict(plan) for plan in self.carried]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ProxyFindings":
        """Inverse of ``to_dict``."""
        return cls(**{**data, "carried": tuple(CarriedPlan(**plan) for plan in data["carried"])})


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
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        problem = {"problem": self.problem} if self.problem else {}
        return {"trial": self.trial, **(self.delivery.to_dict() if self.delivery else {}), **problem}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "DeliveryRecord":
        """Inverse of ``to_dict``."""
        fields = ("code", "machine", "files", "calls")  # before 0.3 there are no calls
        delivered = {name: data[name] for name in fields if name in data} if "code" in data else None
        return cls(data["trial"], Delivery.from_dict(delivered) if delivered else None, data.get("problem", ""))


class NewFacts(TypedDict, total=False):
    """Facts to store: any of those that ``StudyFacts`` lists."""

    format: int
    fingerprint: Mapping[str, str]
    target: Mapping[str, Any] | None
    description: str
    space_size: str
    model_difference: str | None
    modules: Mapping[str, str]
    layout: Layout | None
    baseline_ms: float | None
    floor_looks: tuple[NoiseFloorSample, ...]
    verifications: Mapping[str, Verification]
    final: FinalComparison | None
    final_trials: int | None
    final_seconds: Mapping[str, float]
    uncompared: bool
    seconds: float
    exhausted: bool
    expected_gain_left: float | None
    proxy: ProxyFindings | None
    delivery: DeliveryRecord | None
    profile: Mapping[str, Any] | None
    command: str | None
    directory: str | None
    environment: Mapping[str, str]
    yaml: Mapping[str, Any] | None
    decode: Mapping[str, Any] | None
    verified: str | None
    alternates: bool
    versions: Mapping[str, str]


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
        final_seconds: time that it took, by stage; see ``sktune.core.outcome.Stage``, and ``open`` before the first.
        uncompared: whether the last search ended before its final comparison.
        seconds: total time of the study's searches.
        exhausted: whether every plan of the space was tried.
        expected_gain_left: the last estimate of the gain to expect from more trials, as a share of the baseline.
        proxy: the findings of a search on fewer layers, once its plans have been tried.
        delivery: the winner's compiled code.
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
    final_seconds: Mapping[str, float] = field(default_factory=dict)
    uncompared: bool = False
    seconds: float = 0.0
    exhausted: bool = False
    expected_gain_left: float | None = None
    proxy: ProxyFindings | None = None
    delivery: DeliveryRecord | None = None
    profile: Mapping[str, Any] | None = None
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
        known: dict[str, Any] = {}
        for name in (fact.name for fact in fields(cls)):
            stored = attributes.get(PREFIX + name)
            if stored is None:
                continue
            try:
                known[name] = _READ[name](stored)
            except (KeyError, TypeError, ValueError, AttributeError) as failure:
                reason = failure.errors()[0]["msg"] if isinstance(failure, ValidationError) else repr(failure)
                raise StudyError(
                    f"study {study!r}: its fact {name!r} cannot be read ({reason}); name another with --study"
                ) from failure
        return cls(**known)


def to_attributes(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts as the attributes to store: plain values, ready for JSON.

    Raises:
        TypeError: one of them is not a fact of ``StudyFacts``.
    """
    if unknown := facts.keys() - {fact.name for fact in fields(StudyFacts)}:
        raise TypeError(f"a study has no facts {', '.join(sorted(unknown))}")
    written = {name: None if value is None else _WRITE.get(name, _unchanged)(value) for name, value in facts.items()}
    return {PREFIX + name: value for name, value in written.items()}


def _unchanged(value: Any) -> Any:
    return value


_READ_STRUCTURED: Mapping[str, Callable[[Any], Any]] = {
    "layout": Layout.from_dict,
    "floor_looks": lambda stored: tuple(NoiseFloorSample.from_dict(look) for look in stored),
    VERIFICATIONS: lambda stored: {number: Verification.from_dict(data) for number, data in stored.items()},
    "final": FinalComparison.from_dict,
    # Until 0.2 only the sum was stored.
    "final_seconds": lambda stored: dict(stored) if isinstance(stored, Mapping) else {Stage.MEASURE: float(stored)},
    "proxy": ProxyFindings.from_dict,
    "delivery": DeliveryRecord.from_dict,
}
_READ: Mapping[str, Callable[[Any], Any]] = {
    name: _READ_STRUCTURED.get(name) or TypeAdapter(kind).validate_python
    for name, kind in get_type_hints(StudyFacts).items()
}
_WRITE: Mapping[str, Callable[[Any], Any]] = {
    "fingerprint": dict,
    "modules": dict,
    "layout": Layout.to_dict,
    "floor_looks": lambda looks: [look.to_dict() for look in looks],
    VERIFICATIONS: lambda made: {number: verification.to_dict() for number, verification in made.items()},
    "final": FinalComparison.to_dict,
    "proxy": ProxyFindings.to_dict,
    "delivery": DeliveryRecord.to_dict,
}
