"""What a study has learned, as tables for a console: `show --why`."""

from rich.console import Group, RenderableType
from rich.markup import escape as escape_markup
from rich.table import Column, Table

from sktune.core.events.studies import Effect
from sktune.core.plan import options_text
from sktune.reports.figures.effects import by_size
from sktune.reports.why import Why


def why_tables(why: Why, is_simulated: bool) -> RenderableType:
    """Return what was learned as tables for a console."""
    unit = "simulated ms" if is_simulated else "ms"
    tables: list[RenderableType] = [
        _effects("units: saving inside a scope", why.units, unit),
        _effects("borders: saving inside a scope", why.borders, unit),
    ]
    if why.options:
        tables.append(_effects("options: saving in the best plan so far", why.options, unit))
    if why.blamed:
        blamed = Table("scope", "options", "trials", "reason", title="known to fail", title_justify="left")
        for blame in why.blamed:
            options = ", ".join(f"{name}={value}" for name, value in blame.options.items())
            blamed.add_row(*map(escape_markup, (blame.segment, options, _numbers(blame.trials), blame.reason)))
        tables.append(blamed)
    if why.device:
        tables.append(_device(why))
    if why.earlier:
        tables.append(_earlier(why, unit))
    return Group(*tables, *_sentences(why, unit))


def _earlier(why: Why, unit: str) -> Table:
    table = Table(
        Column("study", overflow="fold"), "findings", "believed", f"error, {unit}", f"without it, {unit}",
        title_justify="left", title="learned from earlier studies: what each alone says of the plans measured here",
    )  # fmt: skip
    for each in why.earlier:
        figures = ["-" if ms is None else f"{ms:.3f}" for ms in (each.error_ms, each.spread_ms)]
        table.add_row(escape_markup(each.study), str(each.effects), f"{each.weight:.0%}", *figures)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _device(why: Why) -> Table:
    table = Table("", "us", "+-", "", title="the device: what an operator in a SuperKernel costs or saves",
                  title_justify="left")  # fmt: skip
    for each in why.device:
        note = "" if each.is_determined else "not determined yet"
        table.add_row(each.name, f"{each.us:.2f}", f"{each.sd_us:.2f}", note)
    for column in table.columns[1:3]:
        column.justify = "right"
    return table


def _sentences(why: Why, unit: str) -> list[str]:
    lines = []
    if following := why.next_experiment:
        low, high = following.ci95
        scopes = ", ".join(scope.label for scope in following.plan.scopes[:6]) or "no scopes"
        options = f" with {options_text(following.plan.options)}" if following.plan.options else ""
        more = f" and {len(following.plan.scopes) - 6} more" if len(following.plan.scopes) > 6 else ""
        lines.append(
            f"The most informative plan to try next: {escape_markup(scopes + more + options)}; it is expected to save "
            f"{following.expected_saving_ms:.3f} {unit} [{low:.3f}, {high:.3f}]."
        )
    if why.expected_gain_left is not None:
        lines.append(
            f"Expected gain left: {why.expected_gain_left:.2%} of the baseline's {why.baseline_ms:.3f} {unit}."
        )
    lines.append(
        f"Steps deviate from the model's predictions by {why.model_misfit:.1f} times their noise"
        + (": treat the figures above with caution." if why.model_misfit > 5 else ".")
    )
    return lines


def _effects(title: str, effects: tuple[Effect, ...], unit: str) -> Table:
    table = Table(Column(overflow="fold"), f"saves, {unit}", "95%", "trials", title=title, title_justify="left")
    for effect in by_size(effects):
        low, high = effect.ci95
        table.add_row(
            escape_markup(effect.name), f"{effect.saving_ms:.4f}", f"[{low:.4f}, {high:.4f}]", str(effect.trials)
        )
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _numbers(trials: tuple[int, ...]) -> str:
    return ", ".join(map(str, trials)) or "by exclusion"
