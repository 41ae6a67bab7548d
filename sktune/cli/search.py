"""Commands that search: ``search`` and ``analyze``."""

import webbrowser
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from sktune.cli import options as arg
from sktune.cli.app import app
from sktune.cli.terminal import Terminal
from sktune.cli.views.live import following
from sktune.cli.views.progress import PlainView
from sktune.cli.views.search import result_table
from sktune.core.errors import BackendError, BadInputError, ExitCode
from sktune.core.events.base import Event
from sktune.core.events.lines import print_event
from sktune.core.events.search import ModelsFinished, StudyFinished
from sktune.core.events.studies import PageServed
from sktune.core.search_options import Group, fields_of
from sktune.tuning import loop
from sktune.tuning.request import Request
from sktune.tuning.time_budget import process_began_s

ANY_MODEL = "llama"
"""In the request that those of a list are made from; each names its own."""


@app.command(cls=arg.GroupedCommand)
@arg.of_search(grouped=True)
def search(
    *,
    models: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file with several searches, which share the workers; see docs/how-to/many-dies.md.",
            rich_help_panel=Group.MODEL,
        ),
    ] = None,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="Start the program of --recipe once, and say what a search would do and how long it takes.",
            rich_help_panel=Group.SEARCH,
        ),
    ] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Show the study's page in a browser, live.")] = False,
    json: arg.Json = False,
    **given: Any,
) -> None:
    """Search for the best plan; run the same command again to continue."""
    if models and (given["model"] or given["recipe"] or given["study"] or open_page):
        raise BadInputError("--models names the models; leave out --model, --recipe, --study and --open")
    if models and given["shapes"]:
        raise BadInputError("--shapes are of one model; leave out --models")
    if models and given["standby"]:
        raise BadInputError("--standby waits for one study; leave out --models")
    request = Request(**fields_of(given | {"model": given["model"] or ANY_MODEL * bool(models)}))
    if rehearse and models:
        raise BadInputError("--rehearse starts the program of one recipe; leave out --models, and give --recipe")
    if rehearse and request.shapes:
        raise BadInputError("--rehearse starts the program of one recipe; leave out --shapes")
    if rehearse:
        _rehearse(request, json=json)
        return
    if models:
        _search_all(models, request, json=json)
        return
    if request.shapes:
        if open_page:
            raise BadInputError("--open shows the page of one study; leave it out, and use `sktune serve`")
        _search_shapes(request, json=json)
        return
    began_s = process_began_s()
    people = Terminal(stderr=json)
    if open_page:
        _open_page(request, people, json=json)
    with following(people, in_place=not json, began_s=began_s) as shown:

        def listen(event: Event) -> None:
            if json and not isinstance(event, StudyFinished):  # its line comes last
                print_event(event)
            shown(event)

        result = loop.search(request, listen, began_s)
    people.print(result_table(result))
    if result.has_failed and result.verdict:
        from sktune.reports.study import verdict_line

        raise BackendError(f"{verdict_line(result)}; see {result.folder / 'report.html'} and logs/")
    if json:
        print_event(result.told_as(StudyFinished))


def _rehearse(request: Request, *, json: bool) -> None:
    """Rehearse a search, and show it; exit code 1 if the search could not start here."""
    from sktune.cli.views.rehearsal import rehearsal_view
    from sktune.recipes.rehearsal import rehearse

    rehearsal = rehearse(request)
    Terminal(stderr=json).print(rehearsal_view(rehearsal))
    if json:
        print_event(rehearsal.event)
    if not rehearsal.can_start:
        raise typer.Exit(ExitCode.FAILED)


def _search_all(models: Path, request: Request, *, json: bool) -> None:
    """Search for each model; a line for each event has the study's name before it."""
    from sktune.cli.views.models import models_table, rows_of
    from sktune.cluster.model_list import read_models
    from sktune.cluster.side_by_side import search_all

    requests = read_models(models, request)
    people = Terminal(stderr=json)
    views = {request.study: PlainView(partial(_print_of, people, request.study)) for request in requests}

    def listen(study: str, event: Event) -> None:
        if json:
            print_event(event, study)
        views[study](event)

    answers = search_all(requests, listen)
    people.print(models_table(answers))
    failed = [answer for answer in answers if answer.failure]
    for answer in failed:
        _print_of(people, answer.request.study, f"failed: {answer.failure}")
    if json:
        print_event(ModelsFinished(studies=rows_of(answers)))
    if failed:
        raise typer.Exit(max(getattr(answer.failure, "exit_code", ExitCode.FAILED) for answer in failed))


