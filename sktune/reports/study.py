"""``report.md``: a study's report, written from its record and without a device."""

from math import expm1, log

from markupsafe import Markup

from sktune.core.events.studies import moment
from sktune.core.layout import Layout
from sktune.core.outcome import FinalRow, Speedup, excludes_any
from sktune.core.plan import Plan
from sktune.core.printable import counted, one_line
from sktune.measure.die_spread import die_spread
from sktune.measure.noise_floor import drift
from sktune.measure.verdict import FinalPlan
from sktune.reports.application import how_to_apply
from sktune.reports.figure import Table, table_cell
from sktune.reports.plan_names import ENGLISH, REFERENCES, distinct_names, plan_name
from sktune.reports.plan_output import verified_line
from sktune.study.result import SearchResult
from sktune.study.workers import Workers

UNKNOWN_GAIN = 0.5
"""A bound on what is left to gain, as a share of the baseline step, that says nothing."""


def model_line(result: SearchResult) -> str:
    """Return how the baseline differs from the uncompiled model; empty if it does not."""
    if not result.model_difference:
        return ""
    return (
        "The baseline itself is not bit-identical to the uncompiled model "
        f"({one_line(result.model_difference)}): plans are compared with the compiled model."
    )


def verdict_line(result: SearchResult) -> str:
    """Return the answer in one line."""
    winner = result.winner
    if result.verdict is None:
        return "The search has not reached its final comparison; run the same command again."
    if result.has_failed:
        counts = ", ".join(f"{count} {reason}" for reason, count in result.pruned().items() if count)
        first = next(one_line(record.outcome.detail) for record in result.trials if record.outcome)
        return f"Nothing could be tried: no plan could be measured ({counts}). The first: {first}"
    if winner is None and _has_averages_alone(result):
        if result.facts.command is None:
            return (
                "No verdict: there were too few rounds for an interval, because the time budget ended or the machine "
                "was too busy. Run the same command again."
            )
        return (
            "No verdict: a single average for each plan has no interval. Have the program log a line for each decode "
            "step, or set `latency: steps` in the recipe; until then leave the model unchanged."
        )
    if winner is None:
        no_gain = "no plan is significantly faster than the baseline"
        again = "" if result.is_compared else " The time budget ended too early; run the same command again."
        return f"No scope: {no_gain}. Leave the model unchanged.{again}"
    name = one_line(plan_name(winner.plan, result.facts.layout))
    ratio = f'"{name}" (trial {winner.number}) is {winner.speedup.ratio:.3f} times as fast as the baseline'
    if winner.speedup.ci95 is None:
        return f"The plan {ratio}, simulated; verification was not done.{_doubt(result)}"
    low, high = winner.speedup.ci95
    return (
        f"The plan {ratio} (95% interval {low:.3f} to {high:.3f}); its bits: {verified_line(result)}.{_doubt(result)}"
    )


def _has_averages_alone(result: SearchResult) -> bool:
    """Whether plans were measured, and none of their figures has an interval."""
    figures = (
        [row.speedup for row in result.final if row.name.isdigit()]
        if result.final
        else [record.outcome.speedup for record in result.trials if record.outcome and record.outcome.is_complete]
    )
    measured = [figure for figure in figures if figure]
    return bool(measured) and not any(map(_has_interval, measured))


def _has_interval(speedup: Speedup) -> bool:
    return excludes_any(speedup.ratio, speedup.bounds)


def _doubt(result: SearchResult) -> str:
    if result.is_compared:
        return ""
    return (
        " There was no time for a final comparison: this is the trial's figure, and the best of many trials looks "
        "better than it is."
    )


def gain_left_line(result: SearchResult) -> str:
    """Return what further trials could still gain; empty before a search has ended, or if nothing was measured."""
    if result.verdict is None or result.gain_left is None:
        return ""
    if result.gain_left > UNKNOWN_GAIN:
        return "These trials do not tell yet how much is left to gain."
    beyond = "beyond it" if result.winner else "at all"
    return f"With 95% probability no plan of this space saves more than {result.gain_left:.1%} of the step {beyond}."


def earlier_lines(result: SearchResult) -> list[str]:
    """Return for each study that this one learned from how far its findings hold here."""
    if not result.facts.earlier:
        return []
    from sktune.reports.why import learned_from  # few studies need it

    why = learned_from(result)
    return [
        f"Learned from study {one_line(each.study)}, now believed to {each.weight:.0%}: "
        + (
            f"of what the plans measured here save, {each.spread_ms:.3f} ms, it alone misses {each.error_ms:.3f} ms."
            if each.error_ms is not None
            else "nothing was measured here yet."
        )
        for each in (why.earlier if why else ())
    ]


def trials_line(result: SearchResult) -> str:
    """Return how many trials there were, and what became of them."""
    pruned = ", ".join(f"{count} {reason}" for reason, count in result.pruned().items() if count) or "none"
    return f"{counted(len(result.trials), 'trial')}: {result.complete} complete; pruned: {pruned}"


