"""Reports of studies of several shapes: the table of shapes, ``report.md`` and the plan file with a plan for each."""

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sktune.core.errors import StudyError
from sktune.core.events.search import ShapesFinished
from sktune.core.events.values import ShapeRow
from sktune.core.files import write_text
from sktune.core.language import Language, Sentences
from sktune.core.plan import Plan
from sktune.core.plan_file import ARTIFACTS, artifacts_of, plan_values, write_plan
from sktune.core.printable import counted, one_line
from sktune.core.shapes import StepShape
from sktune.reports.figure import Table
from sktune.reports.markup import element, joined
from sktune.reports.plan_names import ENGLISH, distinct_names
from sktune.reports.plan_output import layers_of, scope_flavour
from sktune.reports.study import UNKNOWN_GAIN
from sktune.reports.texts import TEXTS
from sktune.study.facts import DeliveryRecord
from sktune.study.result import BEST_PLAN, SearchResult
from sktune.study.shapes import MAX_PLANS, ShapesResult

REPORT, PAGE = "report.md", "report.html"
NUMERIC = frozenset({1, 2, 3, 7})


def rows_of(answer: ShapesResult) -> list[ShapeRow]:
    """Return a row for each shape."""
    plans = [each.plan for each in answer.plans]
    rows = []
    for number, (shape, result) in enumerate(zip(answer.shapes, answer.results, strict=True)):
        chosen = answer.plan_at(number)
        baseline_ms = answer.latencies_ms[Plan()][number]
        rows.append(
            ShapeRow(
                shape=shape.name,
                study=result.study,
                trials=len(result.trials),
                baseline_ms=baseline_ms,
                best_ms=answer.best_ms[number],
                speedup=baseline_ms / answer.best_ms[number],
                ci95=None if shape in answer.unverified else result.ci95,
                single_ms=answer.latencies_ms[answer.single][number],
                single_regret=answer.regrets(answer.single)[number],
                plan=plans.index(chosen),
                plan_ms=answer.latencies_ms[chosen][number],
                plan_regret=answer.regrets(chosen)[number],
                gain_left=result.gain_left,
            )
        )
    return rows


def letter(number: int) -> str:
    """Return the name of one of the fewest plans in a table: A, B, C, and numbers after Z."""
    return chr(ord("A") + number) if number < 26 else str(number + 1)


def names_of(answer: ShapesResult, say: Sentences = ENGLISH) -> dict[Plan, str]:
    """Return what the single plan and the fewest plans are called."""
    plans = list(dict.fromkeys([answer.single, *(each.plan for each in answer.plans)]))
    named = [plan for plan in plans if not plan.is_baseline]
    names = dict(zip(named, map(one_line, distinct_names(named, answer.results[0].facts.layout, say)), strict=True))
    return {plan: names.get(plan, say("shape.none")) for plan in plans}


def shapes_table(answer: ShapesResult, say: Sentences = ENGLISH) -> Table:
    """Return the table of shapes."""
    unit = say("ms")
    cells = []
    for row in rows_of(answer):
        interval = "-" if answer.is_simulated else ""
        if row.ci95:
            interval = say("shapes.interval", low=f"{row.ci95[0]:.3f}", high=f"{row.ci95[1]:.3f}")
        single = f"{row.single_ms:.3f} ({row.single_regret:+.1%})"
        chosen = f"{letter(row.plan)} {row.plan_ms:.3f} ({row.plan_regret:+.1%})"
        figures = f"{row.baseline_ms:.3f}", f"{row.best_ms:.3f}", f"{row.speedup:.3f}"
        cells.append((row.shape, *figures, interval, single, chosen, str(row.trials)))
    columns = (
        say("shapes.shape"), say("shapes.baseline", unit=unit), say("shapes.best", unit=unit), say("speedup"),
        say("interval"), say("shapes.single", unit=unit), say("shapes.fewest", unit=unit), say("trials"),
    )  # fmt: skip
    return Table(columns, cells, numeric=NUMERIC)


