"""Disturbances of a machine, from its counters."""

from dataclasses import replace

import pytest

from sktune.measure import machine
from sktune.measure.machine import MachineLoad, disturbance

BEFORE = MachineLoad(at_s=10.0, busy_s=50.0, steal_s=1.0, own_s=20.0, cores=2, clock_mhz=3000.0)
QUIET = replace(BEFORE, at_s=10.2, busy_s=50.41, own_s=20.4)


@pytest.mark.parametrize(
    ("after", "cause"),
    [
        (QUIET, ""),
        (replace(QUIET, own_s=20.2), "other load"),
        (replace(QUIET, steal_s=1.02), "steal time"),
        (replace(QUIET, clock_mhz=2400.0), "changing clock"),
        (replace(QUIET, clock_mhz=None), ""),
        (None, ""),
    ],
)
def test_a_disturbance_has_a_name(after: MachineLoad | None, cause: str) -> None:
    """Our own load is not a disturbance; other load, steal time and clock changes are."""
    assert disturbance(BEFORE, after) == cause


def test_this_machine_can_be_read() -> None:
    """Counters only go up."""
    first, second = machine.read(), machine.read()
    assert first is not None
    assert second is not None
    assert second.at_s >= first.at_s
    assert second.busy_s >= first.busy_s
    assert second.own_s >= first.own_s
    assert second.cores >= 1
