"""Commands that read studies: ``show``, ``report`` and ``compare``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from sktune.cli import options as arg
from sktune.cli.app import app
from sktune.cli.terminal import Terminal
from sktune.cli.views.search import comparison_table, result_table, studies_table
from sktune.cli.views.workers import worker_lines
from sktune.core.codec import encoded
from sktune.core.errors import BadInputError, SktuneError, StudyError
from sktune.core.events.lines import print_event
from sktune.core.events.studies import CompareFinished, ReportWritten, StudiesListed, StudyRow, StudyShown, WhyShown
from sktune.core.files import real_path
from sktune.reports import outputs, shapes
from sktune.reports.shapes import answer_lines, finished_event
from sktune.reports.study import verdict_line
from sktune.study.result import SearchResult, stored_result
from sktune.study.shapes import ShapesResult, by_shape, stored_shapes
from sktune.study.stored_space import space_of
from sktune.study.study import TuningStudy, sqlite_url

if TYPE_CHECKING:
    from sktune.profiling.analysis import Profile


@app.command()
def show(
    study: Annotated[str | None, typer.Argument(help="Name of the study; by default all are listed.")] = None,
    runs: arg.Runs = Path("runs"),
    storage: arg.Storage = None,
    why: Annotated[
        bool, typer.Option("--why", help="Also show what it has learned; report.html has pictures.")
    ] = False,
    json: arg.Json = False,
) -> None:
    """Show what a study has found so far."""
    if study is None:
        if why:
            raise BadInputError("--why explains one study; name it")
        studies(runs, storage, json)
        return
    console = Terminal(stderr=json)
    if answer := stored_shapes(study, runs, storage):
        from sktune.cli.views.shapes import shapes_view

        if why:
            raise BadInputError(f"--why explains the study of one shape: {_names(answer)}")
        console.print(shapes_view(answer))
        if json:
            print_event(finished_event(answer))
        return
    result = stored_result(study, runs, storage)
    console.print(result_table(result))
    for line in worker_lines(result.workers):
        console.print(escape(line), highlight=False, soft_wrap=True)
    learned = _explained(result, console) if why else {}
    if json:
        details: dict[str, Any] = {
            "incumbent": result.incumbent(),
            "blamed": result.blamed(),
            "final": result.final_rows(),
            "workers": result.workers.all or None,
        }
        print_event(result.told_as(StudyShown, **details, **learned))


@app.command()
def studies(runs: arg.Runs = Path("runs"), storage: arg.Storage = None, json: arg.Json = False) -> None:
    """List the studies with their verdicts, newest first."""
    from sktune.server.shelf import Shelf

    shelf = Shelf(runs, storage)
    rows: list[StudyRow] = []
    for name in shelf.names():
        try:
            answer = shelf.answer(name)
            rows.append(_row_of_shapes(answer) if answer else _row(shelf.result(name)))
        except SktuneError as failure:
            rows.append(StudyRow(name, trials=0, speedup=None, verdict=str(failure), changed=None))
    rows.sort(key=lambda row: row.changed or "", reverse=True)
    console = Terminal(stderr=json)
    if rows:
        console.print(studies_table(rows))
    else:
        console.print(escape(f"no studies in {storage or runs}; `sktune search` makes one"), soft_wrap=True)
    if json:
        print_event(StudiesListed(studies=rows))


def _row(result: SearchResult) -> StudyRow:
    incumbent = result.incumbent()
    ended = [record.ended for record in result.trials if record.ended]
    return StudyRow(
        study=result.study,
        trials=len(result.trials),
        speedup=result.speedup or (incumbent.speedup if incumbent else None),
        verdict=verdict_line(result),
        changed=f"{max(ended):%Y-%m-%d %H:%M:%S}" if ended else None,
    )


def _row_of_shapes(answer: ShapesResult) -> StudyRow:
    rows = [_row(result) for result in answer.results]
    changed = max((row.changed for row in rows if row.changed), default=None)
    return StudyRow(answer.study, sum(row.trials for row in rows), None, answer_lines(answer)[0], changed)


def _explained(result: SearchResult, console: Terminal) -> dict[str, Any]:
    """Show what the study has learned, write the page with it again, and return it for JSON."""
    from sktune.cli.views.why import why_tables
    from sktune.learning.threads import one_blas_thread
    from sktune.reports.why import learned_from
    from sktune.samplers.partition import PartitionSampler

    space = space_of(result.facts, result.history)
    with one_blas_thread():
        outlook = PartitionSampler(space).outlook(result.history) if space else None
        why = learned_from(result, outlook)
    if why is None:
        raise StudyError(f"study {result.study!r} has measured nothing yet; run `sktune search` first")
    console.print(why_tables(why, result.is_simulated))
    outputs.write(result, result.folder)
    page = result.folder / outputs.PAGE
    console.print(escape(str(page)), highlight=False)
    return {"why": encoded(why, WhyShown), "page": str(page)}


@app.command()
def report(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    runs: arg.Runs = Path("runs"),
    storage: arg.Storage = None,
    language: arg.Language = "en",
    trace: Annotated[
        bool, typer.Option("--trace", help="Also write trace.json: where the time went, for ui.perfetto.dev.")
    ] = False,
    profile: Annotated[Path | None, typer.Option(help="A profile of the baseline, to show its step.")] = None,
    profile_after: Annotated[Path | None, typer.Option(help="A profile of the winner, to show its step.")] = None,
    json: arg.Json = False,
) -> None:
    """Write a study's page, report, plan and trials again."""
    profiles = _profiles(profile, profile_after)
    if answer := stored_shapes(study, runs, storage):
        if profiles or trace:
            raise BadInputError(f"profiles and --trace are of the study of one shape: {_names(answer)}")
        _written(shapes.write(answer, arg.chosen_language(language)), json=json)
        return
    result = stored_result(study, runs, storage)
    from sktune.reports import dashboard  # with the figures

    files = outputs.write(result, result.folder, arg.chosen_language(language), profiles, trace=trace)
    if dashboard.is_installed():
        stored = TuningStudy.open(study, storage or sqlite_url(real_path(result.folder)), create=False)
        dashboard.publish(stored.optuna_study, result)
    _written(files, json=json)


