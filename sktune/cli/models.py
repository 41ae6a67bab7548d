"""Commands that look at models, profiles and this machine; they search nothing."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sktune.cli import options as arg
from sktune.cli.app import app
from sktune.cli.views.search import inspection_view
from sktune.core.events import print_event
from sktune.core.events.commands import CalibrateFinished, DoctorFinished, FusionFinished, Inspected, ProfileFinished
from sktune.tuning.request import Request


@app.command()
def inspect(
    model: arg.Model,
    space: arg.Space = None,
    try_inexact: arg.TryInexact = False,
    scale: arg.Scale = None,
    weights: arg.Weights = None,
    dtype: arg.Dtype = None,
    backend: arg.Backend = None,
    device: arg.Device = None,
    batch: arg.Batch = None,
    context: arg.Context = None,
    seed: arg.Seed = 0,
    json: arg.Json = False,
) -> None:
    """Print a model's layer kinds and their units, the space's parameters and size, and the starting points."""
    from sktune.tuning.inspect import inspect_model  # imports torch

    request = Request(
        model, space=space, scale=scale, weights=weights, dtype=dtype, backend=backend,
        device=device, batch=batch, context=context, seed=seed, try_inexact=try_inexact,
    )  # fmt: skip
    found = inspect_model(request)
    Console(stderr=json).print(inspection_view(found.description, found.space, found.is_simulated))
    if json:
        print_event(Inspected(**found.summary()))


@app.command()
def profile(
    file: Annotated[
        Path,
        typer.Argument(
            help="A kernel_details.csv, op_summary or chrome trace (NPU, GPU, CPU), or a profiler's folder."
        ),
    ],
    candidate: Annotated[Path | None, typer.Argument(help="A profile with scopes, to compare with the first.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Where to write the timeline; by default into RUNS/profiles.")
    ] = None,
    runs: arg.Runs = Path("runs"),
    json: arg.Json = False,
) -> None:
    """Show where a decode step's time goes, and what scopes can save of it."""
    from sktune.cli.views.profile import profile_view
    from sktune.profiling.report import report as report_profile

    found = report_profile(file, candidate, html, runs)
    Console(stderr=json).print(profile_view(found.profile, found.comparison, found.picture))
    if json:
        print_event(ProfileFinished(**found.profile.summary()))


@app.command()
def fusion(
    graph: Annotated[Path, typer.Argument(help="TorchAir's dump of the graph, type txt or pbtxt: what is marked.")],
    fused: Annotated[
        list[Path], typer.Option(help="GE's dumps: AfterSkGraph and super_kernel_sub_graph; may be repeated.")
    ] = [],  # noqa: B006 - typer's way
    profile: Annotated[Path | None, typer.Option(help="A profile of the step with its scopes.")] = None,
    log: Annotated[list[Path], typer.Option(help="CANN's plog; may be repeated.")] = [],  # noqa: B006
    json: arg.Json = False,
) -> None:
    """Show what the scopes of a plan became: SuperKernels, splits, and what was left out."""
    from sktune.ascend.fusion import describe
    from sktune.profiling.report import fusion_of_files

    found = fusion_of_files(graph, fused, profile, log)
    console = Console(stderr=json)
    for line in describe(found):
        console.print(escape(line), highlight=False, soft_wrap=True)
    if json:
        print_event(FusionFinished(digest=found.digest, **asdict(found)))


@app.command()
def doctor(json: arg.Json = False) -> None:
    """Show what this machine has of what sktune needs, and how to get the rest."""
    from sktune.backends.availability import examine, usable
    from sktune.backends.info import State

    findings = examine()
    table = Table("backend", "what", "state", "found", "how to get it")
    for finding in findings:
        style = None if finding.state is State.OK else "yellow"
        table.add_row(
            *map(escape, (finding.backend, finding.what, finding.state, finding.found, finding.fix)), style=style
        )
    console = Console(stderr=json)
    console.print(table)
    backends = usable(findings)
    console.print(f"Backends that can be used here: {', '.join(backends) or 'none'}")
    if json:
        rows: list[Any] = [{**asdict(finding), "mend": finding.fix} for finding in findings]
        print_event(DoctorFinished(backends=backends, findings=rows))


@app.command()
def calibrate(
    profiles: Annotated[list[Path], typer.Argument(help="Profiles of the baseline, and of candidates with scopes.")],
    model: Annotated[
        str | None, typer.Option(help="The model that was profiled, to fit heads and efficiencies too.")
    ] = None,
    scale: arg.Scale = None,
    batch: arg.Batch = None,
    context: arg.Context = None,
    constants: arg.Constants = None,
    out: Annotated[Path, typer.Option(help="Where to write the constants.")] = Path("runs/constants.yaml"),
    json: arg.Json = False,
) -> None:
    """Fit the constants of the simulated device to profiles; use them with `search --constants`."""
    from sktune.tuning.calibrate import calibrate_to  # imports torch

    request = Request(model, backend="sim", scale=scale, batch=batch, context=context) if model else None
    fitted = calibrate_to(profiles, constants, request, out)
    table = Table("constant", "before", "after", "standard error", "note", title=f"written to {escape(str(out))}")
    for row in fitted.rows():
        table.add_row(*map(escape, row))
    Console(stderr=json).print(table)
    if json:
        rows: list[Any] = [asdict(row) for row in fitted.fitted]
        print_event(CalibrateFinished(constants=str(out), fitted=rows))