def answer_lines(answer: ShapesResult, say: Sentences = ENGLISH) -> list[str]:
    """Return the answer in sentences."""
    if not answer.is_finished:
        done = ", ".join(
            say("shapes.done", shape=shape.name, trials=say.counted(len(result.trials), "trial"))
            for shape, result in zip(answer.shapes, answer.results, strict=True)
        )
        return [say("shapes.unfinished", done=done)]
    names = names_of(answer, say)
    exceptions = {
        "shapes.failed": answer.without_plan,
        "shapes.untried": answer.untried,
        "shapes.unverified": answer.unverified,
    }
    shares = ", ".join(
        say("shapes.share", shape=shape.name, share=_share_left(result, say))
        for shape, result in zip(answer.shapes, answer.results, strict=True)
    )
    kept = [
        *(say(key, shapes=", ".join(shape.name for shape in shapes)) for key, shapes in exceptions.items() if shapes),
        say("shapes.left", shares=shares),
        say("shapes.simulated" if answer.is_simulated else "shapes.bits"),
    ]
    if len(answer.shapes) == 1:
        return [say("shapes.only", shape=answer.shapes[0].name, plan=names[answer.single]), *kept]
    single, regrets = answer.single, answer.regrets(answer.single)
    worst = max(range(len(regrets)), key=lambda number: regrets[number])
    lines = [
        say(
            "shapes.best_single",
            shapes=say.counted(len(regrets), "shape"),
            objective=say(f"shapes.{answer.record.objective}"),
            plan=names[single],
            most=f"{max(0.0, regrets[worst]):.1%}",
            at=answer.shapes[worst].name,
        )
    ]
    allowed = f"{100 * answer.record.regret:g}%"
    if len(answer.plans) == 1:
        lines.append(say("shapes.one_plan", regret=allowed, plan=names[answer.plans[0].plan]))
    else:
        # Beyond a limit, not every set is looked at.
        count = len([each for each in answer.plans if not each.plan.is_baseline])
        key = "shapes.most_plans" if count > MAX_PLANS else "shapes.some_plans"
        lines.append(say(key, regret=allowed, plans=say.counted(count, "answer_plan")))
        for number, each in enumerate(answer.plans):
            at = ", ".join(answer.shapes[shape].name for shape in each.shapes)
            lines.append(say("shapes.plan_at", letter=letter(number), plan=names[each.plan], shapes=at))
    return [*lines, *kept]


def _share_left(result: SearchResult, say: Sentences) -> str:
    left = math.inf if result.gain_left is None else result.gain_left
    return say("shapes.unknown") if left > UNKNOWN_GAIN else f"{left:.1%}"


def finished_event(answer: ShapesResult) -> ShapesFinished:
    """Return the event that tells the answer."""
    has_plan = (answer.folder / BEST_PLAN).exists()
    return ShapesFinished(
        study=answer.study,
        trials=sum(len(result.trials) for result in answer.results),
        finished=answer.is_finished,
        objective=answer.record.objective,
        regret=answer.record.regret,
        shapes=rows_of(answer) if answer.is_finished else (),
        plans=len(answer.plans) if answer.is_finished else 0,
        bit_identical=True if answer.is_finished and not answer.is_simulated else None,
        simulated=answer.is_simulated,
        plan=str(answer.folder / BEST_PLAN) if has_plan else None,
    )


def report_markdown(answer: ShapesResult) -> str:
    """Return the text of ``report.md``."""
    studies = [
        f"* {shape.name}: study `{one_line(result.study)}`, its report in `{result.folder.name}/`"
        for shape, result in zip(answer.shapes, answer.results, strict=True)
    ]
    return "\n".join(
        [
            f"# {one_line(answer.study)}: {counted(len(answer.shapes), 'shape')}",
            "",
            *[f"{line}\n" for line in answer_lines(answer)],
            *([shapes_table(answer).markdown(), "", ENGLISH("shapes.loss"), ""] if answer.is_finished else []),
            "## Studies of the shapes",
            "",
            *studies,
            "",
        ]
    )


def page_html(
    answer: ShapesResult,
    language: Language = "en",
    address: Callable[[SearchResult], str] | None = None,
    *,
    refresh_s: int | None = None,
) -> str:
    """Return the page: the answer, and the table, in which each shape leads to the page of its study.

    Args:
        answer: of the study.
        language: of the page.
        address: returns that of a shape's page; by default of its file, from the folder of the answer.
        refresh_s: seconds after which a browser loads the page again; None for one that stays as it is.
    """
    from sktune.reports.page.page import filled  # with the figures; who only shows a study does not wait for it

    address = address or (lambda result: f"../{quote(result.folder.name)}/report.html")
    say = Sentences(TEXTS, language)
    parts: list[object] = [element("p", line) for line in answer_lines(answer, say)]
    links = [
        element("a", shape.name, href=address(result))
        for shape, result in zip(answer.shapes, answer.results, strict=True)
    ]
    if answer.is_finished:
        table = shapes_table(answer, say)
        rows = [(link, *row[1:]) for link, row in zip(links, table.rows, strict=True)]
        parts += [replace(table, rows=rows).html(), element("p", say("shapes.loss"))]
    else:
        parts += [element("p", link) for link in links]
    return filled("index.html", say, title=answer.study, studies=joined(parts), refresh_s=refresh_s)


