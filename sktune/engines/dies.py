"""Dies: what one worker measures on, how a process is kept to it, and its lock, which keeps other searches off it."""

import fcntl
import itertools
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sktune.backends import backend_info
from sktune.core.errors import BackendError, BadInputError
from sktune.measure.placement import core_groups
from sktune.runners.base import RunnerSetup
from sktune.targets import TargetSpec

SIMULATED = "simulated"
"""The kind of dies on which nothing is measured; they are not locked."""
VISIBLE: Mapping[str, str] = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}
"""The variable that keeps a process to some devices, by type of device."""
DEVICE_FILES: Mapping[str, str] = {"npu": r"davinci(\d+)", "cuda": r"nvidia(\d+)"}
"""Device files in ``/dev``."""


@dataclass(frozen=True, slots=True)
class Die:
    """A die of this host, or on a CPU some of its cores.

    Attributes:
        kind: ``npu``, ``cuda``, ``cpu`` or ``SIMULATED``.
        number: among those of its kind, as the driver numbers them.
        cores: processors that its worker is kept to; empty for all.
    """

    kind: str
    number: int
    cores: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"

    def setup(self, setup: RunnerSetup) -> RunnerSetup:
        """Return ``setup`` for a runner on this die."""
        variables = {VISIBLE[self.kind]: str(self.number)} if self.kind in VISIBLE else {}
        placement = replace(setup.placement, cores=self.cores) if self.cores else setup.placement
        return replace(setup, placement=placement, variables={**setup.variables, **variables})

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the die's lock, which all searches on this host respect.

        Raises:
            BackendError: another search holds it.
        """
        if self.kind == SIMULATED:
            yield
            return
        path = Path(tempfile.gettempdir()) / f"sktune-{self.kind}-{self.number}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as failure:
            raise BackendError(f"another search measures on {self} ({path} is locked); wait for it") from failure
        else:
            yield
        finally:
            os.close(descriptor)


def kind_of(spec: TargetSpec) -> str:
    """Return the kind of dies that a target is measured on."""
    return SIMULATED if backend_info(spec.backend).is_simulated else spec.device


def dies_here(kind: str, count: int, cores_each: int = 0) -> list[Die]:
    """Return the first ``count`` of this host's dies that this process may use.

    Args:
        kind: see ``Die``; there are as many simulated ones as are asked for.
        count: number of dies.
        cores_each: on a CPU, the number of cores that make up a die.

    Raises:
        BadInputError: there are fewer.
    """
    if kind == SIMULATED:
        return [Die(kind, number) for number in range(count)]
    if kind == "cpu":
        cores = core_groups()
        shares = [cores[first : first + cores_each] for first in range(0, len(cores) - cores_each + 1, cores_each)]
        found = [Die(kind, number, tuple(sorted(itertools.chain(*share)))) for number, share in enumerate(shares)]
    else:
        found = [Die(kind, number) for number in visible_devices(kind)]
    if len(found) < count:
        what = f"{cores_each} cores each" if kind == "cpu" else f"a device of type {kind} each"
        raise BadInputError(f"{count} workers need {what}, and this host has enough for {len(found)}; use fewer")
    return found[:count]


def visible_devices(kind: str) -> list[int]:
    """Return the numbers of the devices that this process may use, as the user's variable or the driver says."""
    if listed := os.environ.get(VISIBLE[kind], ""):
        numbers = [part.strip() for part in listed.split(",")]
        if not all(number.isdecimal() for number in numbers):
            raise BadInputError(f"{VISIBLE[kind]}={listed} must be numbers, to give each worker one; list numbers")
        return [int(number) for number in numbers]
    found = (re.fullmatch(DEVICE_FILES[kind], file.name) for file in Path("/dev").iterdir())
    return sorted(int(match[1]) for match in found if match)
