"""The ``sktune`` command: reads options, calls one function, shows what it returns."""

import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from sktune import arguments as arg
from sktune import proxy
from sktune import report as reports
from sktune.agent import print_event, print_failure
from sktune.errors import BadInputError, InterruptedSearchError, SktuneError, StudyError
from sktune.fingerprint import package_version
from sktune.request import DEFAULT_VERIFY_STEPS, Request
from sktune.result import SearchResult, stored_result
from sktune.samplers import SAMPLERS
from sktune.study import TuningStudy, sqlite_url
from sktune.time_budget import parse_duration, process_began_s
from sktune.view import comparison_table, following, inspection_view, result_table

app = typer.Typer(
    name="sktune",
    help="Find the scopes that make a model's decode step fastest, while every output bit stays the same.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

agent_app = typer.Typer(help="Teach agents to use sktune.", no_args_is_help=True)
app.add_typer(agent_app, name="agent")


def _show_version(asked: bool) -> None:
    if asked:
        print(package_version("sktune"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True)] = False,
) -> None:
    """Find the scopes that make a model's decode step fastest, while every output bit stays the same."""


@app.command()
def search(
    model: arg.AnyModel = "",
    recipe: arg.Recipe = None,
    trials: arg.Trials = None,
    time_budget: Annotated[
        str | None, typer.Option(help="Most time for this call, all included: 90s, 3m, 1h, 1h30m.")
    ] = None,
    study: Annotated[
        str | None, typer.Option(help="Name of the study; made of model, backend and device by default.")
    ] = None,
    storage: arg.Storage = None,
    runs: arg.Runs = Path("runs"),
    strategy: Annotated[
        str, typer.Option("--strategy", "--sampler", help=f"{', '.join(SAMPLERS)}, or module:function.")
    ] = "partition",
    until_settled: arg.UntilSettled = False,
    join: arg.Join = False,
    take_over: arg.TakeOver = False,
    proxy_layers: arg.ProxyLayers = None,
    space: arg.Space = None,
    try_inexact: arg.TryInexact = False,
    compile_timeout: Annotated[float, typer.Option(help="Most seconds for one compile.")] = 300.0,
    verify_steps: arg.VerifySteps = DEFAULT_VERIFY_STEPS,
    scale: arg.Scale = None,
    weights: arg.Weights = None,
    dtype: arg.Dtype = None,
    backend: arg.Backend = None,
    device: arg.Device = None,
    batch: arg.Batch = None,
    context: arg.Context = None,
    constants: arg.Constants = None,
    profile: arg.Profile = None,
    seed: arg.Seed = 0,
    json: arg.Json = False,
) -> None:
    """Search for the best plan; run again to continue."""
    request = Request(
        model, trials, study, storage, runs, strategy, space, compile_timeout, scale, weights, dtype, backend,
        device, batch, context, seed, constants, profile, parse_duration(time_budget) if time_budget else None,
        proxy_layers, until_settled=until_settled, recipe=recipe, verify_steps=verify_steps, join=join,
        take_over=take_over, try_inexact=try_inexact,
    )  # fmt: skip
    began_s = process_began_s()
    people = Console(stderr=json)
    with following(people, in_place=not json) as shown:

        def listen(event: dict[str, Any]) -> None:
            if json and event["event"] != "study_finished":  # its line comes last
                print_event(event)
            shown(event)

        result = proxy.search(request, listen, began_s)
    people.print(result_table(result))
    if json:
        print_event({"event": "study_finished", **result.summary()})


