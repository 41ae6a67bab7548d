"""What reports agree on: ranks on the decode step, and two runs on every bit of what was compared."""

from collections.abc import Collection, Mapping, Sequence

from sktune.core.errors import TargetError
from sktune.core.layout import Layout
from sktune.core.verification import Verification
from sktune.runners.program.rank_reports import VERIFIED_STEPS, FoundStep, RankReport

Reports = Sequence[RankReport]
"""One for each rank."""
Uncompared = Collection[tuple[int, str]]
"""Ranks and names of state tensors that differ between two runs of the baseline: memory that nobody has written."""


def decode_step(reports: Sequence[RankReport]) -> FoundStep:
    """Return the compiled call that is called most often, of the largest model.

    Raises:
        TargetError: no call is a decode step, or the ranks do not run the same modules.
    """
    first = reports[0]
    known = [found for found in first.found if found.layout is not None]
    if not known:
        told = "; ".join(f"{found.call.function}: {found.problem}" for found in first.found) or "it compiles no module"
        raise TargetError(
            f"the program runs no decode step that sktune could find ({told}); see docs/reference/recipe.md"
        )
    largest = max(found.parameters for found in known)
    chosen = max((found for found in known if found.parameters == largest), key=lambda found: found.calls)
    assert chosen.layout is not None
    layout = Layout.from_dict(chosen.layout)
    for report in reports[1:]:
        same = [found for found in report.found if found.call.function == chosen.call.function and found.layout]
        if not any(Layout.from_dict(found.layout).digest == layout.digest for found in same if found.layout):
            raise TargetError(f"rank {report.rank} runs other modules than rank {first.rank}; one plan cannot fit both")
    return chosen


def first_difference(expected: Reports, got: Reports, uncompared: Uncompared, steps: int = VERIFIED_STEPS) -> str:
    """Return where a rank's bits first differ in ``steps`` decode steps and in the state after them; empty nowhere."""
    for one, other in zip(expected, got, strict=True):
        before, after = one.outputs[:steps], other.outputs[:steps]
        for number, (own, its) in enumerate(zip(before, after, strict=False)):
            if name := _differing(own.digests, its.digests):
                return f"rank {other.rank}, step {number}: {name} differs from the baseline's"
        if len(before) != len(after):
            return f"rank {other.rank}: {len(after)} decode steps instead of {len(before)}"
        ignored = {name for rank, name in uncompared if rank == other.rank}
        for number in sorted(set(one.states) & set(range(steps + 1))):
            theirs = other.states[number].digests if number in other.states else {}
            if name := _differing(one.states[number].digests, theirs, ignored):
                return f"rank {other.rank}: state {name} differs from the baseline's after {number} steps"
    return ""


def verification(expected: Reports, got: Reports, uncompared: Uncompared, steps: int = VERIFIED_STEPS) -> Verification:
    """Return what a comparison of ``steps`` decode steps came to.

    A program that is started again makes the same steps on the same prompts: its runs and ranks count once, as one
    context, whatever number of prompts it has.
    """
    if difference := first_difference(expected, got, uncompared, steps):
        return Verification(difference=difference)
    least = min(len(report.outputs[:steps]) for report in got)
    return Verification(least, 1, sum(_elements(report, uncompared, steps) for report in got))


def differing_state(one: Reports, other: Reports) -> frozenset[tuple[int, str]]:
    """Return ranks and names of state tensors that differ between two runs of the same."""
    found = set()
    for first, second in zip(one, other, strict=True):
        for number in set(first.states) & set(second.states):
            before, after = first.states[number].digests, second.states[number].digests
            found |= {(first.rank, name) for name in {**before, **after} if before.get(name) != after.get(name)}
    return frozenset(found)


def what_is_missing(report: RankReport, function: str, *, is_stateless: bool) -> str:
    """Return why a rank's report verifies nothing, and what to do; empty where it does.

    Args:
        report: of a rank that came to its end.
        function: the decode step.
        is_stateless: whether the recipe says that nothing outlives a step.
    """
    where = f"rank {report.rank}"
    if not report.outputs:
        return f"{where} never called {function}"
    if blank := next((own for own in report.outputs if not own.digests), None):
        return (
            f"{where}: decode step {function} returns nothing that sktune can compare (it returns {blank.kind}); "
            "return tensors, or a container of them"
        )
    if VERIFIED_STEPS not in report.states:
        return (
            f"{where} has {len(report.outputs)} decode steps, and {VERIFIED_STEPS} are verified; "
            "have the program generate more tokens"
        )
    if not (is_stateless or report.states[VERIFIED_STEPS].digests):
        return (
            f"{where}: sktune finds no tensor that outlives decode step {function}, neither in its modules nor in its "
            "closure or arguments; keep the cache in an attribute of a module, or say `stateless: true` in the recipe "
            "where there is none"
        )
    return ""


def _differing(expected: Mapping[str, str], got: Mapping[str, str], ignored: Collection[str] = frozenset()) -> str:
    names = [name for name in {**expected, **got} if name not in ignored]
    return next((name for name in names if expected.get(name) != got.get(name)), "")


def _elements(report: RankReport, uncompared: Uncompared, steps: int) -> int:
    """Return how many elements of outputs and state were compared."""
    states = [own for number, own in report.states.items() if number <= steps]
    found = [digest for own in report.outputs[:steps] for digest in own.digests.values()]
    found += [digest for own in states for name, digest in own.digests.items() if (report.rank, name) not in uncompared]
    return sum(int(digest.partition("/")[2]) for digest in found)
