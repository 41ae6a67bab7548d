"""Compares reports: whether ranks agree on the decode step, and whether two runs agree on every compared bit."""

from collections.abc import Collection, Mapping, Sequence

from sktune.core.errors import BadInputError, TargetError
from sktune.core.layout import Layout
from sktune.core.space import SpaceSpec
from sktune.core.verification import Verification
from sktune.program.sktune_program.task import VERIFIED_STEPS, DecodeCall
from sktune.recipes.rank_reports import InspectedCall, RankReport
from sktune.targets.tracing import time_shares
from sktune.targets.units import layout_of

Reports = Sequence[RankReport]
"""One for each rank."""
IgnoredState = Collection[tuple[int, str]]
"""Ranks and names of state tensors that differ between two runs of the baseline, such as uninitialized memory."""


def decode_step(reports: Sequence[RankReport], spec: SpaceSpec) -> tuple[DecodeCall, Layout]:
    """Return the most frequent compiled call of the largest model, and its layout.

    Raises:
        TargetError: no call is a decode step, or the ranks run different modules.
    """
    first = reports[0]
    layouts: dict[DecodeCall, Layout] = {}
    problems = []
    for call in first.inspected:
        try:
            layouts[call.call] = _layout(first, call, spec)
        except BadInputError as failure:
            problems.append(f"{call.call.function}: {failure}")
    candidates = [call for call in first.inspected if call.call in layouts]
    if not candidates:
        raise TargetError(
            f"sktune found no decode step in the program ({'; '.join(problems) or 'it compiles no module'}); "
            "see docs/reference/recipe.md in sktune's source"
        )
    largest = max(call.parameters for call in candidates)
    chosen = max((call for call in candidates if call.parameters == largest), key=lambda call: call.calls).call
    for report in reports[1:]:
        same = (call for call in report.inspected if call.call.function == chosen.function and call.times)
        if not any(_layout(report, call, spec).digest == layouts[chosen].digest for call in same):
            raise TargetError(f"{report.name} runs different modules from {first.name}; one plan cannot fit both")
    return chosen, layouts[chosen]


def _layout(report: RankReport, call: InspectedCall, spec: SpaceSpec) -> Layout:
    """Return the layout of an inspected call.

    Raises:
        BadInputError: it is no decode step, or ``spec`` does not fit it.
    """
    if not call.times:
        raise TargetError(f"it is called {call.calls} times, too few for a decode step")
    layout = layout_of(report.trees[call.call.function], call.ran, spec)
    return layout.with_time_shares(time_shares(call.times, [unit.name for unit in layout.units]))


def first_difference(expected: Reports, actual: Reports, ignored: IgnoredState, steps: int = VERIFIED_STEPS) -> str:
    """Return where the first ``steps`` decode steps, or the state after them, first differ; empty if they are equal."""
    for baseline, plan in zip(expected, actual, strict=True):
        wanted, outputs = baseline.outputs[:steps], plan.outputs[:steps]
        for number, (before, after) in enumerate(zip(wanted, outputs, strict=False)):
            if name := _differing(before.digests, after.digests):
                return f"{plan.name}, step {number}: {name} differs from the baseline's"
        if len(wanted) != len(outputs):
            return f"{plan.name}: {len(outputs)} decode steps instead of {len(wanted)}"
        ignored_names = {name for rank, name in ignored if rank == plan.rank}
        for number in sorted(set(baseline.states) & set(range(steps + 1))):
            state = plan.states[number].digests if number in plan.states else {}
            if name := _differing(baseline.states[number].digests, state, ignored_names):
                return f"{plan.name}: state {name} differs from the baseline's after {number} steps"
    return ""


def verification(
    expected: Reports, actual: Reports, ignored: IgnoredState, steps: int = VERIFIED_STEPS
) -> Verification:
    """Compare ``steps`` decode steps.

    A restarted program runs the same steps on the same prompts, so all its runs, ranks and prompts count as one
    context.
    """
    if difference := first_difference(expected, actual, ignored, steps):
        return Verification(difference=difference)
    fewest = min(len(report.outputs[:steps]) for report in actual)
    return Verification(fewest, 1, sum(_elements(report, ignored, steps) for report in actual))


def differing_state(one: Reports, other: Reports) -> frozenset[tuple[int, str]]:
    """Return the ranks and names of state tensors that differ between two runs of the same plan."""
    differing = set()
    for first, second in zip(one, other, strict=True):
        for number in set(first.states) & set(second.states):
            before, after = first.states[number].digests, second.states[number].digests
            differing |= {(first.rank, name) for name in {**before, **after} if before.get(name) != after.get(name)}
    return frozenset(differing)


def unverifiable_reason(report: RankReport, function: str, *, is_stateless: bool) -> str:
    """Return why a rank's report cannot be verified, and what to do; empty if it can.

    Args:
        report: of a rank that ended normally.
        function: the decode step.
        is_stateless: whether the recipe declares that nothing outlives a step.
    """
    where = report.name
    if not report.outputs:
        return f"{where} never called {function}"
    if blank := next((output for output in report.outputs if not output.digests), None):
        return (
            f"{where}: decode step {function} returns nothing that sktune can compare (it returns {blank.kind}); "
            "return tensors, or a container of them"
        )
    if VERIFIED_STEPS not in report.states:
        return (
            f"{where} ran {len(report.outputs)} decode steps, and verification needs {VERIFIED_STEPS}; "
            "have the program generate more tokens"
        )
    if not (is_stateless or report.states[VERIFIED_STEPS].digests):
        return (
            f"{where}: sktune finds no tensor that outlives decode step {function}, neither in its modules nor in its "
            "closure or arguments; keep the cache in an attribute of a module, or set `stateless: true` in the recipe "
            "if the step has no state"
        )
    return ""


def _differing(expected: Mapping[str, str], actual: Mapping[str, str], ignored: Collection[str] = frozenset()) -> str:
    names = [name for name in {**expected, **actual} if name not in ignored]
    return next((name for name in names if expected.get(name) != actual.get(name)), "")


def _elements(report: RankReport, ignored: IgnoredState, steps: int) -> int:
    """Return how many elements of outputs and state were compared."""
    states = [state for number, state in report.states.items() if number <= steps]
    digests = [digest for output in report.outputs[:steps] for digest in output.digests.values()]
    for state in states:
        digests += [digest for name, digest in state.digests.items() if (report.rank, name) not in ignored]
    return sum(int(digest.partition("/")[2]) for digest in digests)