@app.command()
def analyze(
    model: arg.AnyModel = "",
    recipe: arg.Recipe = None,
    folder: Annotated[Path | None, typer.Option("--dir", help="The model's folder, which the plan is for.")] = None,
    yaml: Annotated[Path | None, typer.Option(help="The YAML in it that switches scopes on.")] = None,
    goal: Annotated[str, typer.Option(help="first (attempt: safe, quick) or best (performance).")] = "best",
    time_budget: Annotated[str, typer.Option(help="Most time, all included: 90s, 10m, 1h.")] = "10m",
    language: Annotated[str, typer.Option(help="Of the report: en or zh.")] = "en",
    out: Annotated[Path | None, typer.Option(help="Folder of the report; the study's by default.")] = None,
    study: Annotated[str | None, typer.Option(help="Name of the study; made of the model by default.")] = None,
    runs: arg.Runs = Path("runs"),
    scale: arg.Scale = None,
    dtype: arg.Dtype = None,
    backend: arg.Backend = None,
    device: arg.Device = None,
    batch: arg.Batch = None,
    context: arg.Context = None,
    profile: arg.Profile = None,
    seed: arg.Seed = 0,
    json: arg.Json = False,
) -> None:
    """From a model to a recommendation: walk the scope guide, search, and write the skill's report."""
    from sktune.analysis.analyze import AnalysisRequest, analyze  # imports libcst
    from sktune.analysis_view import analysis_view

    asked = AnalysisRequest.of(
        model, recipe, folder, yaml, goal, language, out, time_budget_s=parse_duration(time_budget), study=study,
        runs=runs, scale=scale, dtype=dtype, backend=backend, device=device, batch=batch, context=context,
        profile=profile, seed=seed,
    )  # fmt: skip
    people = Console(stderr=json)
    with following(people, in_place=not json) as shown:

        def listen(event: dict[str, Any]) -> None:
            if json:
                print_event(event)
            shown(event)

        found = analyze(asked, listen, process_began_s())
    people.print(analysis_view(found))
    if json:
        print_event({"event": "analysis_finished", **found.summary()})


@app.command()
def show(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    runs: arg.Runs = Path("runs"),
    storage: arg.Storage = None,
    why: Annotated[
        bool, typer.Option("--why", help="What it has learned, in tables and a page with pictures.")
    ] = False,
    json: arg.Json = False,
) -> None:
    """Show what a study has found so far."""
    result = stored_result(study, runs, storage)
    console = Console(stderr=json)
    console.print(result_table(result))
    learned = _explained(study, result, storage, console) if why else {}
    if json:
        known = {"incumbent": result.incumbent(), "blamed": result.blamed(), "final": result.final_rows()}
        print_event({"event": "study", **result.summary(), **known, **learned})


def _explained(name: str, result: SearchResult, storage: str | None, console: Console) -> dict[str, Any]:
    """Show why, write its page, and return it for JSON."""
    from sktune import why_view  # imports plotly
    from sktune.why import explain

    study = TuningStudy.open(name, storage or sqlite_url(result.folder.resolve()), create=False)
    space = study.space()
    outlook = study.outlook(space, seed=0)
    why = explain(space, study.trials(), result.baseline_ms, outlook) if result.baseline_ms else None
    if why is None:
        raise StudyError(f"study {name!r} has measured nothing yet; run `sktune search` first")
    console.print(why_view.why_tables(why, result.is_simulated))
    page = why_view.write_page(why, result.study, result.is_simulated, result.folder)
    console.print(escape(str(page)), highlight=False)
    return {"why": why.to_dict(), "page": str(page)}


@app.command()
def report(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    runs: arg.Runs = Path("runs"),
    storage: arg.Storage = None,
    json: arg.Json = False,
) -> None:
    """Write a study's report, plan and trials anew."""
    result = stored_result(study, runs, storage)
    files = reports.write(result, result.folder)
    console = Console(stderr=json)
    for path in files:
        console.print(escape(str(path)), highlight=False)
    if json:
        print_event({"event": "report_written", "files": [str(path) for path in files]})


@app.command()
def compare(
    studies: Annotated[list[str], typer.Argument(help="Names of studies of one target.")],
    html: Annotated[
        Path | None, typer.Option(help="Where to write the picture; by default into RUNS/comparisons.")
    ] = None,
    runs: arg.Runs = Path("runs"),
    storage: arg.Storage = None,
    json: arg.Json = False,
) -> None:
    """Show side by side what studies had found after how many trials."""
    from sktune import comparing  # imports plotly

    compared = comparing.compare([stored_result(study, runs, storage) for study in dict.fromkeys(studies)])
    picture = comparing.write_picture(compared, html, runs)
    console = Console(stderr=json)
    console.print(comparison_table(compared.events(), compared.is_simulated))
    console.print(f"Picture: {escape(str(picture))}", highlight=False)
    if json:
        for event in compared.events():
            print_event(event)
        print_event({"event": "compare_finished", "studies": list(dict.fromkeys(studies)), "picture": str(picture)})