def report_markdown(result: SearchResult) -> str:
    """Return the report."""
    facts = result.facts
    time_spent = f"Time: {facts.seconds:.0f} s, including {facts.final_s:.0f} s for the final comparison."
    parts = [
        f"# {table_cell(result.study)}\n",
        f"{table_cell(facts.description)}\n",
        f"**{table_cell(verdict_line(result))}**\n",
        *([f"{table_cell(model_line(result))}\n"] if result.model_difference else []),
        f"{trials_line(result)}.\n",
        *([f"{left}\n"] if (left := gain_left_line(result)) else []),
        f"Space: {facts.space_size or '?'} plans. {time_spent}\n",
    ]
    parts += [f"{table_cell(line)}\n" for line in earlier_lines(result)]
    if result.final:
        parts += [
            "## Final comparison\n",
            SIMULATED if result.is_simulated else _FINAL_NOTE.format(intervals=_of_processes(result)),
            *([f"{table_cell(dies_line(result))}\n"] if result.dies else []),
            _final_comparison(result),
            _ties(result),
            _doubts(result),
        ]
    if result.winner:
        plan = result.winner.plan
        parts += ["## The plan\n", _plan_table(plan), _fusion(result), how_to_apply(result, plan)]
    parts += ["## Trials\n", _trials_table(result)]
    if result.workers.are_several:
        parts += ["## Workers\n", _workers_table(result.workers)]
    made_with = {**facts.fingerprint, **facts.versions}
    parts += ["## Made with\n", "\n".join(f"- {key}: {table_cell(value)}" for key, value in made_with.items()) + "\n"]
    return "\n".join(part for part in parts if part)


SIMULATED = (
    "All figures are simulated: a model of Atlas A3 computed them (docs/explanation/simulation.md). Its dispatch "
    "gap, heads and barriers are assumptions until `sktune calibrate` fits them to a profile, and gains grow with them."
    " Measure before you rely on them.\n"
)
_FINAL_NOTE = (
    "The best trials were measured again, interleaved, and the fastest of them once more in fresh processes, with "
    "verification in each: quote these figures. By its trial's figure the best of many looks better than it is. "
    "{intervals}\n"
)


def _of_processes(result: SearchResult) -> str:
    """Return how many processes there were, and what the intervals include."""
    count = result.processes
    always = (
        "the variation that is known between processes (docs/explanation/measurement.md), and a correction for "
        "picking the best of several"
    )
    if count >= result.wanted_processes:
        return (
            f"Intervals include the differences between these {count} processes, {always}; those of the last two rows "
            "are from one process."
        )
    processes = "1 process" if count == 1 else f"{count} processes"
    return f"There was time for only {processes}. Intervals include {always}."


def dies_line(result: SearchResult) -> str:
    """Return on which dies the plans were compared, and how much they differ; empty if the search had one worker."""
    dies, comparison = result.dies, result.comparison
    if comparison is None or not dies:
        return ""
    if len(dies) == 1:
        return f"Compared on one die, {dies[0]}: on other dies, ratios may differ by more than the intervals say."
    line = f"Compared on {len(dies)} dies: {', '.join(dies)}"
    if result.winner is None:
        return f"{line}."
    spread = die_spread([log(speedup.ratio) for speedup in result.winner.speedups], result.winner.dies)
    line += f"; the winner's ratio differs by {spread.between_dies:.1%} between dies"
    if spread.between_processes is not None:
        line += f" and by {spread.between_processes:.1%} between processes on one die"
    return f"{line} (standard deviation)."


def interval_text(speedup: Speedup, none: str = "none: too few steps, or a single average") -> str:
    """Return the 95% interval of a figure; ``none`` if it has none."""
    if speedup.ci95 is None:
        return "simulated"
    if not _has_interval(speedup):
        return none
    return f"{speedup.ci95[0]:.3f} to {speedup.ci95[1]:.3f}"


def final_names(result: SearchResult) -> dict[str, str]:
    """Return what the rows of the final comparison are, in words, by their names: plans by their shapes."""
    plans = {str(record.number): record.judged_plan for record in result.trials}
    numbers = [row.name for row in result.final if row.name in plans]
    names = distinct_names([plans[number] for number in numbers], result.facts.layout)
    references = {name: ENGLISH(key) for name, key in REFERENCES.items()}
    return {row.name: row.name for row in result.final} | references | dict(zip(numbers, names, strict=True))


def final_table(result: SearchResult) -> Table:
    """Return latency, speedup, interval and bits of each row of the final comparison."""
    names = final_names(result)
    rows = [_final_row(result, row, names[row.name]) for row in result.final]
    return Table(("", "ms per step", "speedup", "95% interval", "bits"), rows, numeric=frozenset({1, 2}))


