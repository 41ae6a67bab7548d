"""Delivery: the compiled code that comes with a plan, and how it is known again."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sktune.core.errors import PlanError


def digest_of(digests: Iterable[str]) -> str:
    """Return the identity of code that consists of several modules, in whatever order they were loaded."""
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


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

    @property
    def code_digest(self) -> str:
        """Identity of all the code, as ``Compiled.code_digest`` has it."""
        return digest_of(set(self.code.values()))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Delivery":
        """Inverse of ``to_dict``."""
        return cls(**data)

    def contents(self, folder: Path) -> dict[str, bytes]:
        """Return what each file in ``folder`` holds, by its name.

        Raises:
            PlanError: a file is missing, or is not the one that the plan lists.
        """
        return {name: _checked(folder, name, digest) for name, digest in self.files.items()}

    def foreign(self, machine: Mapping[str, str]) -> str:
        """Return in what ``machine`` differs from the one that the code was compiled for; empty where it does not."""
        differing = [
            f"{name} is {machine.get(name, 'unknown')!r} instead of {value!r}"
            for name, value in self.machine.items()
            if machine.get(name) != value
        ]
        return ", ".join(differing)


def file_digest(content: bytes) -> str:
    """Return the identity of a file, as ``Delivery.files`` has it."""
    return hashlib.sha256(content).hexdigest()


def _checked(folder: Path, name: str, digest: str) -> bytes:
    path = folder / name
    if name in ("", ".", "..") or os.sep in name:
        raise PlanError(f"{name!r} is no name of an artifact; search again")
    try:
        content = path.read_bytes()
    except OSError as failure:
        raise PlanError(f"the plan's artifact {path} cannot be read ({failure.strerror}); copy it with the plan") from (
            failure
        )
    if file_digest(content) != digest:
        raise PlanError(f"{path} is not the file that the plan lists; copy the plan and its artifacts again")
    return content


@dataclass(frozen=True, slots=True)
class ExpectedCode:
    """What a scope should be compiled to.

    Attributes:
        digest: of the generated code.
        is_strict: whether other code is an error, and not a warning.
    """

    digest: str
    is_strict: bool = False