@app.command()
def apply(
    to: Annotated[Path, typer.Option("--to", help="The model's folder: its modeling_*.py and its YAML.")],
    plan: Annotated[Path | None, typer.Argument(help="A best_plan.yaml; none with --undo.")] = None,
    yaml: Annotated[Path | None, typer.Option(help="The YAML to switch scopes on in, where there are several.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Change the files; without it, the diff is all.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Put the files back as they were.")] = False,
    json: arg.Json = False,
) -> None:
    """Turn a plan into a change of a model's source and configuration."""
    from sktune.plan_file import read_plan_file
    from sktune.source import changes  # imports libcst
    from sktune.source.applying import source_change

    if undo == (plan is not None) or (undo and write):
        raise BadInputError("give a plan to apply, or --undo alone to take one back")
    told = Console(stderr=True)
    if plan is None:
        restored = [str(path) for path in changes.undo(to)]
        told.print(escape(f"as before: {', '.join(restored)}"), highlight=False, soft_wrap=True)
        if json:
            print_event({"event": "plan_undone", "files": restored})
        return
    change = source_change(read_plan_file(plan), to, yaml)
    if write:
        change.write()
    if not json:
        _print_diff(change.diff)
    for line in (*change.notes, _next_step(change.diff, written=write)):
        told.print(escape(line), highlight=False, soft_wrap=True)
    if json:
        paths = [str(each.path) for each in change.changes]
        summary = {"files": paths, "written": write, "notes": change.notes, "diff": change.diff}
        print_event({"event": "plan_applied", **summary})


def _print_diff(diff: str) -> None:
    console = Console()
    if console.is_terminal:
        console.print(Syntax(diff, "diff", theme="ansi_dark", background_color="default"))
    else:
        print(diff, end="")  # as `git apply` takes it


def _next_step(diff: str, *, written: bool) -> str:
    if not diff:
        return "nothing to change: the plan is there already"
    return "written; `sktune apply --undo --to DIR` takes it back" if written else "nothing written; add --write"


@app.command()
def recheck(
    plan: Annotated[Path, typer.Argument(help="A best_plan.yaml.")],
    model: Annotated[
        str | None, typer.Option(help="Where the model lies now: file.py:function, a folder, or a recipe.yaml.")
    ] = None,
    weights: arg.Weights = None,
    verify_steps: arg.VerifySteps = DEFAULT_VERIFY_STEPS,
    runs: arg.Runs = Path("runs"),
    json: arg.Json = False,
) -> None:
    """Check whether a plan still holds here: code, bits, speed. Exit code 0: keep, 3: slower now, 4: bits differ."""
    from sktune.recheck import RecheckRequest
    from sktune.recheck import recheck as run_recheck
    from sktune.view import recheck_table

    people = Console(stderr=json)
    with people.status("") as status:
        found = run_recheck(RecheckRequest(plan, model, weights, verify_steps, runs), status.update)
    people.print(recheck_table(found))
    if json:
        print_event({"event": "rechecked", "plan": str(plan), **found.summary()})
    raise typer.Exit(found.verdict.exit_code)


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
    from sktune.inspection import inspect_model  # imports torch

    request = Request(
        model, space=space, scale=scale, weights=weights, dtype=dtype, backend=backend,
        device=device, batch=batch, context=context, seed=seed, try_inexact=try_inexact,
    )  # fmt: skip
    found = inspect_model(request)
    Console(stderr=json).print(inspection_view(found.description, found.space, found.is_simulated))
    if json:
        print_event({"event": "inspected", **found.summary()})


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
    from sktune.profile_view import profile_view
    from sktune.profiling.report import report as report_profile

    found = report_profile(file, candidate, html, runs)
    Console(stderr=json).print(profile_view(found.profile, found.comparison, found.picture))
    if json:
        print_event({"event": "profile_finished", **found.profile.summary()})


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
    from sktune.fusion import describe
    from sktune.profiling.report import fusion_of_files

    found = fusion_of_files(graph, fused, profile, log)
    console = Console(stderr=json)
    for line in describe(found):
        console.print(escape(line), highlight=False, soft_wrap=True)
    if json:
        print_event({"event": "fusion_finished", "digest": found.digest, **asdict(found)})


recipes = typer.Typer(help="Programs that a script of their own starts.", no_args_is_help=True)
app.add_typer(recipes, name="recipe")


