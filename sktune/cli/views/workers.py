"""The workers of a study as lines of text: one for each die."""

from collections.abc import Sequence

from sktune.core.events.studies import WorkerShown, moment
from sktune.core.printable import counted
from sktune.study.workers import Workers


def worker_lines(workers: Workers) -> Sequence[str]:
    """Return a line for each die, and how many trials run; nothing if there was only one."""
    if not workers.are_several:
        return ()
    lines = [_line(workers, worker) for worker in workers.all]
    if workers.are_alive:
        runs = f"{counted(workers.running, 'trial')} run{'s' if workers.running == 1 else ''} now"
        lines.append(f"{runs}, {workers.queued} to be run again")
    return lines


def _line(workers: Workers, worker: WorkerShown) -> str:
    parts = [counted(worker.trials, "trial")]
    parts += [] if worker.baseline_ms is None else [f"baseline {worker.baseline_ms:.3f} ms"]
    parts += [f"runs trial {worker.trial} since {moment(worker.since):%H:%M:%S}"] if worker.since is not None else []
    parts += [f"{each.fate} {moment(each.at):%Y-%m-%d %H:%M} ({each.why})" for each in worker.mishaps]
    return f"{workers.name(worker)}: {', '.join(parts)}"
