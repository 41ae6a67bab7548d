"""Backends compile plans and run steps. Each has a package here, which describes it to other code in ``info``.

Other installed packages declare backends as entry points of the group ``sktune.backends``, whose value is the address
of a ``BackendInfo``.
"""

from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points

from sktune.backends.info import BackendInfo, attribute_at
from sktune.core.errors import BadInputError, described, nearest

BUILT_IN = {
    "inductor": "sktune.backends.inductor.info:INFO",
    "npu": "sktune.backends.npu.info:INFO",
    "npugraph-ex": "sktune.backends.npugraph_ex.info:INFO",
    "sim": "sktune.sim.info:INFO",
    "sim-npugraph-ex": "sktune.sim.captured_info:INFO",
}
"""Addresses of the descriptions of sktune's own backends, by name; imported on first use."""
ENTRY_POINTS = "sktune.backends"


def backend_info(name: str) -> BackendInfo:
    """Return the description of the backend ``name``.

    Raises:
        BadInputError: there is no backend of that name, or another package's cannot be imported.
    """
    if name in BUILT_IN:  # no need to look at installed packages for these
        return _built_in(name)
    others = {info.name: info for info in all_backends()}
    if name not in others:
        raise BadInputError(f"there is no backend {name!r}{nearest(name, others)}; install the package that has it")
    return others[name]


def _built_in(name: str) -> BackendInfo:
    info: BackendInfo = attribute_at(BUILT_IN[name])
    return info


def each_backend() -> Iterator[BackendInfo]:
    """Yield all backends, those of sktune first; each is imported when it is asked for.

    Raises:
        BadInputError: another package's backend cannot be imported, is not a ``BackendInfo``, or has a name in use.
    """
    names = set()
    for name, address in BUILT_IN.items():
        try:
            info = _built_in(name)
        except ModuleNotFoundError as failure:
            if not (failure.name and address.startswith(failure.name)):  # its folder may have been left out
                raise
        else:
            names.add(info.name)
            yield info
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        where = f"the backend {point.name!r} ({point.value})"
        try:
            info = point.load()
        except Exception as failure:  # another package's code may raise anything
            raise BadInputError(f"{where} cannot be imported: {described(failure)}; fix or remove it") from failure
        if not isinstance(info, BackendInfo):
            raise BadInputError(f"{where} is {type(info).__name__}, not a BackendInfo; fix or remove its package")
        if info.name in names:
            raise BadInputError(f"{where} has the name {info.name!r} of another backend; remove one of the packages")
        names.add(info.name)
        yield info


@cache
def all_backends() -> tuple[BackendInfo, ...]:
    """Return all backends, in the order of ``each_backend``.

    Raises:
        BadInputError: as ``each_backend``.
    """
    return tuple(each_backend())


def backend_on(device: str | None) -> BackendInfo:
    """Return the first backend that runs on a device type, or the first of all if none is given."""
    return next(info for info in each_backend() if device in (None, *info.devices))
