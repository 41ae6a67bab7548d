"""Delivery: the compiled code that comes with a plan, and how it is known again."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Delivery:
    """A plan's compiled code.

    Attributes:
        code: digest of the generated code of each scope, by the scope's label.
        machine: what the code was compiled for, by name: versions, processor, threads.
        files: sha256 of each file that holds the code, by its name in the folder of artifacts.
    """

    code: Mapping[str, str]
    machine: Mapping[str, str]
    files: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Delivery":
        """Inverse of ``to_dict``."""
        return cls(**data)

    def foreign(self, machine: Mapping[str, str]) -> str:
        """Return in what ``machine`` differs from the one that the code was compiled for; empty where it does not."""
        differing = [
            f"{name} is {machine.get(name, 'unknown')!r} instead of {value!r}"
            for name, value in self.machine.items()
            if machine.get(name) != value
        ]
        return ", ".join(differing)


@dataclass(frozen=True, slots=True)
class ExpectedCode:
    """What a scope should be compiled to.

    Attributes:
        digest: of the generated code.
        is_strict: whether other code is an error, and not a warning.
    """

    digest: str
    is_strict: bool = False
