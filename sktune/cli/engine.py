"""Commands that look at the machines that searches run on."""

from typing import Any

from rich.table import Table

from sktune.cli import options as arg
from sktune.cli.app import engines
from sktune.cli.terminal import Terminal
from sktune.core.codec import encoded
from sktune.core.events.lines import print_event
from sktune.core.events.values import HostFacts
from sktune.core.events.workers import EngineChecked
from sktune.core.space import SpaceSpec
from sktune.tuning.request import Request


@engines.command()
@arg.of_search("address", "backend", "device")
def check(*, json: arg.Json = False, **given: Any) -> None:
    """Show what each host of a Ray cluster has, and refuse hosts that differ in what figures depend on."""
    from sktune.cluster.hosts import connected, refuse_mixed, survey  # the extra sktune[ray]

    request = Request("llama", engine="ray", **given)  # any model: it is not loaded
    spec, _ = request.target()
    with connected(request.address):
        reports = survey(spec, SpaceSpec())
    table = Table("host", "dies", "devices", "cores", "clock", "free disk", "torch", "CANN")
    for report in reports:
        clock = "unknown" if report.clock_mhz is None else f"{report.clock_mhz / 1e3:.2f} GHz"
        devices = "" if report.devices is None else str(report.devices)
        free = f"{report.free_disk_bytes / 2**30:.0f} GiB"
        table.add_row(report.name, str(report.dies), devices, str(report.cores), clock, free, report.torch, report.cann)
    made_with = {key: value for key, value in reports[0].fingerprint.items() if key not in ("model", "space", "format")}
    people = Terminal(stderr=json)
    people.print(table)
    refuse_mixed(reports)  # after the table, which shows where
    people.print("\n".join(f"{key}: {value}" for key, value in made_with.items()), highlight=False, markup=False)
    if json:
        hosts = [encoded(report, HostFacts) for report in reports]
        print_event(EngineChecked(hosts=hosts, dies=sum(report.dies for report in reports), fingerprint=made_with))
