"""Commands that read studies: ``show``, ``report`` and ``compare``."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from sktune.cli import options as arg
from sktune.cli.app import app
from sktune.cli.terminal import Terminal
from sktune.cli.views.search import comparison_table, result_table
from sktune.core.errors import StudyError
from sktune.core.events import print_event
from sktune.core.events.studies import CompareFinished, ReportWritten, StudyShown
from sktune.core.files import real_path
from sktune.reports import outputs
from sktune.study.result import SearchResult, stored_result
from sktune.study.storage import undamaged
from sktune.study.study import TuningStudy, sqlite_url


@app.command()
def show(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    runs: arg.Runs = Path("runs"),
    storage: arg.Storage = None,
    why: Annotated[
        bool, typer.Option("--why", help="Also show what it has learned, in tables and a page with pictures.")
    ] = False,
    json: arg.Json = False,
) -> None:
    """Show what a study has found so far."""
    result = stored_result(study, runs, storage)
    console = Terminal(stderr=json)
    console.print(result_table(result))
    learned = _explained(study, result, storage, console) if why else {}
    if json:
        details: dict[str, Any] = {
            "incumbent": result.incumbent(),
            "blamed": result.blamed(),
            "final": result.final_rows(),
        }
        print_event(StudyShown(**result.summary(), **details, **learned))


def _explained(name: str, result: SearchResult, storage: str | None, console: Terminal) -> dict[str, Any]:
    """Show what the study has learned, write it as a page, and return it for JSON."""
    from sktune.learning.threads import one_blas_thread
    from sktune.reports import why_page  # imports plotly
    from sktune.reports.why import explain
    from sktune.samplers.partition import PartitionSampler

    study = TuningStudy.open(name, storage or sqlite_url(real_path(result.folder)), create=False)
    with one_blas_thread(), undamaged(name):
        space = study.space()
        outlook = PartitionSampler(space).outlook(study.trials())
        why = explain(space, study.trials(), result.baseline_ms, outlook) if result.baseline_ms else None
    if why is None:
        raise StudyError(f"study {name!r} has measured nothing yet; run `sktune search` first")
    console.print(why_page.why_tables(why, result.is_simulated))
    page = why_page.write_page(why, result.study, result.is_simulated, result.folder)
    console.print(escape(str(page)), highlight=False)
    return {"why": why.to_dict(), "page": str(page)}


@app.command()
def report(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    runs: arg.Runs = Path("runs"),
    storage: arg.Storage = None,
    json: arg.Json = False,
) -> None:
    """Write a study's report, plan and trials again."""
    result = stored_result(study, runs, storage)
    files = outputs.write(result, result.folder)
    console = Terminal(stderr=json)
    for path in files:
        console.print(escape(str(path)), highlight=False)
    if json:
        print_event(ReportWritten(files=[str(path) for path in files]))


@app.command()
def compare(
    studies: Annotated[list[str], typer.Argument(help="Names of studies of the same target.")],
    html: Annotated[
        Path | None, typer.Option(help="Where to write the picture; by default into RUNS/comparisons.")
    ] = None,
    runs: arg.Runs = Path("runs"),
    storage: arg.Storage = None,
    json: arg.Json = False,
) -> None:
    """Compare studies side by side: the best speedup after 5, 10, 20, ... trials."""
    from sktune.reports import comparison  # imports plotly

    compared = comparison.compare([stored_result(study, runs, storage) for study in dict.fromkeys(studies)])
    picture = comparison.write_picture(compared, html, runs)
    console = Terminal(stderr=json)
    console.print(comparison_table(compared.events(), compared.is_simulated))
    console.print(f"Picture: {escape(str(picture))}", highlight=False)
    if json:
        for event in compared.events():
            print_event(event)
        print_event(CompareFinished(studies=list(dict.fromkeys(studies)), picture=str(picture)))
