"""The map of failures: in which units' scopes plans failed, with which options, and what the log said."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from markupsafe import Markup

from sktune.core.outcome import Reason
from sktune.core.plan import Plan, Scope, options_text
from sktune.core.printable import shortened
from sktune.reports.drawing import WIDTH, picture, text
from sktune.reports.figure import Figure, Table
from sktune.reports.markup import element
from sktune.reports.plan_names import kind_of
from sktune.reports.shown import Shown
from sktune.study.records import TrialRecord

LEFT, TOP, HIGH = 250.0, 130.0, 26.0
MIN_CELL, MAX_CELL = 46.0, 120.0
MAX_COLUMNS = 15


def failures(shown: Shown) -> Figure | None:
    """Return the map and the failed trials; None if nothing failed."""
    say = shown.say
    failed = [record for record in shown.result.trials
              if record.outcome and record.outcome.reason not in (None, Reason.SLOWER)]  # fmt: skip
    if not failed:
        return None
    head = (say("trial"), say("outcome"), say("failures.blamed"), say("failures.options"), say("failures.line"),
            say("failures.log"))  # fmt: skip
    rows = [_row(shown, record) for record in failed]
    table = Table(head, rows, [record.number for record in failed], frozenset({0}))
    counts = Counter(record.outcome.reason for record in failed if record.outcome)
    what = ", ".join(f"{count} {say(f'outcome.{reason}')}" for reason, count in counts.most_common())
    lead = say("failures.lead", failed=len(failed), trials=len(shown.result.trials), what=what)
    return Figure(say("failures.title"), lead, _map(shown, failed), table, is_open=True)


def _scope_blamed(record: TrialRecord) -> Scope | None:
    label = record.outcome.blamed if record.outcome else ""
    return next((scope for scope in record.judged_plan.scopes if scope.label == label), None)


def _row(shown: Shown, record: TrialRecord) -> tuple[object, ...]:
    outcome = record.outcome
    assert outcome is not None
    scope = _scope_blamed(record)
    blamed = shortened(outcome.blamed, 80) or shown.say("failures.unknown")
    options = options_text(scope.options) if scope else shown.options(record.judged_plan)
    return (record.number, shown.ended(outcome), blamed, options or "-", shortened(outcome.detail, 400), outcome.log)


def _hit(shown: Shown, plan: Plan, scope: Scope) -> Iterator[tuple[str, str]]:
    """Yield a type of unit and an option for each combination in a scope."""
    layout = shown.layout
    assert layout is not None
    position = {unit.name: index for index, unit in enumerate(layout.units)}
    if scope.first not in position or scope.last not in position:
        return
    options = [f"{name}={value}" for name, value in (*scope.options, *plan.options)] or [shown.say("no_options")]
    inside = range(position[scope.first], position[scope.last] + 1)
    for unit in dict.fromkeys(f"{kind_of(index, layout)}.{layout.units[index].key}" for index in inside):
        for option in options:
            yield unit, option


def _map(shown: Shown, failed: list[TrialRecord]) -> Markup:
    """Return failures by unit and option: dark where the scope was blamed, light where it only was in the plan."""
    blamed: dict[tuple[str, str], list[int]] = defaultdict(list)
    suspected: dict[tuple[str, str], list[int]] = defaultdict(list)
    if shown.layout:
        for record in failed:
            scope = _scope_blamed(record)
            into, scopes = (blamed, (scope,)) if scope else (suspected, record.judged_plan.scopes)
            plan = record.judged_plan
            for cell in dict.fromkeys(cell for each in scopes for cell in _hit(shown, plan, each)):
                into[cell].append(record.number)
    cells = dict.fromkeys((*blamed, *suspected))
    totals = Counter[str]()
    for cell in cells:
        totals[cell[1]] += len(blamed.get(cell, ())) * 100 + len(suspected.get(cell, ()))
    options = [name for name, _ in totals.most_common(MAX_COLUMNS)]
    order = dict.fromkeys(f"{kind_of(i, shown.layout)}.{unit.key}" for i, unit in enumerate(shown.layout.units)
                          ) if shown.layout else {}  # fmt: skip
    units = [unit for unit in order if any(cell[0] == unit for cell in cells)]
    wide = max(MIN_CELL, min(MAX_CELL, (WIDTH - LEFT - 60) / max(1, len(options))))
    drawn: list[Markup | None] = []
    for column, option in enumerate(options):
        x = LEFT + wide * column + wide / 2
        drawn.append(element("text", shortened(option, 30), x=x, y=TOP - 8,
                             transform=f"rotate(-40 {x:.0f} {TOP - 8:.0f})"))  # fmt: skip
    for row, unit in enumerate(units):
        y = TOP + HIGH * row
        drawn.append(text(LEFT - 10, y + HIGH / 2 + 4, shortened(unit, 38), None, "end"))
        for column, option in enumerate(options):
            cell = unit, option
            drawn.append(_cell(shown, blamed.get(cell, []), suspected.get(cell, []), LEFT + wide * column, y, wide))
    described = "; ".join(f"{unit} {option}: {len(numbers)}" for (unit, option), numbers in list(blamed.items())[:40])
    height = TOP + HIGH * len(units) + 8
    return picture("failures-picture", shown.say("failures.title"), described or "-", min(height, WIDTH * 2), *drawn)


def _cell(shown: Shown, blamed: list[int], suspected: list[int], x: float, y: float, wide: float) -> Markup:
    numbers = blamed or suspected
    key = "failures.cell_blamed" if blamed else "failures.cell_suspected"
    title = shown.say(key, count=len(numbers), trials=", ".join(map(str, numbers[:20])))
    look = "blamed" if blamed else "suspected" if suspected else "empty"
    box = element(
        "rect", element("title", title) if numbers else None, x=x + 1, y=y + 1, width=wide - 2, height=HIGH - 2, rx=3,
        class_=look,
    )  # fmt: skip
    count = text(x + wide / 2, y + HIGH / 2 + 4, len(numbers), "on" if blamed else "small", "middle")
    return element("g", box, count if numbers else None)
