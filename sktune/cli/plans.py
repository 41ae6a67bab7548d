"""Commands for plans, ``apply``, ``check`` and ``recheck``, and for programs, ``recipe init``."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.syntax import Syntax

from sktune.cli import options as arg
from sktune.cli.app import app, recipes
from sktune.cli.terminal import Terminal, encodable
from sktune.core.errors import BadInputError, ExitCode
from sktune.core.events.commands import PlanApplied, PlanUndone, RecipeWritten
from sktune.core.events.lines import print_event
from sktune.core.files import create_text
from sktune.core.search_options import fields_of
from sktune.tuning.request import Request


@app.command()
def apply(
    to: Annotated[Path, typer.Option("--to", help="The model's folder, with its modeling_*.py and its YAML.")],
    plan: Annotated[Path | None, typer.Argument(help="A best_plan.yaml; none with --undo.")] = None,
    yaml: Annotated[Path | None, typer.Option(help="The YAML to switch scopes on in, if there are several.")] = None,
    shape: Annotated[
        str | None, typer.Option(help="Of a plan for several shapes the one to write; by default the single plan.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Change the files; by default only show the diff.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Restore the files.")] = False,
    json: arg.Json = False,
) -> None:
    """Turn a plan into a change to a model's source and configuration."""
    from sktune.core.plan_file import read_plan_file
    from sktune.source import edits  # imports libcst
    from sktune.source.apply import source_change

    if undo == (plan is not None) or (undo and write):
        raise BadInputError("give a plan to apply, or only --undo to restore the files")
    people = Terminal(stderr=True)
    if plan is None:
        restored = [str(path) for path in edits.undo(to)]
        people.print(escape(f"restored: {', '.join(restored)}"), highlight=False, soft_wrap=True)
        if json:
            print_event(PlanUndone(files=restored))
        return
    file = read_plan_file(plan)
    change = source_change(file.at(file.entry_of(shape, str(plan))) if shape else file, to, yaml)
    if write:
        change.write()
    if not json:
        _print_diff(change.diff)
    for line in (*change.notes, _next_step(change.diff, to, written=write)):
        people.print(escape(line), highlight=False, soft_wrap=True)
    if json:
        paths = [str(edit.path) for edit in change.changes]
        print_event(PlanApplied(files=paths, written=write, notes=change.notes, diff=change.diff))


def _print_diff(diff: str) -> None:
    console = Terminal()
    if console.is_terminal:
        console.print(Syntax(diff, "diff", theme="ansi_dark", background_color="default"))
    else:
        print(encodable(diff, console.encoding), end="")  # valid input for `git apply`


def _next_step(diff: str, folder: Path, *, written: bool) -> str:
    if not diff:
        return "nothing to change: the source already contains the plan"
    undo = shlex.join(["sktune", "apply", "--undo", "--to", str(folder)])
    return f"written; undo with `{undo}`" if written else "nothing written; add --write"


@app.command()
@arg.of_search("model", "trust", "scale", "backend", "batch", "context", "constants")
def check(
    plan: Annotated[Path, typer.Argument(help="A plan file with SuperKernel scopes.")],
    *,
    model: Annotated[
        str | None, typer.Option(help="The model, as for `search`; by default the one that the plan file names.")
    ] = None,
    trust: arg.Trust = False,
    backend: Annotated[
        str | None, typer.Option(help="npu (default): TorchAir converts the model; sim: the simulated compiler.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="Of a plan for several shapes the one to check; by default the single plan.")
    ] = None,
    json: arg.Json = False,
    **given: Any,
) -> None:
    """Show what the compiler will make of a plan's scopes, without a compile. Exit code 5: certain to be refused."""
    from sktune.tuning.check import check_plan, lines  # imports torch

    described = fields_of({"backend": backend, **given})
    if model is None and described:
        raise BadInputError(f"--{next(iter(described))} describes the model; add --model, or leave it out")
    request = Request(model, trust=trust, **{"backend": "npu"} | described) if model is not None else None
    checked = check_plan(plan, request, trust=trust, shape=shape)
    console = Terminal(stderr=json)
    for line in lines(checked):
        console.print(escape(line), highlight=False, soft_wrap=True)
    if json:
        print_event(checked.event(plan))
    raise typer.Exit(checked.exit_code)


@app.command()
@arg.of_search("model", "weights", "trust", "verify_steps", "runs")
def recheck(
    plan: Annotated[Path, typer.Argument(help="A best_plan.yaml.")],
    *,
    model: Annotated[
        str | None, typer.Option(help="Where the model is now: file.py:function, a folder, or a recipe.yaml.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="Of a plan for several shapes the only one to check: 'batch=8 context=1024'.")
    ] = None,
    json: arg.Json = False,
    **given: Any,
) -> None:
    """Check whether a plan is still valid here: code, bits, speed. Exit code 0: keep, 3: slower now, 4: bits differ."""
    from sktune.cli.views.search import recheck_table
    from sktune.tuning.recheck import RecheckRequest, RecheckVerdict
    from sktune.tuning.recheck import recheck as run_recheck

    people, exit_code = Terminal(stderr=json), ExitCode.DONE
    with people.status("") as status:
        for name, checked in run_recheck(RecheckRequest(plan, model, shape=shape, **fields_of(given)), status.update):
            if checked.verdict is RecheckVerdict.NO_SCOPE:
                people.print(escape(f"{name}: {checked.code}"), highlight=False)
            else:
                if name:
                    people.print(escape(f"{name}:"), highlight=False)
                people.print(recheck_table(checked))
            if json:
                print_event(checked.event(plan, name))
            exit_code = max(exit_code, checked.verdict.exit_code)
    raise typer.Exit(exit_code)


@recipes.command("init")
def recipe_init(
    folder: Annotated[Path, typer.Argument(help="A checkout of cann-recipes-infer, or a model's folder.")],
    yaml: Annotated[Path | None, typer.Option(help="The YAML to start it with, if there are several.")] = None,
    command: Annotated[str | None, typer.Option(help="The command that starts it, if no script is found.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write the recipe.")] = Path("recipe.yaml"),
    json: arg.Json = False,
) -> None:
    """Inspect a model's folder and write a recipe for `search --recipe`."""
    from sktune.recipes.discover import draft_recipe

    draft = draft_recipe(folder, yaml, command)
    try:
        create_text(out, draft.text)
    except FileExistsError as failure:
        raise BadInputError(f"{out} already exists; name another file with --out") from failure
    except OSError as failure:
        raise BadInputError(f"{out} cannot be written ({failure.strerror}); name another file with --out") from failure
    console = Terminal(stderr=json)
    to_do, unknown = (f"to do: {line}" for line in draft.to_do), (f"unknown: {line}" for line in draft.unknown)
    for line in (*draft.found, *to_do, *unknown, f"written: {out}"):
        console.print(escape(line), highlight=False, soft_wrap=True)
    if json:
        print_event(RecipeWritten(recipe=str(out), found=draft.found, to_do=draft.to_do, unknown=draft.unknown))
