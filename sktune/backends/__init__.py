"""Backends compile plans and run steps. Each has a package here, which describes it to other code in ``info``.

Other installed packages declare backends as entry points of the group ``sktune.backends``, whose value is the address
of a ``BackendInfo``.
"""

from functools import cache
from importlib.metadata import entry_points

from sktune.backends.inductor.info import INFO as INDUCTOR
from sktune.backends.info import BackendInfo
from sktune.backends.npu.info import INFO as NPU
from sktune.backends.npugraph_ex.info import INFO as NPUGRAPH_EX
from sktune.backends.sim.info import CAPTURED as SIM_NPUGRAPH_EX
from sktune.backends.sim.info import INFO as SIM
from sktune.core.errors import BadInputError, described, nearest

BUILT_IN = (INDUCTOR, NPU, NPUGRAPH_EX, SIM, SIM_NPUGRAPH_EX)
ENTRY_POINTS = "sktune.backends"


def backend_info(name: str) -> BackendInfo:
    """Return the description of the backend ``name``.

    Raises:
        BadInputError: there is no backend of that name, or another package's cannot be imported.
    """
    for info in BUILT_IN:  # no need to look at installed packages for these
        if info.name == name:
            return info
    others = {info.name: info for info in all_backends()}
    if name not in others:
        raise BadInputError(f"there is no backend {name!r}{nearest(name, others)}; install the package that has it")
    return others[name]


@cache
def all_backends() -> tuple[BackendInfo, ...]:
    """Return all backends, those of sktune first.

    Raises:
        BadInputError: another package's backend cannot be imported, is not a ``BackendInfo``, or has a name in use.
    """
    backends = list(BUILT_IN)
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        where = f"the backend {point.name!r} ({point.value})"
        try:
            info = point.load()
        except Exception as failure:  # another package's code may raise anything
            raise BadInputError(f"{where} cannot be imported: {described(failure)}; fix or remove it") from failure
        if not isinstance(info, BackendInfo):
            raise BadInputError(f"{where} is {type(info).__name__}, not a BackendInfo; fix or remove its package")
        if any(info.name == other.name for other in backends):
            raise BadInputError(f"{where} has the name {info.name!r} of another backend; remove one of the packages")
        backends.append(info)
    return tuple(backends)


def backend_on(device: str | None) -> BackendInfo:
    """Return the first backend that runs on a device type, or the first of all if none is given."""
    return next(info for info in all_backends() if device in (None, *info.devices))