@recipes.command("init")
def recipe_init(
    folder: Annotated[Path, typer.Argument(help="A checkout of cann-recipes-infer, or a model's folder.")],
    yaml: Annotated[Path | None, typer.Option(help="The YAML to start it with, where there are several.")] = None,
    command: Annotated[str | None, typer.Option(help="What starts it, where no script is found.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write the recipe.")] = Path("recipe.yaml"),
    json: arg.Json = False,
) -> None:
    """Look at a model's folder and write a recipe for `search --recipe`."""
    from sktune.recipes.scouting import scout

    scouted = scout(folder, yaml, command)
    if out.exists():
        raise BadInputError(f"{out} is there already; name another file with --out")
    try:
        out.write_text(scouted.text, encoding="utf-8")
    except OSError as failure:
        raise BadInputError(f"{out} cannot be written ({failure.strerror}); name another file with --out") from failure
    told = Console(stderr=json)
    for line in (*scouted.found, *(f"not known: {line}" for line in scouted.unknown), f"written: {out}"):
        told.print(escape(line), highlight=False, soft_wrap=True)
    if json:
        found = {"recipe": str(out), "found": scouted.found, "unknown": scouted.unknown}
        print_event({"event": "recipe_written", **found})


@app.command()
def doctor(json: arg.Json = False) -> None:
    """Show what this machine has of what sktune needs, and how to get the rest."""
    from sktune.doctor import State, examine, usable

    findings = examine()
    table = Table("backend", "what", "state", "found", "how to get it")
    for finding in findings:
        style = None if finding.state is State.OK else "yellow"
        table.add_row(
            *map(escape, (finding.backend, finding.what, finding.state, finding.found, finding.mend)), style=style
        )
    console = Console(stderr=json)
    console.print(table)
    backends = usable(findings)
    console.print(f"Backends that can be used here: {', '.join(backends) or 'none'}")
    if json:
        print_event({"event": "doctor_finished", "backends": list(backends), "findings": [asdict(f) for f in findings]})


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
    from sktune.calibrating import calibrate_to  # imports torch

    request = Request(model, backend="sim", scale=scale, batch=batch, context=context) if model else None
    fitted = calibrate_to(profiles, constants, request, out)
    table = Table("constant", "before", "after", "standard error", "note", title=f"written to {escape(str(out))}")
    for row in fitted.rows():
        table.add_row(*map(escape, row))
    Console(stderr=json).print(table)
    if json:
        rows = [asdict(row) for row in fitted.fitted]
        print_event({"event": "calibrate_finished", "constants": str(out), "fitted": rows})


@app.command()
def mcp(
    runs: arg.Runs = Path("runs"),
    allow_write: Annotated[bool, typer.Option("--allow-write", help="Let agents change a model's files.")] = False,
) -> None:
    """Serve agents over the Model Context Protocol, on standard input and output."""
    from sktune.mcp_server import make_server

    make_server(runs, allow_write=allow_write).run()


@agent_app.command()
def install(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that agents work in.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are not ours, or were edited.")] = False,
    json: arg.Json = False,
) -> None:
    """Write a skill and a subagent for .agents, .claude and .codex, from which an agent learns to use sktune."""
    from sktune import skill

    installed = skill.install(folder, force=force)
    told = Console(stderr=json)
    for name in installed.written:
        told.print(escape(f"written: {folder / name}"), highlight=False, soft_wrap=True)
    told.print(f"{len(installed.unchanged)} files are as they were", highlight=False)
    if json:
        print_event({"event": "agent_installed", **asdict(installed)})


def main() -> None:
    """Run the command; errors become one line and an exit code: 2 for bad input, 1 for anything else."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        if exit_code := app(standalone_mode=False):
            sys.exit(exit_code)
    except InterruptedSearchError as failure:
        _fail(str(failure), failure.exit_code, stopped=True)
    except SktuneError as failure:
        _fail(str(failure), failure.exit_code)
    except typer.TyperException as failure:
        if message := failure.format_message():  # without a word, help was shown
            _fail(message, BadInputError.exit_code)
        sys.exit(BadInputError.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        _fail("stopped; the same command goes on", 1, stopped=True)
    except Exception as failure:
        if _wants_json():
            print_failure(" ".join(f"{type(failure).__name__}: {failure}".split()), 1)
        raise


def _fail(message: str, exit_code: int, *, stopped: bool = False) -> None:
    if _wants_json():
        print_failure(message, exit_code, stopped=stopped)
    word = "" if stopped else "error: "
    Console(stderr=True).print(escape(word + message), highlight=False, soft_wrap=True)
    sys.exit(exit_code)


def _wants_json() -> bool:
    return "--json" in sys.argv  # also where the other options could not be read


if __name__ == "__main__":
    main()