def _search_shapes(request: Request, *, json: bool) -> None:
    """Search for several shapes; a line for each event has the name of the shape's study before it."""
    from sktune.cli.views.shapes import shapes_view
    from sktune.reports.shapes import answer_lines, finished_event
    from sktune.tuning import shapes

    people = Terminal(stderr=json)
    views: dict[str, PlainView] = {}

    def listen(study: str, event: Event) -> None:
        if json:
            print_event(event, study)
        if study not in views:
            views[study] = PlainView(partial(_print_of, people, study))
        views[study](event)

    answer = shapes.search(request, listen, process_began_s())
    if not answer.is_finished:  # what it has measured is stored
        if json:
            print_event(finished_event(answer))
        raise BackendError(f"{answer.study}: {answer_lines(answer)[0]}")
    people.print(shapes_view(answer))
    if all(result.has_failed for result in answer.results):
        from sktune.reports.study import verdict_line

        result = answer.results[0]
        raise BackendError(f"{result.study}: {verdict_line(result)}; see {result.folder / 'report.html'} and logs/")
    if json:
        print_event(finished_event(answer))


def _print_of(people: Terminal, study: str | None, line: str) -> None:
    people.print(Text(f"{study}: {line}"), soft_wrap=True)


def _open_page(request: Request, people: Terminal, *, json: bool) -> None:
    """Start a server for the study's page, which outlives the search, and open the page in a browser."""
    from sktune.server.serve import serve_in_background

    study = request.study or request.target()[0].study_name
    url = serve_in_background(study, request.runs, request.storage)
    if json:
        print_event(PageServed(url=url, study=study))
    people.print(f"the study's page: {url}", highlight=False, soft_wrap=True)
    webbrowser.open(url)


@app.command(cls=arg.GroupedCommand)
@arg.of_search(
    "model", "recipe", "folder", "yaml", "scale", "trust", "dtype", "batch", "context", "goal", "time_budget",
    "profile", "seed", "backend", "device", "language", "out", "study", "runs", grouped=True,
)  # fmt: skip
def analyze(
    *,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="The model's folder, to apply the plan to.", rich_help_panel=Group.MODEL),
    ] = None,
    yaml: Annotated[
        Path | None, typer.Option(help="The YAML in it that switches scopes on.", rich_help_panel=Group.MODEL)
    ] = None,
    goal: Annotated[
        str, typer.Option(help="first (attempt: safe, quick) or best (performance).", rich_help_panel=Group.SEARCH)
    ] = "best",
    time_budget: Annotated[
        str,
        typer.Option(help="Maximum time, everything included: 90s, 10m, 1h.", rich_help_panel=Group.SEARCH),
    ] = "10m",
    language: Annotated[str, typer.Option(help="Language of the report: en or zh.")] = "en",
    out: Annotated[Path | None, typer.Option(help="Folder for the report; by default the study's.")] = None,
    study: Annotated[str | None, typer.Option(help="Name of the study; by default made of the model.")] = None,
    json: arg.Json = False,
    **given: Any,
) -> None:
    """Recommend a plan for a model: walk the scope guide's decision tree, search, and write the skill's report."""
    from sktune.analysis.analyze import AnalysisRequest, analyze  # imports libcst
    from sktune.cli.views.analysis import analysis_view

    options = fields_of(given | {"time_budget": time_budget, "study": study})
    request = AnalysisRequest.of(folder=folder, yaml=yaml, goal=goal, language=language, out=out, **options)
    began_s = process_began_s()
    people = Terminal(stderr=json)
    with following(people, in_place=not json, began_s=began_s) as shown:

        def listen(event: Event) -> None:
            if json:
                print_event(event)
            shown(event)

        analysis = analyze(request, listen, began_s)
    people.print(analysis_view(analysis))
    if json:
        print_event(analysis.event)
