"""Where a search runs its trials: on this host or on a Ray cluster, and there on which cores.

Cores and threads are chosen once for a study, and kept to when it is continued.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from sktune.backends import backend_info
from sktune.backends.fingerprint import fingerprint
from sktune.core.errors import BadInputError
from sktune.core.events.search import CoresChosen
from sktune.core.printable import counted
from sktune.core.space import SpaceSpec
from sktune.measure.machine import Machine, Placement, core_groups
from sktune.targets import TargetSpec
from sktune.tuning.dies import die_alone, dies_here, kind_of
from sktune.tuning.scheduler import Engine, InlineEngine, Share
from sktune.worker.jobs import RunnerFactory, RunnerSetup


class Site(Protocol):
    """The machines of a search."""

    def fingerprint(self, spec: TargetSpec, space: SpaceSpec, /) -> dict[str, str]:
        """Return what figures depend on, equal on all machines; see ``sktune.backends.fingerprint``.

        Raises:
            BadInputError: the machines differ.
        """
        ...

    def fingerprint_of_answer(self, spec: TargetSpec, space: SpaceSpec, stored: Mapping[str, str], /) -> dict[str, str]:
        """Return what must be equal to ``stored`` for a study that is answered to be that of a request."""
        ...

    def placed(self, spec: TargetSpec, stored: Mapping[str, str], /) -> tuple[Placement, CoresChosen | None]:
        """Return where the steps of a worker run; see ``placed``."""
        ...

    def engine(self, setup: RunnerSetup, factory: RunnerFactory, /) -> AbstractContextManager[Engine]:
        """Return the engine of a search."""
        ...


class LocalSite:
    """One or several workers on this host; a ``Site``."""

    def __init__(self, workers: int, share: Share | None = None) -> None:
        self._workers, self._share = workers, share

    def fingerprint(self, spec: TargetSpec, space: SpaceSpec, /) -> dict[str, str]:
        """See ``Site.fingerprint``."""
        return fingerprint(spec, space)

    def fingerprint_of_answer(self, spec: TargetSpec, space: SpaceSpec, stored: Mapping[str, str], /) -> dict[str, str]:
        """See ``Site.fingerprint_of_answer``."""
        return self.fingerprint(spec, space) | as_stored(stored).fingerprint

    def placed(self, spec: TargetSpec, stored: Mapping[str, str], /) -> tuple[Placement, CoresChosen | None]:
        """See ``Site.placed``."""
        return placed(spec, stored, self._workers)

    def engine(self, setup: RunnerSetup, factory: RunnerFactory, /) -> Engine:
        """See ``Site.engine``."""
        return local_engine(setup, self._workers, factory, self._share)


def local_engine(setup: RunnerSetup, workers: int, factory: RunnerFactory, share: Share | None = None) -> Engine:
    """Return an engine of this host: one worker uses whatever device is there, several have a die each.

    Raises:
        BadInputError: there are too few dies.
    """
    if workers == 1:
        return InlineEngine(factory(setup), die_alone(setup), setup.folder)
    from sktune.tuning.local_engine import LocalEngine

    dies = dies_here(kind_of(setup.spec), workers, setup.placement.core_count)
    return LocalEngine(setup, dies, factory, share)


SHOWN = 4
"""Most busy cores that are listed one by one."""


def placed(spec: TargetSpec, stored: Mapping[str, str], workers: int = 1) -> tuple[Placement, CoresChosen | None]:
    """Return where the steps of a search run, and the event that says so; None if nothing is in the way.

    Several workers share the cores equally: each has as many threads as cores.

    Args:
        spec: the target; only steps that sktune's own workers time on this CPU are placed.
        stored: fingerprint of the study to continue, with the number of threads and cores to keep; empty for a new one.
        workers: number of workers.

    Raises:
        BadInputError: the study was made with all cores, or there are fewer cores than workers.
    """
    if not is_placed(spec):
        return Placement(), None
    if workers > 1:
        return shared(stored, workers, len(core_groups())), None
    machine = Machine.look()
    placement = machine.placement_as_in(stored) if stored else machine.placement()
    text = _text(machine, placement, is_begun=bool(stored))
    if not text:
        return placement, None
    busy = [number for core in machine.busy for number in core]
    return placement, CoresChosen(
        cores=len(machine.loads), busy=busy, pinned=placement.cores, threads=placement.threads, text=text
    )


def shared(stored: Mapping[str, str], workers: int, cores: int) -> Placement:
    """Return the number of threads and cores of each of several workers, or of each die of a cluster's hosts."""
    each = as_stored(stored).core_count if stored else cores // workers
    if not each:
        what = "was made with all cores" if stored else f"needs a core for each worker, and there are {cores}"
        fix = "name a new one with --study, or leave out --workers" if stored else "ask for fewer --workers"
        raise BadInputError(f"this study {what}; {fix}")
    return Placement(each, (), each)


def as_stored(fingerprint: Mapping[str, str]) -> Placement:
    """Return the placement that a study was made with, but on no particular cores."""
    return Machine({}).placement_as_in(fingerprint)


def is_placed(spec: TargetSpec) -> bool:
    """Whether sktune's own workers time steps on this machine's processor."""
    info = backend_info(spec.backend)
    return spec.device == "cpu" and not (info.is_simulated or info.runner or spec.has_own_environment)


def _text(machine: Machine, placement: Placement, *, is_begun: bool) -> str:
    """Return in one line what is busy, where steps run, and what would help; empty if nothing is in the way."""
    cores, busy = len(machine.loads), len(machine.busy)
    threads = placement.threads or machine.user_threads or placement.core_count or cores
    steps = f"with {counted(threads, 'thread')}{_on(placement)}"
    if machine.usable == cores and not busy:
        if placement == Placement():
            return ""
        return f"this study was made {steps}, and keeps to that; name a new one with --study to use all {cores} cores"
    why = _why(machine)
    wait = "wait, or choose other cores with taskset" if busy else "raise the quota"
    if threads <= machine.usable and busy < cores:
        return f"{why}: steps run {steps}; for more, {wait}"
    if is_begun:
        return (
            f"{why}: this study was made {steps} and keeps to that, so its steps may wait for each other: {wait}, "
            f"or name a new study with --study, which would use {counted(machine.usable, 'thread')}"
        )
    if threads > machine.usable:
        fewer = f"set OMP_NUM_THREADS={machine.usable}"
        return f"{why}: steps run {steps}, as OMP_NUM_THREADS says, and may wait for each other: {fewer}, {wait}"
    return f"{why}: steps run {steps}, and other load disturbs them: {wait}"


def _why(machine: Machine) -> str:
    """Return how much is busy, or the quota."""
    cores, busy = len(machine.loads), machine.busy
    if not busy:
        return f"a quota of its control group allows {machine.quota:.3g} of {cores} cores"
    loads = sorted((machine.loads[core] for core in busy), reverse=True)
    each = ", ".join(f"core {core[0]}: {machine.loads[core]:.0%}" for core in busy)
    shown = each if len(busy) <= SHOWN else f"up to {loads[0]:.0%}"
    which = (
        "the only core"
        if cores == 1
        else f"all {cores} cores"
        if len(busy) == cores
        else f"{len(busy)} of {cores} cores"
    )
    return f"{which} {'is' if len(busy) == 1 else 'are'} busy ({shown})"


def _on(placement: Placement) -> str:
    if not placement.cores:
        return ""
    if len(placement.cores) <= SHOWN:
        return f" on core{'s' * (len(placement.cores) > 1)} {', '.join(map(str, placement.cores))}"
    return f" on {placement.core_count} free cores"
