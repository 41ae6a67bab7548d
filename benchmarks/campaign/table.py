"""The table of a campaign, as Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from benchmarks.campaign.campaign import Verdict

INTRODUCTION = """# A campaign of faults

Each fault disturbs one search; then the same command is run again. What must hold after that is in
`benchmarks/campaign/invariants.py`: every trial that was reported or stored is there and unchanged, none is run twice,
the winner is the best, the trials are those of an undisturbed search (simulated figures), no process, lock, claim or
temporary file is left, and every message is one line with a way out. A fault that could not be injected, because the
search had ended or the machine does not allow it, is counted as such.

"""


def table(verdicts: Sequence[Verdict], heading: Mapping[str, str]) -> str:
    """Return the page: one row for each kind of fault and what it hit."""
    lines = [INTRODUCTION, *(f"* {name}: `{value}`\n" for name, value in heading.items())]
    lines.append(f"* seconds for a fault, both searches: {mean(each.seconds for each in verdicts):.1f} on average\n\n")
    lines.append("| fault | of | search | faults | held | failed | not injected | how |\n")
    lines.append("| --- | --- | --- | ---: | ---: | ---: | ---: | --- |\n")
    groups: dict[tuple[str, str, str], list[Verdict]] = {}
    for verdict in verdicts:
        fault = verdict.fault
        groups.setdefault((fault.kind, fault.whom, fault.subject), []).append(verdict)
    for (kind, whom, subject), group in sorted(groups.items()):
        ways = sorted({verdict.way for verdict in group if verdict.way})
        lines.append(f"| {kind} | {whom} | {subject} | {_counts(group)} | {'; '.join(ways)} |\n")
    lines.append(f"| **all** | | | {_counts(verdicts)} | |\n")
    failed = sorted((verdict for verdict in verdicts if verdict.violations), key=lambda verdict: verdict.index)
    if failed:
        lines.append("\n## What did not hold\n\n")
    for verdict in failed:
        fault = verdict.fault
        lines.append(f"* fault {verdict.index}, {fault.kind} of {fault.whom}, {fault.subject}: ")
        lines.append("; ".join(violation.replace("`", "'") for violation in verdict.violations) + "\n")
    return "".join(lines)


def _counts(verdicts: Iterable[Verdict]) -> str:
    states = [_state(verdict) for verdict in verdicts]
    return " | ".join(str(count) for count in (len(states), *map(states.count, ("held", "failed", "not injected"))))


def _state(verdict: Verdict) -> str:
    if verdict.violations:
        return "failed"
    return "held" if verdict.way else "not injected"
