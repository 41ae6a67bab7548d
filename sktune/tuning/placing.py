"""Where a search's steps run, and what to say about it: chosen once for a study, and kept to when it is continued."""

from collections.abc import Mapping

from sktune.backends import backend_info
from sktune.core.errors import BadInputError
from sktune.core.events.search import CoresChosen
from sktune.core.printable import counted
from sktune.measure.placement import Machine, Placement, core_groups
from sktune.targets import TargetSpec

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