def shapes_yaml(answer: ShapesResult) -> str | None:
    """Return the plan file of all shapes; None if the baseline is the answer everywhere, or there is none yet."""
    if not answer.is_finished:
        return None
    if answer.single.is_baseline and all(each.plan.is_baseline for each in answer.plans):
        return None
    first = answer.results[0]
    entries = [_entry(answer, number, shape) for number, shape in enumerate(answer.shapes)]
    return write_plan(
        answer.single,
        {
            "study": answer.study,
            "shapes": [shape.name for shape in answer.shapes],
            "objective": answer.record.objective,
            "regrets": [round(regret, 4) for regret in answer.regrets(answer.single)],
            "bit_identical": None if answer.is_simulated else True,
            "verified": "; ".join(dict.fromkeys(_verified(answer, at, answer.single) for at in range(len(entries)))),
            "fingerprint": {**first.facts.fingerprint, **first.facts.versions},
        },
        scope_flavour(first),
        layers_of(first.facts.layout) if first.facts.layout else 0,
        first.facts.decode and {name: value for name, value in first.facts.decode.items() if name != "signature"},
        target=None if first.is_simulated else first.facts.target,
        shapes=entries,
    )


def _entry(answer: ShapesResult, number: int, shape: StepShape) -> dict[str, Any]:
    result, plan = answer.results[number], answer.plan_at(number)
    stored = _delivery(answer, number, plan)
    latency_ms, baseline_ms = answer.latencies_ms[plan][number], answer.latencies_ms[Plan()][number]
    values = plan_values(
        plan,
        {
            "study": result.study,
            "trial": answer.trial_of(number, plan),
            "baseline_ms": round(baseline_ms, 4),
            "latency_ms": round(latency_ms, 4),
            "speedup": round(baseline_ms / latency_ms, 4),
            "regret": round(answer.regrets(plan)[number], 4),
            "bit_identical": True if result.is_verified else None,
            "verified": _verified(answer, number, plan),
            "fingerprint": {**result.facts.fingerprint, **result.facts.versions},
        },
        _decode(result),
        target=None if result.is_simulated else result.facts.target,
        delivery=stored.delivery if stored else None,
        folder=artifacts_of(shape.suffix),
    )
    of_shape: dict[str, Any] = {"recipe": shape.name} if shape.recipe else dict(shape.sizes)
    calls = {"calls": dict(result.facts.calls)} if result.facts.calls and not shape.recipe else {}
    return of_shape | {"plan": values.pop("plan")} | calls | values


def _verified(answer: ShapesResult, number: int, plan: Plan) -> str:
    """Return how far the bits of a shape's plan were compared there."""
    result, trial = answer.results[number], answer.trial_of(number, plan)
    if not result.is_verified:
        return "not done: the figures are simulated"
    if trial is None:
        return "it is the baseline"
    known = result.facts.verifications.get(str(trial))
    return known.summary.text if known else result.facts.verified or "only the trial's short replays"


def _decode(result: SearchResult) -> dict[str, str] | None:
    """Return the decode step of a program, with the signature of its calls also where it is the only one."""
    if result.facts.decode is None:
        return None
    return {**result.facts.decode, "signature": result.facts.calls.get(result.facts.decode["function"], "")}


def _delivery(answer: ShapesResult, number: int, plan: Plan) -> DeliveryRecord | None:
    facts, trial = answer.results[number].facts, answer.trial_of(number, plan)
    stored = [facts.delivery, *facts.deliveries]
    return next((each for each in stored if each and each.delivery and each.trial == trial), None)


def write(answer: ShapesResult, language: Language = "en") -> list[Path]:
    """Write the report and the plan file, with the compiled code of each shape's plan, and return their paths.

    Raises:
        StudyError: the folder cannot be written, or a shape's compiled code is missing.
    """
    text, folder = shapes_yaml(answer), answer.folder
    code = {}
    for number, shape in enumerate(answer.shapes if text else ()):
        if stored := _delivery(answer, number, answer.plan_at(number)):
            result = answer.results[number]
            source = result.folder / (ARTIFACTS if stored == result.facts.delivery else artifacts_of(stored.trial))
            if not source.is_dir():
                raise StudyError(f"{source}, the code for {shape.name}, is missing; restore it, or search again")
            code[folder / artifacts_of(shape.suffix)] = source
    try:
        for to, source in code.items():
            new = to.with_name(f".{to.name}")
            shutil.rmtree(new, ignore_errors=True)
            shutil.copytree(source, new)
            shutil.rmtree(to, ignore_errors=True)
            new.rename(to)
        write_text(folder / REPORT, report_markdown(answer))
        write_text(folder / PAGE, page_html(answer, language))
        if text is not None:
            write_text(folder / BEST_PLAN, text)
        elif answer.is_finished:  # before that, an earlier answer stays
            (folder / BEST_PLAN).unlink(missing_ok=True)
    except OSError as failure:
        raise StudyError(
            f"{folder} cannot be written ({failure.strerror}); fix that and run the same command again"
        ) from failure
    return [folder / PAGE, folder / REPORT, *([folder / BEST_PLAN] if text is not None else [])]
