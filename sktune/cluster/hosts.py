"""A Ray cluster: the connection to it, its hosts with their dies, and what each of them has. Needs ``sktune[ray]``."""

import os
import shutil
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sktune.backends.fingerprint import fingerprint
from sktune.backends.this_machine import cann_version, package_version
from sktune.core.errors import BackendError, BadInputError, first_line
from sktune.core.events.values import HostFacts
from sktune.core.space import SpaceSpec
from sktune.measure.machine import clock_mhz, core_groups
from sktune.targets import TargetSpec
from sktune.tuning.dies import VISIBLE, visible_devices

try:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as missing:
    raise BadInputError("a Ray cluster needs Ray; pip install 'sktune[ray]'") from missing

OWN_RESOURCE = "DIE"
"""Resource of hosts whose dies Ray does not count: ``ray start --resources '{"DIE": 16}'``."""
RESOURCES: Mapping[str, str] = {"npu": "NPU", "cuda": "GPU"}
THREADS = "OMP_NUM_THREADS"
"""Ray sets it in its workers, if the user has not."""
SURVEY_S, REACH_S = 120.0, 10.0

_LOCK, _users = threading.Lock(), 0
"""Of the connection, which several searches of this process may use."""


class HeadLostError(BackendError):
    """The head of the cluster is gone, and with it all that ran there."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"the head of the Ray cluster at {address} is lost; start the cluster again with `ray start`, "
            "then run the same command again to continue"
        )


@dataclass(frozen=True, slots=True)
class Host:
    """A machine of a cluster that has dies.

    Attributes:
        node: Ray's ID.
        name: of the machine, unique in the cluster.
        resource: Ray's name for its dies.
        dies: their number.
        address: under which other hosts reach it.
    """

    node: str
    name: str
    resource: str
    dies: int
    address: str


@dataclass(frozen=True, slots=True)
class HostReport(HostFacts):
    """What a host has, and ``fingerprint``: see ``sktune.backends.fingerprint``."""

    fingerprint: Mapping[str, str]


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect this process to a cluster, unless it is connected.

    Raises:
        BadInputError: there is none.
    """
    global _users
    with _LOCK:
        if not _users and ray.is_initialized():
            is_ours = False
        else:
            if not _users:
                _connect(address)
            _users += 1
            is_ours = True
    try:
        yield
    finally:
        with _LOCK:
            _users -= is_ours
            if is_ours and not _users:
                ray.shutdown()


def _connect(address: str | None) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        _reach(address)
        ray.init(address=address or "auto", log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError) as failure:
        where = f"at {address}" if address else "on this host"
        raise BadInputError(
            f"there is no Ray cluster {where} ({first_line(failure)}); start one with `ray start`, or give --address"
        ) from failure


def head_address() -> str:
    """Return the address of the connected cluster's head."""
    context: Any = ray.get_runtime_context()
    return str(context.gcs_address)


def is_listening(address: str) -> bool:
    """Whether the head is there. Ray's own calls wait for it for a minute, and then end this process."""
    with suppress(OSError):
        _reach(address)
        return True
    return False


def _reach(address: str | None) -> None:
    """Raise an ``OSError`` or a ``ValueError`` if nobody listens at an address: Ray would try for minutes."""
    if address:
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal()):
            raise ValueError("an address is HOST:PORT")
        socket.create_connection((host, int(port)), REACH_S).close()


def hosts(device: str) -> tuple[Host, ...]:
    """Return the living hosts with dies for a type of device, by name."""
    all_nodes: Any = ray.nodes  # not typed
    nodes = [node for node in all_nodes() if node["Alive"]]
    names = Counter(node["NodeManagerHostname"] for node in nodes)
    found = []
    for node in nodes:
        resources, identity = node["Resources"], node["NodeID"]
        resource = OWN_RESOURCE if OWN_RESOURCE in resources else RESOURCES.get(device, OWN_RESOURCE)
        name = node["NodeManagerHostname"]
        unique = name if names[name] == 1 else f"{name}-{identity[:4]}"
        if dies := int(resources.get(resource, 0)):
            found.append(Host(identity, unique, resource, dies, node["NodeManagerAddress"]))
    return tuple(sorted(found, key=lambda host: host.name))


def on_host(host: Host) -> NodeAffinitySchedulingStrategy:
    """Return the scheduling of what must run on a host."""
    return NodeAffinitySchedulingStrategy(host.node, soft=False)


def survey(spec: TargetSpec, space: SpaceSpec) -> tuple[HostReport, ...]:
    """Return what each host with dies has.

    Raises:
        BadInputError: no host has dies, or one of them does not answer.
    """
    found = hosts(spec.device)
    if not found:
        wanted = RESOURCES.get(spec.device, OWN_RESOURCE)
        raise BadInputError(
            f"no host of the cluster has a resource {wanted!r}; start Ray there with "
            f"`ray start --resources '{{\"{OWN_RESOURCE}\": 16}}'`, with its number of dies"
        )
    task = ray.remote(num_cpus=0, max_retries=0)(_report)
    threads = os.environ.get(THREADS)
    asked = [task.options(scheduling_strategy=on_host(host)).remote(host, spec, space, threads) for host in found]
    try:
        return tuple(ray.get(asked, timeout=SURVEY_S))
    except ray.exceptions.RayTaskError as failure:
        raise BadInputError(
            f"a host of the cluster cannot run sktune ({first_line(failure.cause)}); install the same version on all"
        ) from failure
    except (ray.exceptions.RayError, TimeoutError) as failure:
        raise BadInputError(
            f"a host of the cluster does not answer: {first_line(failure)}; see `ray status`"
        ) from failure


def refuse_mixed(reports: Sequence[HostReport]) -> None:
    """Raise ``BadInputError`` if the fingerprints of two hosts differ: figures would be mixed."""
    first = reports[0]
    for other in reports[1:]:
        for key in sorted({*first.fingerprint, *other.fingerprint}):
            values = [report.fingerprint.get(key, "not set") for report in (first, other)]
            if values[0] != values[1]:
                raise BadInputError(
                    f"hosts {first.name} and {other.name} differ in {key}: {values[0]!r} and {values[1]!r}; "
                    "make them equal, or search on hosts of one kind"
                )


def restore_threads(threads: str | None) -> None:
    """Undo what Ray has set: ``threads`` is the variable's value for the user who searches; None for unset."""
    os.environ.pop(THREADS, None)
    if threads is not None:
        os.environ[THREADS] = threads


def _report(host: Host, spec: TargetSpec, space: SpaceSpec, threads: str | None) -> HostReport:
    """Return what this host has; runs there."""
    restore_threads(threads)
    return HostReport(
        host.name,
        host.dies,
        len(visible_devices(spec.device)) if spec.device in VISIBLE else None,
        len(core_groups()),
        package_version("torch"),
        cann_version(),
        clock_mhz(),
        shutil.disk_usage(Path.cwd()).free,
        fingerprint(spec, space),
    )
