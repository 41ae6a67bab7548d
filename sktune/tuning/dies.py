"""Dies: what one worker measures on, how a process is kept to it, and its lock, which keeps other searches off it."""

import fcntl
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sktune.backends import backend_info
from sktune.core.errors import BackendError, BadInputError
from sktune.core.files import real_path
from sktune.measure.machine import core_groups
from sktune.targets import TargetSpec
from sktune.worker.jobs import RunnerSetup

SIMULATED = "simulated"
"""The kind of dies on which nothing is measured; they are not locked."""
WHOLE_HOST = "host"
"""The kind of die that is all of a host, for a recipe's program, which chooses its devices itself; it is not locked."""
VISIBLE: Mapping[str, str] = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}
"""The variable that keeps a process to some devices, by type of device."""
DEVICE_FILES: Mapping[str, str] = {"npu": r"davinci(\d+)", "cuda": r"nvidia(\d+)"}
"""Device files in ``/dev``."""
LOCKS = Path("/tmp")  # noqa: S108 - not TMPDIR, which differs between users whose searches must meet
MAX_HOLDER = 300
"""Characters of a lock file that a message quotes."""


@dataclass(frozen=True, slots=True)
class Die:
    """A die of this host, or on a CPU some of its cores.

    Attributes:
        kind: ``npu``, ``cuda``, ``cpu``, ``SIMULATED`` or ``WHOLE_HOST``.
        number: among those of its kind, as the driver numbers them, or its ID.
        cores: processors that its worker is kept to, which launch its device's work and compile; empty for all.
    """

    kind: str
    number: int | str
    cores: tuple[int, ...] = ()

    def __str__(self) -> str:
        return "all dies" if self.kind == WHOLE_HOST else f"{self.kind} {self.number}"

    def setup(self, setup: RunnerSetup) -> RunnerSetup:
        """Return ``setup`` for a runner on this die."""
        variables = {VISIBLE[self.kind]: str(self.number)} if self.kind in VISIBLE else {}
        placement = replace(setup.placement, cores=self.cores) if self.cores else setup.placement
        return replace(setup, placement=placement, variables={**setup.variables, **variables})

    @contextmanager
    def held(self, folder: Path) -> Iterator[None]:
        """Hold the die's lock, or those of its cores, which all searches on this host respect.

        Args:
            folder: of the study, to tell others who holds it.

        Raises:
            BackendError: another search holds it; the message says which.
        """
        if self.kind in (SIMULATED, WHOLE_HOST):
            yield
            return
        device = f"{self.kind}-{re.sub(r'[^0-9A-Za-z-]', '_', str(self.number))}"
        names = [f"cpu-{core}" for core in self.cores] if self.kind == "cpu" else [device]
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(_locked(LOCKS / f"sktune-{name}.lock", str(self), folder))
            yield


@contextmanager
def _locked(path: Path, what: str, folder: Path) -> Iterator[None]:
    descriptor = _opened(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as failure:
        told = os.pread(descriptor, MAX_HOLDER, 0).decode(errors="replace")
        os.close(descriptor)
        holder = told.partition("\n")[0] or "another process"
        raise BackendError(f"{holder} measures on {what} ({path} is locked); wait for it, or stop it") from failure
    try:
        with suppress(OSError):  # another user's file cannot be written, and locks as well
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} for the study in {real_path(folder)}\n".encode(), 0)
        yield
    finally:
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)


def _opened(path: Path) -> int:
    """Open a lock file that any user may have made: the kernel refuses ``O_CREAT`` for another user's in ``/tmp``."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o666)
        os.fchmod(descriptor, 0o666)
        return descriptor
    try:
        return os.open(path, os.O_RDWR | flags)
    except PermissionError:
        return os.open(path, os.O_RDONLY | flags)


def kind_of(spec: TargetSpec) -> str:
    """Return the kind of dies that a target is measured on."""
    if spec.has_own_environment:
        return WHOLE_HOST
    return SIMULATED if backend_info(spec.backend).is_simulated else spec.device


def dies_here(kind: str, count: int, cores_each: int = 0) -> list[Die]:
    """Return the first ``count`` of this host's dies that this process may use.

    Args:
        kind: see ``Die``; there are as many simulated ones as are asked for, and the host is one.
        count: number of dies.
        cores_each: on a CPU, the number of cores that make up a die.

    Raises:
        BadInputError: there are fewer.
    """
    if kind == SIMULATED:
        return [Die(kind, number) for number in range(count)]
    if kind == WHOLE_HOST:
        return [Die(kind, 0)]
    if kind == "cpu":
        cores = core_groups()
        shares = [cores[first : first + cores_each] for first in range(0, len(cores) - cores_each + 1, cores_each)]
        found = [Die(kind, number, tuple(sorted(itertools.chain(*share)))) for number, share in enumerate(shares)]
    else:
        cores_of = itertools.chain(cores_by_die(count), itertools.repeat(()))
        found = [Die(kind, number, cores) for number, cores in zip(visible_devices(kind), cores_of, strict=False)]
    if len(found) < count:
        what = f"{cores_each} cores each" if kind == "cpu" else f"a device of type {kind} each"
        raise BadInputError(f"{count} workers need {what}, and this host has enough for {len(found)}; use fewer")
    return found[:count]


def cores_by_die(dies: int) -> list[tuple[int, ...]]:
    """Return this host's processors in equal parts, one for each die: no worker compiles beside another's steps.

    They are in the order of their numbers, as Linux numbers the processors of a NUMA node, and drivers its devices. All
    are empty if one die uses the host alone, or there are fewer cores than dies.
    """
    cores = core_groups()
    each = len(cores) // dies if dies > 1 else 0
    return [tuple(sorted(itertools.chain(*cores[die * each : (die + 1) * each]))) for die in range(dies)]


def die_alone(setup: RunnerSetup) -> Die | None:
    """Return what a search's only worker measures on; None if nobody can be kept off it.

    It is the first device that this process may use, or the cores that steps are kept to.
    """
    kind = kind_of(setup.spec)
    if kind == "cpu":
        return Die(kind, 0, setup.placement.cores) if setup.placement.cores else None
    if kind not in VISIBLE:
        return None
    if first := os.environ.get(VISIBLE[kind], "").partition(",")[0].strip():
        return Die(kind, int(first) if first.isdecimal() else first)
    return next((Die(kind, number) for number in visible_devices(kind)), None)


def visible_devices(kind: str) -> list[int]:
    """Return the numbers of the devices that this process may use, as the user's variable or the driver says."""
    if listed := os.environ.get(VISIBLE[kind], ""):
        numbers = [part.strip() for part in listed.split(",")]
        if not all(number.isdecimal() for number in numbers):
            raise BadInputError(f"{VISIBLE[kind]}={listed} must be numbers, to give each worker one; list numbers")
        return [int(number) for number in numbers]
    found = (re.fullmatch(DEVICE_FILES[kind], file.name) for file in Path("/dev").iterdir())
    return sorted(int(match[1]) for match in found if match)
