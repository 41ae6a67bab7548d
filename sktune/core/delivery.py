"""Delivery: the compiled code that comes with a plan, and the digests that identify it."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sktune.core.errors import PlanError
from sktune.core.files import read_bytes
from sktune.program.sktune_program.inductor.expected_code import ExpectedCode as ExpectedCode
from sktune.program.sktune_program.inductor.expected_code import digest_of as digest_of

MAX_ARTIFACT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Delivery:
    """A plan's compiled code.

    Attributes:
        code: digest of the generated code of each scope, by the scope's label.
        machine: versions, processor and threads that the code was compiled for, by name.
        files: sha256 of each file of code, by its name in the folder of artifacts.
        calls: types and shapes with which a decode step calls the first unit of each scope, by label.
    """

    code: Mapping[str, str]
    machine: Mapping[str, str]
    files: Mapping[str, str]
    calls: Mapping[str, str] = field(default_factory=dict)

    @property
    def code_digest(self) -> str:
        """Digest of all the code, equal to ``Compiled.code_digest``."""
        return digest_of(set(self.code.values()))

    def contents(self, folder: Path) -> dict[str, bytes]:
        """Return the content of each file in ``folder``, by name.

        Raises:
            PlanError: a file is missing, or differs from the one that the plan lists.
        """
        return {name: _checked(folder, name, digest) for name, digest in self.files.items()}

    def differences(self, machine: Mapping[str, str]) -> str:
        """Return how ``machine`` differs from the one that the code was compiled for; empty if it does not."""
        differing = [
            f"{name} is {machine.get(name, 'unknown')!r} instead of {value!r}"
            for name, value in self.machine.items()
            if machine.get(name) != value
        ]
        return ", ".join(differing)


def file_digest(content: bytes) -> str:
    """Return the digest of a file, as stored in ``Delivery.files``."""
    return hashlib.sha256(content).hexdigest()


def _checked(folder: Path, name: str, digest: str) -> bytes:
    path = folder / name
    if name in ("", ".", "..") or os.sep in name:
        raise PlanError(f"{name!r} is not a valid artifact name; search again")
    content = read_bytes(path, PlanError, "copy the plan's artifacts with it", MAX_ARTIFACT_BYTES)
    if file_digest(content) != digest:
        raise PlanError(f"{path} is not the file that the plan lists; copy the plan and its artifacts again")
    return content
