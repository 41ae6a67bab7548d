"""Terminal output of a rehearsal: what the first start has shown, and what a search would do, trial by trial."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sktune.cli.views.findings import findings_table
from sktune.cli.views.progress import duration
from sktune.core.events.commands import State
from sktune.core.printable import counted
from sktune.recipes.rehearsal import Rehearsal


def rehearsal_view(rehearsal: Rehearsal) -> RenderableType:
    """Return a rehearsal for people."""
    start, recipe = rehearsal.start, rehearsal.recipe
    parts: list[RenderableType] = []
    if bad := [finding for finding in rehearsal.findings if finding.state is not State.OK]:
        parts.append(findings_table(bad))
    lines = [f"{recipe.name}: {start.decode.function} in {counted(recipe.all_ranks, 'rank')}"]
    kinds = ", ".join(f"{count} of {kind}" for kind, count in rehearsal.kinds.items())
    lines.append(
        f"{counted(len(start.layout.units), 'unit')}, {counted(len(start.layout.layers), 'layer')}"
        f"{f' ({kinds})' if kinds else ''}, {counted(rehearsal.space.size, 'plan')}"
    )
    lines.append(
        f"measured, eager: {start.loading_s:.1f} s to the first decode step, {1e3 * start.step_s:.1f} ms for each of "
        f"{counted(start.steps, 'step')}, {start.seconds:.1f} s in all"
    )
    lines.append(f"assumed: {duration(rehearsal.compile_s)} of compilation in each later run, as nothing was compiled")
    if start.stand_ins:
        lines.append(f"stand-ins for {' and '.join(start.stand_ins)}: times are not those of an NPU")
    parts += [*map(Text, lines), _trials(rehearsal)]
    for trials in rehearsal.trials:
        runs, total_s = rehearsal.runs(trials), rehearsal.search_s(trials)
        assumed_s = runs * rehearsal.compile_s
        parts.append(Text(
            f"about {duration(total_s)} for {counted(trials, 'trial')}: {runs + 1} runs, "
            f"{duration(total_s - assumed_s)} at the first start's pace and {duration(assumed_s)} assumed; a minute "
            f"more in each adds {duration(60.0 * runs)}"
        ))  # fmt: skip
    parts.append(Text("a search could start here" if rehearsal.can_start else "a search could not start here"))
    return Group(*parts)


def _trials(rehearsal: Rehearsal) -> Table:
    """Return what a search would do, in order."""
    table = Table("run", "from", "plan", "time")
    run_s = duration(rehearsal.run_s)
    table.add_row("inspection", "", "none: eager", duration(rehearsal.start.seconds))
    table.add_row("baseline, twice", "", "no scope", f"{run_s} each")
    for trial in rehearsal.first:
        time = "no run" if trial.refused else run_s
        table.add_row(f"trial {trial.trial}", Text(trial.origin), Text(trial.refused or trial.shape), time)
    next_number = len(rehearsal.first)
    if rehearsal.later:
        names = ", ".join(rehearsal.later)
        table.add_row(f"trial {next_number} on", "starting points", Text(f"the most promising first: {names}"), run_s)
    table.add_row("then", "", "the sampler decides", f"{run_s} each")
    table.add_row("at the end", "", "the best plans are verified and compared", f"{run_s} each run")
    return table
