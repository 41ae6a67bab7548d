"""The machine: disturbances during a measurement, and the cores and threads of processes that time steps on a CPU.

Disturbances show in two readings of Linux's counters. Cores are chosen by how busy each is: threads of one operator
wait for one another; if a single one of them shares its core with another process, all of them wait for it, and steps
were 50 times slower. On the cores that are free, with a thread for each, they are not.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OTHER_LOAD = 0.1
"""Share of our cores used by other processes above which a reading counts as disturbed. An idle desktop stays under
0.03; counters advance by 10 ms."""
STEAL = 0.02
"""The same for the share of our cores that the hypervisor gives to other machines."""
FREQUENCY_CHANGE = 0.05
"""The same for the relative change of the fastest core's clock. nvbench drops samples at 0.8 of the peak; CPUs
change in finer steps."""
_CORES_READ = 16
"""Reading the clock of a core may wake it, so the fastest of this many stands for all."""


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """Counters at one moment.

    Attributes:
        at_s: time since some fixed moment.
        busy_s: total busy time of the cores that this process may use, for any process.
        steal_s: total time that the hypervisor withheld from them.
        own_s: processor time of this process, all threads.
        cores: number of these cores.
        clock_mhz: of the fastest of them; None if the system does not report it.
    """

    at_s: float
    busy_s: float
    steal_s: float
    own_s: float
    cores: int
    clock_mhz: float | None


def read() -> MachineLoad | None:
    """Return the current counters; None if the system has no /proc/stat."""
    cores = core_times()
    if not cores:
        return None
    busy_s, steal_s = (sum(times) for times in zip(*cores.values(), strict=True))
    return MachineLoad(time.perf_counter(), busy_s, steal_s, time.process_time(), len(cores), clock_mhz())


def available_memory() -> int:
    """Return the memory of this host that a program could get without swapping, in bytes (proc(5), MemAvailable)."""
    found = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def core_times() -> dict[int, tuple[float, float]]:
    """Return busy and withheld seconds of each core that this process may use; empty if the system has no /proc/stat.

    They count from some fixed moment. Withheld by the hypervisor is "steal".
    """
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    counters = {line.partition(" ")[0]: [int(value) for value in line.split()[1:9]] for line in lines if "cpu" in line}
    ours = {core: counters[f"cpu{core}"] for core in sorted(os.sched_getaffinity(0)) if f"cpu{core}" in counters}
    # proc(5): user nice system idle iowait irq softirq steal
    return {core: ((sum(row[:3]) + sum(row[5:7])) * tick_s, row[7] * tick_s) for core, row in ours.items()}


def disturbance(before: MachineLoad | None, after: MachineLoad | None) -> str:
    """Return what disturbed the time between two readings, in a few words; empty if nothing did."""
    if before is None or after is None or after.at_s <= before.at_s:
        return ""
    core_s = (after.at_s - before.at_s) * after.cores
    others = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    if others > OTHER_LOAD * core_s:
        return "other load"
    if after.steal_s - before.steal_s > STEAL * core_s:
        return "steal time"
    if before.clock_mhz and after.clock_mhz and abs(after.clock_mhz / before.clock_mhz - 1) > FREQUENCY_CHANGE:
        return "changing clock"
    return ""


def clock_mhz() -> float | None:
    cores = sorted(os.sched_getaffinity(0))[:_CORES_READ]
    paths = [Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq") for core in cores]
    try:
        return max(int(path.read_text(encoding="ascii")) for path in paths) / 1e3  # kHz
    except (OSError, ValueError):
        return None  # a virtual machine's /proc/cpuinfo does have a clock, but it never changes


BUSY = 0.25
"""Share of a core's time that other processes take, above which it is busy."""
LOOK_S, LONGER_LOOK_S = 0.1, 0.9
"""How long the cores are watched, and how much longer if one of them seems busy: load often comes in short bursts."""
THREADS, CORES = "threads", "cores"
"""Keys of a placement in a fingerprint."""
OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")