def _written(files: Sequence[Path], *, json: bool) -> None:
    console = Terminal(stderr=json)
    for path in files:
        console.print(escape(str(path)), highlight=False)
    if json:
        print_event(ReportWritten(files=[str(path) for path in files]))


def _names(answer: ShapesResult) -> str:
    return ", ".join(result.study for result in answer.results)


def _profiles(before: Path | None, after: Path | None) -> "tuple[Profile, ...]":
    if after and not before:
        raise BadInputError("--profile-after shows what changed; give the baseline's with --profile, too")
    if not before:
        return ()
    from sktune.profiling.analysis import analyse
    from sktune.profiling.readers.reading import read_profile

    return tuple(analyse(read_profile(path)) for path in (before, after) if path)


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
    """Compare studies side by side, at each shape that they share: the best speedup after 5, 10, 20, ... trials."""
    from sktune.reports import comparison  # imports plotly

    names = list(dict.fromkeys(studies))
    answers = [answer for name in names if (answer := stored_shapes(name, runs, storage))]
    if answers and len(answers) < len(names):
        one, shapes_of = answers[0], [answer.study for answer in answers]
        for name in names:
            if name not in shapes_of:
                stored_result(name, runs, storage)  # which says so if there is none
        raise BadInputError(f"{one.study} is of several shapes, others are not; compare those of one: {_names(one)}")
    groups = by_shape(answers) if answers else [[stored_result(name, runs, storage) for name in names]]
    compared = [comparison.compare(results) for results in groups]
    picture = comparison.write_picture(compared, names, html, runs)
    console = Terminal(stderr=json)
    for each in compared:
        console.print(comparison_table(each.events(), each.is_simulated))
    console.print(f"Picture: {escape(str(picture))}", highlight=False)
    if json:
        for event in (event for each in compared for event in each.events()):
            print_event(event)
        print_event(CompareFinished(studies=names, picture=str(picture)))
