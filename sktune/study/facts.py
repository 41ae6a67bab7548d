"""Facts: what is known of a study as a whole, each an attribute of its Optuna study."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypedDict

from sktune.core.delivery import Delivery
from sktune.core.errors import StudyError
from sktune.core.layout import Layout
from sktune.core.plan import Option
from sktune.core.verification import Verification
from sktune.learning.history import PREFIX, VERIFICATIONS
from sktune.measure.final_comparison import FinalComparison
from sktune.measure.noise_floor import NoiseFloorSample, noise_floor

FORMAT = 1
"""Of the stored facts. 1: what sktune 0.1.0 stored, whose studies do not state a format."""


@dataclass(frozen=True, slots=True)
class CarriedPlan:
    """A plan that was found on fewer layers: its trial there, its speedup there, and its parameters."""

    trial: int
    speedup: float
    values: Mapping[str, Option]


@dataclass(frozen=True, slots=True)
class ProxyFindings:
    """What a search on ``layers`` layers of each kind has found in so many ``trials``: the plans to carry over."""

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
    """The compiled code that was written for the plan of a trial; without it where the backend writes none.

    Attributes:
        trial: the winner's number at that time.
        delivery: what was written.
        problem: why nothing could be written; empty where nothing failed.
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
        delivered = {name: data[name] for name in ("code", "machine", "files")} if "code" in data else None
        return cls(data["trial"], Delivery.from_dict(delivered) if delivered else None, data.get("problem", ""))


class NewFacts(TypedDict, total=False):
    """Facts that are to be stored: any of those that ``StudyFacts`` lists."""

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
    final_seconds: float
    uncompared: bool
    seconds: float
    exhausted: bool
    expected_gain_left: float | None
    proxy: ProxyFindings | None
    delivery: DeliveryRecord | None
    profile: Mapping[str, Any] | None
    command: str | None
    directory: str | None
    yaml: Mapping[str, Any] | None
    decode: Mapping[str, Any] | None
    verified: str | None
    alternates: bool


@dataclass(frozen=True, slots=True)
class StudyFacts:
    """What is known of a study as a whole; what is not known yet has the value that stands for nothing.

    Attributes:
        format: of what is stored.
        fingerprint: what its figures hold for, by name.
        target: how to make the model again (``spec``), and which of its modules are units (``units``).
        description: of the target, in one line.
        space_size: number of plans, in digits: it may exceed every number that a database knows.
        model_difference: where the baseline differs from the uncompiled model; empty where it does not, None where
            nobody looked.
        modules: digests of the files that the target's import brought in, by path.
        layout: of the traced decode step.
        baseline_ms: the latency that all trials' values are paired with.
        floor_looks: the baseline against itself, in the order of the search.
        verifications: what was compared of trials' plans after they had ended, by the trial's number.
        final: the final comparison.
        final_trials: how many trials there were when it was made.
        final_seconds: how long it took.
        uncompared: whether the last search ended before its final comparison.
        seconds: how long all searches of the study took.
        exhausted: whether every plan of the space was tried.
        expected_gain_left: what was still expected of the search when it last looked, as a share of the baseline.
        proxy: what a search on fewer layers found, once its plans were tried.
        delivery: what became of the winner's compiled code.
        profile: figures of the profile that an analysis was given.
        command, directory: how the program of a recipe is started, and where; None for other targets.
        yaml: ``file``, and what was ``set`` in it, where the recipe's program reads a YAML.
        decode: ``function`` and ``signature`` of the program's decode step.
        verified: what each trial of the program is compared by, in words.
        alternates: whether the program alternates between the plan and the baseline.
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
    final_seconds: float = 0.0
    uncompared: bool = False
    seconds: float = 0.0
    exhausted: bool = False
    expected_gain_left: float | None = None
    proxy: ProxyFindings | None = None
    delivery: DeliveryRecord | None = None
    profile: Mapping[str, Any] | None = None
    command: str | None = None
    directory: str | None = None
    yaml: Mapping[str, Any] | None = None
    decode: Mapping[str, Any] | None = None
    verified: str | None = None
    alternates: bool = False

    @property
    def noise_floor(self) -> float:
        """The largest relative difference between the baseline and itself that was seen so far."""
        return noise_floor([look.speedup for look in self.floor_looks])

    @classmethod
    def from_attributes(cls, study: str, attributes: Mapping[str, Any]) -> "StudyFacts":
        """Read the facts of the study with that name from its attributes; those that are not sktune's are left out.

        Raises:
            StudyError: a newer sktune has stored them, or one of them is damaged.
        """
        if (stored_format := attributes.get(PREFIX + "format", FORMAT)) > FORMAT:
            raise StudyError(
                f"study {study!r} was made by a newer sktune (its facts have format {stored_format}, this one reads "
                f"up to {FORMAT}); upgrade sktune, or name another with --study"
            )
        known: dict[str, Any] = {}
        for name in (own.name for own in fields(cls)):
            stored = attributes.get(PREFIX + name)
            if stored is None:
                continue
            try:
                known[name] = _READ.get(name, _unchanged)(stored)
            except (KeyError, TypeError, ValueError, AttributeError) as failure:
                raise StudyError(
                    f"study {study!r}: its fact {name!r} cannot be read ({failure!r}); name another with --study"
                ) from failure
        return cls(**known)


def to_attributes(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts as the attributes that are stored of them: plain values, ready for JSON.

    Raises:
        TypeError: one of them is no fact of ``StudyFacts``.
    """
    if unknown := facts.keys() - {own.name for own in fields(StudyFacts)}:
        raise TypeError(f"no facts of a study: {', '.join(sorted(unknown))}")
    written = {name: None if value is None else _WRITE.get(name, _unchanged)(value) for name, value in facts.items()}
    return {PREFIX + name: value for name, value in written.items()}


def _unchanged(value: Any) -> Any:
    return value


_READ: Mapping[str, Callable[[Any], Any]] = {
    "layout": Layout.from_dict,
    "floor_looks": lambda stored: tuple(NoiseFloorSample.from_dict(look) for look in stored),
    VERIFICATIONS: lambda stored: {name: Verification.from_dict(own) for name, own in stored.items()},
    "final": FinalComparison.from_dict,
    "proxy": ProxyFindings.from_dict,
    "delivery": DeliveryRecord.from_dict,
}
_WRITE: Mapping[str, Callable[[Any], Any]] = {
    "fingerprint": dict,
    "modules": dict,
    "layout": Layout.to_dict,
    "floor_looks": lambda looks: [look.to_dict() for look in looks],
    VERIFICATIONS: lambda found: {name: own.to_dict() for name, own in found.items()},
    "final": FinalComparison.to_dict,
    "proxy": ProxyFindings.to_dict,
    "delivery": DeliveryRecord.to_dict,
}