Loads = Mapping[tuple[int, ...], float]
"""The share of its time that other processes take of each core, by the numbers of its hardware threads."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the processes that time steps run.

    Attributes:
        threads: of an operator; None for the choice of the libraries, or of the user's ``OMP_NUM_THREADS``.
        cores: processors, as numbered by the system, that they are kept to; empty for all that this process may use.
        core_count: number of cores that these are: several processors may be hardware threads of one core.
    """

    threads: int | None = None
    cores: tuple[int, ...] = ()
    core_count: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the processes."""
        return {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}

    @property
    def fingerprint(self) -> dict[str, str]:
        """What figures depend on: the numbers of threads and of cores, but not which cores; empty for the default."""
        chosen = {THREADS: self.threads or 0, CORES: self.core_count}
        return {name: str(number) for name, number in chosen.items() if number}

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Start processes on the cores meanwhile, from the calling thread."""
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cores or before)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class Machine:
    """How much of this machine is free.

    Attributes:
        loads: of each core that this process may use; empty if the system does not tell.
        quota: processor time that the process's control groups allow, in cores; None for no limit.
        user_threads: the user's ``OMP_NUM_THREADS``; None if it is not set.
    """

    loads: Loads
    quota: float | None = None
    user_threads: int | None = None

    @classmethod
    def look(cls) -> "Machine":
        """Watch the cores for ``LOOK_S``, longer if one seems busy; this process must do nothing else meanwhile."""
        before, began_s = core_times(), time.perf_counter()
        time.sleep(LOOK_S)
        loads = _loads(before, time.perf_counter() - began_s)
        if any(load >= BUSY for load in loads.values()):
            time.sleep(LONGER_LOOK_S)
            loads = _loads(before, time.perf_counter() - began_s)
        chosen = re.match(r"\s*(\d+)", os.environ.get("OMP_NUM_THREADS", ""))  # it may be a list, one for each nesting
        return cls(loads, cpu_quota(), int(chosen[1]) if chosen and int(chosen[1]) else None)

    def is_crowded(self, placement: Placement) -> bool:
        """Whether threads of steps that wait for one another share their cores with other processes."""
        cores = [core for core in self.loads if not placement.cores or set(core) & set(placement.cores)]
        free = sum(core not in self.busy for core in cores)
        threads = min(placement.threads or self.user_threads or len(cores), len(cores))
        return free < threads > 1

    @property
    def busy(self) -> list[tuple[int, ...]]:
        """The busy cores."""
        return [core for core, load in self.loads.items() if load >= BUSY]

    @property
    def usable(self) -> int:
        """How many cores steps can have for themselves: the free ones, or what all together have left; at least 1."""
        free = len(self.loads) - len(self.busy)
        left = free or int(sum(1 - load for load in self.loads.values()))
        return max(1, left if self.quota is None else min(left, int(self.quota)))

    def placement(self) -> Placement:
        """Return the placement for a new study: the default if nothing else runs and no quota is in the way."""
        if not self.loads or self.usable == len(self.loads):
            return Placement()
        threads = self.user_threads or self.usable
        free = len(self.loads) - len(self.busy)
        # A quota limits threads only; and where no core is free, the system finds the best one at each moment.
        cores = max(threads, free) if free else 0
        of_user = self.user_threads is not None
        return self._kept(None if of_user else threads, 0 if cores >= len(self.loads) else cores)

    def placement_as_in(self, fingerprint: Mapping[str, str]) -> Placement:
        """Return the placement with as many threads and cores as a study was made with, on those that are free now."""
        numbers = (str(fingerprint.get(name, "")) for name in (THREADS, CORES))
        threads, cores = (int(number) if number.isdecimal() else 0 for number in numbers)
        return self._kept(threads or None, cores)

    def _kept(self, threads: int | None, count: int) -> Placement:
        chosen = sorted(self.loads, key=lambda core: (round(self.loads[core], 1), core))[:count]
        return Placement(threads, tuple(sorted(number for core in chosen for number in core)), count)


def core_groups() -> list[tuple[int, ...]]:
    """Return the cores that this process may use, each as the numbers of its hardware threads."""
    return _cores(sorted(os.sched_getaffinity(0)))


def allowed_cores() -> int:
    """Return how many processors this process may keep busy: those of its affinity, up to its quota."""
    quota, count = cpu_quota(), len(os.sched_getaffinity(0))
    return count if quota is None else max(1, min(count, int(quota)))


def cpu_quota() -> float | None:
    """Return the processor time that the control groups of this process allow, in cores; None for no limit.

    The limits of its group and of all above it, version 2 (``cpu.max``) or 1 (``cpu.cfs_quota_us``); see the kernel's
    Documentation/admin-guide/cgroup-v2.rst and Documentation/scheduler/sched-bwc.rst.
    """
    try:
        lines = OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = GROUPS / controllers
        group = top / path.lstrip("/")
        quotas += [
            quota for folder in (group, *group.parents) if folder.is_relative_to(top) for quota in _quota(folder)
        ]
    return min(quotas, default=None)


def _quota(group: Path) -> Sequence[float]:
    """Return the quota of one group, in cores; empty if it has none."""
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = " ".join((group / file).read_text(encoding="ascii") for file in files).split()
            return [] if quota in ("max", "-1") else [int(quota) / int(period)]
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return []


def _loads(before: Mapping[int, tuple[float, float]], seconds: float) -> Loads:
    """Return the load of each core since ``before``: that of its busiest hardware thread."""
    loads: dict[tuple[int, ...], float] = {}
    after = core_times()
    for core in _cores(sorted(before.keys() & after)):
        taken_s = max(sum(after[number]) - sum(before[number]) for number in core)
        loads[core] = min(1.0, taken_s / seconds)
    return loads


def _cores(numbers: Sequence[int]) -> list[tuple[int, ...]]:
    """Group processors by core."""
    cores: dict[str, list[int]] = {}
    for number in numbers:
        siblings = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        try:
            cores.setdefault(siblings.read_text(encoding="ascii").strip(), []).append(number)
        except OSError:
            cores[f"alone {number}"] = [number]
    return [tuple(core) for core in cores.values()]
