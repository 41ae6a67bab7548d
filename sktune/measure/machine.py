"""The machine: disturbances during a measurement, from two readings of Linux's counters."""

import os
import time
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
