"""Commands that inspect models, profiles and this machine, without a search."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from sktune.cli import options as arg
from sktune.cli.app import app
from sktune.cli.terminal import Terminal
from sktune.cli.views.findings import findings_table
from sktune.cli.views.inspection import inspection_view
from sktune.core.codec import fields_of_value
from sktune.core.errors import BadInputError, ExitCode
from sktune.core.events.base import ABSENT
from sktune.core.events.commands import CalibrateFinished, DoctorFinished, ProfileFinished, State
from sktune.core.events.lines import print_event
from sktune.core.events.scopes import FusionFinished
from sktune.core.search_options import MODELS, Group, fields_of
from sktune.study.result import stored_result
from sktune.tuning.request import Request


@app.command(cls=arg.GroupedCommand)
@arg.of_search(
    "model", "scale", "weights", "trust", "dtype", "batch", "context", "space", "try_inexact", "seed", "backend",
    "device", "constants", grouped=True,
)  # fmt: skip
def inspect(
    *,
    model: Annotated[str, typer.Option(help=MODELS, rich_help_panel=Group.MODEL)],
    json: arg.Json = False,
    **given: Any,
) -> None:
    """Print a model's layer kinds and their units, the space's parameters and size, and the starting points."""
    from sktune.tuning.inspect import inspect_model  # imports torch

    request = Request(model, **fields_of(given))
    inspection = inspect_model(request)
    view = inspection_view(inspection.description, inspection.space, inspection.is_simulated)
    Terminal(stderr=json).print(view)
    if json:
        print_event(inspection.event)


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
    """Show where the time of a decode step goes, and how much scopes can save."""
    from sktune.cli.views.profile import profile_view
    from sktune.profiling.report import report as report_profile

    profiled = report_profile(file, candidate, html, runs)
    Terminal(stderr=json).print(profile_view(profiled.profile, profiled.comparison, profiled.picture))
    if json:
        compared = profiled.comparison.shown if profiled.comparison else ABSENT
        figures = fields_of_value(profiled.profile.figures)
        print_event(ProfileFinished(**figures, warnings=profiled.warnings, comparison=compared))


@app.command()
def fusion(
    graph: Annotated[
        Path,
        typer.Argument(
            help="TorchAir's dump of the marked graph, type txt or pbtxt; for npugraph_ex a sk_meta folder."
        ),
    ],
    fused: Annotated[
        list[Path], typer.Option(help="GE's dumps: AfterSkGraph and super_kernel_sub_graph; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    profile: Annotated[Path | None, typer.Option(help="A profile of the step with its scopes.")] = None,
    log: Annotated[list[Path], typer.Option(help="CANN's plog; may be repeated.")] = [],  # noqa: B006
    json: arg.Json = False,
) -> None:
    """Show what became of a plan's scopes: SuperKernels, splits, and operators that were left out."""
    from sktune.ascend.fusion import describe
    from sktune.profiling.report import fusion_of_files

    result = fusion_of_files(graph, fused, profile, log)
    console = Terminal(stderr=json)
    lines = describe(result)
    if log and "plog" not in result.evidence:
        lines.append("logs: they name no scope, and no error that is known")
    for line in lines:
        console.print(escape(line), highlight=False, soft_wrap=True)
    if json:
        print_event(
            FusionFinished(
                digest=result.digest,
                scopes=result.scopes,
                evidence=result.evidence,
                alone=result.alone,
                findings=result.findings,
            )
        )


@app.command()
def doctor(
    python: Annotated[
        str | None, typer.Option(help="Look into this Python, that of a recipe's program, rather than sktune's own.")
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(help="Check what a search with this recipe needs, without starting it; exit code 1 if it cannot."),
    ] = None,
    json: arg.Json = False,
) -> None:
    """Show what sktune needs, what this machine has, how to get the rest, and what is not modelled of the compiler."""
    from sktune.ascend.not_modelled import NOT_MODELLED
    from sktune.backends.availability import examine, examine_program, usable, usable_in_program

    if recipe:
        from sktune.recipes.recipe_check import examine_recipe

        findings = examine_recipe(recipe, python)
        backends = usable_in_program(findings)
    elif python:
        from sktune.backends.program_python import look_into

        findings = examine_program(look_into(python))
        backends = usable_in_program(findings)
    else:
        findings = examine()
        backends = usable(findings)
    console = Terminal(stderr=json)
    console.print(findings_table(findings))
    where = "in that Python" if python or recipe else "here"
    console.print(f"Backends that can be used {where}: {', '.join(backends) or 'none'}")
    if not (python or recipe):
        left_out = Table("part of the compiler", "what follows", title=f"not modelled: {len(NOT_MODELLED)}")
        for each in NOT_MODELLED:
            left_out.add_row(escape(each.what), escape(each.consequence))
        console.print(left_out)
    if json:
        print_event(DoctorFinished(backends=backends, findings=findings, not_modelled=NOT_MODELLED))
    if recipe and any(finding.state is not State.OK for finding in findings):
        raise typer.Exit(ExitCode.FAILED)


@app.command()
@arg.of_search("model", "trust", "scale", "batch", "context")
def calibrate(
    profiles: Annotated[
        list[Path] | None, typer.Argument(help="Profiles of the baseline, and of candidates with scopes.")
    ] = None,
    *,
    model: Annotated[
        str | None, typer.Option(help="The model that was profiled, to fit heads and efficiencies as well.")
    ] = None,
    constants: arg.Constants = None,
    study: Annotated[
        str | None, typer.Option(help="Instead of profiles: what this study has found its device to be.")
    ] = None,
    runs: arg.Runs = Path("runs"),
    storage: arg.Storage = None,
    out: Annotated[Path, typer.Option(help="Where to write the constants.")] = Path("runs/constants.yaml"),
    json: arg.Json = False,
    **given: Any,
) -> None:
    """Fit the constants of the simulated device to profiles or to a study, for `search --constants`."""
    from sktune.sim.calibration import calibrate_to, calibrate_to_study  # imports torch

    if bool(profiles) == bool(study):
        raise BadInputError("give either profiles or --study NAME")
    if study:
        if model:
            raise BadInputError("--model is for profiles; leave it out with --study")
        fitted = calibrate_to_study(stored_result(study, runs, storage), constants, out)
    else:
        request = Request(model, backend="sim", **fields_of(given)) if model else None
        fitted = calibrate_to(profiles or [], constants, request, out)
    table = Table("constant", "before", "after", "standard error", "note", title=f"written to {escape(str(out))}")
    for row in fitted.rows():
        table.add_row(*map(escape, row))
    Terminal(stderr=json).print(table)
    if json:
        print_event(CalibrateFinished(constants=str(out), fitted=fitted.fitted))
