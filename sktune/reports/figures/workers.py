"""The workers of a study as a table: which trial each runs, what it has done, and what became of it."""

from markupsafe import Markup

from sktune.core.events.studies import WorkerShown, moment
from sktune.core.printable import shortened
from sktune.reports.figure import Figure, Table
from sktune.reports.markup import element
from sktune.reports.shown import Shown

MAX_NAME, MAX_WHY, MAX_MISHAPS = 60, 200, 3


def workers(shown: Shown) -> Figure | None:
    """Return the table of all workers; None if there was only one."""
    say, found = shown.say, shown.result.workers
    if not found.are_several:
        return None
    are_alive = found.are_alive
    columns = ["die", "host", "state", *(["trial", "since", "until"] if are_alive else []), "trials", "baseline", "why"]
    rows = []
    for worker in found.all:
        names = (shortened(name, MAX_NAME) for name in (worker.worker, worker.host))
        baseline = "" if worker.baseline_ms is None else f"{worker.baseline_ms:.3f}"
        state, lease = say(f"workers.is_{worker.state}"), _lease(shown, worker) if are_alive else ()
        rows.append((*names, _whole(state), *lease, worker.trials, baseline, _mishaps(shown, worker)))
    lead = say("workers.lead", dies=say.counted(len(found.all), "die"), hosts=say.counted(found.hosts, "host"))
    if are_alive:
        lead += " " + say("workers.now", running=found.running, queued=found.queued)
    numeric = frozenset(columns.index(name) for name in ("trials", "baseline"))
    table = Table(tuple(say(f"workers.{name}") for name in columns), rows, numeric=numeric)
    return Figure(say("workers.title"), lead, table=table, is_open=True)


def _lease(shown: Shown, worker: WorkerShown) -> tuple[object, ...]:
    """Return which trial a worker runs, since when, and when its lease expires."""
    if worker.trial is None:
        return "", "", ""
    attempt = "" if worker.attempt == 1 else shown.say("workers.attempt", number=worker.attempt)
    times = (f"{moment(at):%H:%M:%S}" if at else "" for at in (worker.since, worker.until))
    return f"{worker.trial}{attempt}", *map(_whole, times)


def _whole(text: str) -> Markup:
    """Return a short text that is not broken into lines."""
    return element("span", text, class_="whole")


def _mishaps(shown: Shown, worker: WorkerShown) -> str:
    latest = worker.mishaps[-MAX_MISHAPS:]
    texts = [
        f"{moment(each.at):%Y-%m-%d %H:%M} {shown.say(f'workers.is_{each.fate}')}: {shortened(each.why, MAX_WHY)}"
        for each in latest
    ]
    if earlier := len(worker.mishaps) - len(latest):
        texts.insert(0, shown.say("workers.earlier", count=earlier))
    return "; ".join(texts)