def _final_row(result: SearchResult, row: FinalRow, name: str) -> tuple[str, str, str, str, str]:
    if row.name.isdigit():
        is_winner = result.winner is not None and row.name == str(result.winner.number)
        name = f"{name} (trial {row.name}{', winner' if is_winner else ''})"
    bits = "differ" if row.speedup and row.bit_identical is False else row.verdict
    if row.bit_identical and row.name.isdigit() and (verification := result.verification_of(int(row.name))):
        bits = f"identical on {verification.steps:,} steps"
    if (speedup := result.final_speedup(row)) is None:
        return name, "-", "-", "-", bits
    interval = "-" if row.name == "baseline" else interval_text(speedup)
    return name, f"{speedup.latency_ms:.3f}", f"{speedup.ratio:.3f}", interval, bits


def _final_comparison(result: SearchResult) -> str:
    """Return the table, and what is known of rows whose bits differ."""
    table = final_table(result)
    notes = (
        f"\n{table_cell(str(name))}: {table_cell(row.verdict)}.\n"
        for (name, *_), row in zip(table.rows, result.final, strict=True)
        if row.bit_identical is False and row.speedup
    )
    return f"{table.markdown()}\n{''.join(notes)}"


def _ties(result: SearchResult) -> str:
    if not result.verdict or not result.verdict.ties:
        return ""
    ties = ", ".join(_tie(tie, result.facts.layout) for tie in result.verdict.ties)
    return f"Not significantly slower than the winner, but not simpler: {ties}.\n"


def _doubts(result: SearchResult) -> str:
    """Return the corrections to the figures, and what disturbed them."""
    comparison = result.comparison
    if comparison is None or result.is_simulated:
        return ""
    samples = result.facts.floor_looks
    noise_floor = f"{comparison.noise_floor:.2%}"
    lines = [
        f"Noise floor: two copies of the baseline differed by up to {noise_floor}; smaller gains are not reported."
    ]
    if result.repeatability is not None:
        lines.append(
            f"As far as this search saw processes and the machine vary, another one would give the winner's speedup "
            f"within {result.repeatability:.1%} of this one (95%)."
        )
    if len(samples) > 1:
        lines.append(f"The baseline's latency changed by {drift(samples):+.1%} between its first and last measurement.")
    if result.verdict and result.verdict.selection_bias > 0:
        lost = -expm1(-result.verdict.selection_bias)
        lines.append(f"The winner's figures are lowered by {lost:.2%}, to correct for picking the best of several.")
    disturbed = [record for record in result.trials if record.outcome and record.outcome.noise]
    if disturbed:
        lines.append(f"Other load disturbed {len(disturbed)} of {len(result.trials)} trials (see trials.csv).")
    lines += [f"Process {number}: {table_cell(noise)}." for number, noise in enumerate(comparison.noise, 1) if noise]
    return " ".join(lines) + "\n"


def _tie(tie: FinalPlan, layout: Layout | None) -> str:
    _, options = tie.plan.complexity
    name = table_cell(plan_name(tie.plan, layout))
    return f"{name} (trial {tie.number}, {tie.speedup.ratio:.3f}, {options} options)"


def _plan_table(plan: Plan) -> str:
    rows = [
        (*(Markup(f"`{table_cell(unit)}`") for unit in (scope.first, scope.last)),  # noqa: S704 - it escapes
         ", ".join(f"{name}={str(value).lower()}" for name, value in scope.options))
        for scope in plan.scopes
    ]  # fmt: skip
    return Table(("first unit", "last unit", "options"), rows).markdown() + "\n"


def _trials_table(result: SearchResult) -> str:
    rows = []
    for record in result.trials:
        outcome = record.outcome
        assert outcome is not None
        ended = "complete" if outcome.is_complete else f"{outcome.reason}: {outcome.detail}"
        ratio = f"{outcome.speedup.ratio:.3f}" if outcome.speedup else ""
        interval = interval_text(outcome.speedup) if outcome.speedup else ""
        rows.append((record.number, record.origin, len(record.plan.scopes), ended, ratio, interval))
    columns = ("trial", "origin", "scopes", "outcome", "speedup", "95% interval")
    return Table(columns, rows, numeric=frozenset({0, 2, 4})).markdown() + "\n"


def _workers_table(workers: Workers) -> str:
    """Return what each worker did, and when and why it was lost or quarantined."""
    rows = []
    for worker in workers.all:
        baseline = "" if worker.baseline_ms is None else f"{worker.baseline_ms:.3f}"
        mishaps = "; ".join(f"{moment(each.at):%Y-%m-%d %H:%M} {each.fate}: {each.why}" for each in worker.mishaps)
        rows.append((worker.worker, worker.host, worker.trials, baseline, mishaps))
    columns = ("die", "host", "trials", "baseline, ms", "lost or quarantined")
    return Table(columns, rows, numeric=frozenset({2, 3})).markdown() + "\n"


def _fusion(result: SearchResult) -> str:
    """Return what became of the winner's scopes, as far as the compiler reports it."""
    outcomes = [record.outcome for record in result.trials if result.winner and record.number == result.winner.number]
    lines = [line for outcome in outcomes if outcome for line in outcome.fusion]
    return (
        "\n".join(["What became of the scopes:\n", *(f"- {table_cell(line)}" for line in lines), ""]) if lines else ""
    )
