"""What people see while a search runs: a live view on a terminal, plain lines elsewhere."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sktune.report import final_rows, verdict_line
from sktune.result import BEST_PLAN, SearchResult

Event = dict[str, Any]
LAST_TRIALS = 8


def describe_trial(event: Event) -> str:
    """Return a finished trial in one line."""
    took = sum(event["seconds"].values())
    head = f"trial {event['trial']:>3}  {event['scopes']:>3} scopes  {took:5.1f} s  "
    if event["state"] == "complete":
        doubt = "simulated" if event["simulated"] else "[{:.3f}, {:.3f}]".format(*event["ci95"])
        return f"{head}{event['latency_ms']:.3f} ms, {event['speedup']:.3f}x {doubt}  {event['origin']}"
    seen = " (known)" if event["known"] else ""
    return f"{head}pruned: {event['reason']}{seen}, {event['detail'][:150]}  {event['origin']}"


def describe_final(event: Event) -> str:
    """Return what is compared at the end, in one line."""
    others = "" if event["simulated"] else " and what there is without sktune, in turn"
    return f"final comparison: the best plans, the baseline{others}"


class PlainView:
    """One line for each thing that happens."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._best = 1.0

    def __call__(self, event: Event) -> None:
        """Show one event."""
        kind = event["event"]
        if kind == "search_started":
            self._write(
                f"study {event['study']} in {event['folder']}: {event['done']} of {event['trials']} trials done"
            )
        elif kind == "target_ready":
            self._write(f"{event['description']}  ({event['space_size']:,} plans)")
        elif kind == "trial_finished":
            mark = ""
            if event["state"] == "complete" and event["speedup"] > self._best:
                self._best, mark = event["speedup"], "  <- best"
            self._write(describe_trial(event) + mark)
        elif kind == "space_exhausted":
            self._write(f"all {event['plans']} plans of the space were tried")
        elif kind == "final_started":
            self._write(describe_final(event))


class LiveView:
    """Progress, the incumbent and the last trials, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._lines: deque[str] = deque(maxlen=LAST_TRIALS)
        self._title, self._status, self._best = "", "loading the model", ""
        self._done, self._total, self._best_ratio = 0, 1, 1.0
        self._began = time.monotonic()
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        kind = event["event"]
        if kind == "search_started":
            self._total, self._done = event["trials"], event["done"]
        elif kind == "target_ready":
            self._title = f"{event['description']}  ({event['space_size']:,} plans)"
        elif kind == "trial_started":
            self._status = f"trial {event['trial']}: {event['origin']}, {event['scopes']} scopes"
        elif kind == "trial_stage":
            self._status = self._status.partition(" -")[0] + f" - {event['stage']}"
        elif kind == "trial_finished":
            self._done += 1
            self._lines.append(describe_trial(event))
            if event["state"] == "complete" and event["speedup"] > self._best_ratio:
                self._best_ratio, self._best = event["speedup"], describe_trial(event)
        elif kind == "final_started":
            self._status = describe_final(event)

    def _render(self) -> RenderableType:
        spent = time.monotonic() - self._began
        width = 30
        filled = int(width * min(1.0, self._done / self._total))
        bar = "━" * filled + "─" * (width - filled)
        grid = Table.grid(padding=(0, 1))
        for line in self._lines:
            grid.add_row(Text(line, overflow="ellipsis", no_wrap=True))
        return Group(
            Text(self._title, style="bold"),
            Text(f"{bar} {self._done}/{self._total} trials  {spent:.0f} s  {self._status}"),
            Text(f"best: {self._best or 'none yet'}", style="green" if self._best else ""),
            grid,
        )


def result_table(result: SearchResult) -> RenderableType:
    """Return the final comparison and the verdict for a terminal."""
    table = Table(title=escape(result.facts.get("description", result.study)), title_justify="left")
    for heading in ("", "ms per step", "speedup", "95% interval", "bits"):
        table.add_column(heading, justify="right" if heading in ("ms per step", "speedup") else "left")
    for row in final_rows(result):
        table.add_row(*(escape(cell) for cell in row), style="green" if "(winner)" in row[0] else None)
    summary = result.summary()
    pruned = ", ".join(f"{count} {reason}" for reason, count in summary["pruned"].items() if count) or "none"
    lines = [
        f"{summary['trials']} trials: {summary['complete']} complete; pruned: {pruned}",
        verdict_line(result),
    ]
    if result.verdict and result.verdict.ties:
        ties = ", ".join(str(tie.number) for tie in result.verdict.ties)
        lines.append(f"Cannot be told apart from it, and are not simpler: trials {ties}")
    files = [name for name in ("report.md", "trials.csv", BEST_PLAN) if (result.folder / name).exists()]
    lines.append(f"Files in {result.folder}: {', '.join(files) or 'none yet; `sktune report` writes them'}")
    return Group(*([table] if result.final else []), *(Text(line) for line in lines))
