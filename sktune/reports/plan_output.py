"""``best_plan.yaml``: the winner as a plan file, with its evidence."""

from collections import Counter
from typing import Any

from sktune.core.codec import encoded
from sktune.core.layout import Layout
from sktune.core.plan_file import write_plan
from sktune.core.scope_flavour import ScopeFlavour
from sktune.study.result import SearchResult


def plan_yaml(result: SearchResult) -> str:
    """Return the winner as a plan file, with its evidence."""
    return write_plan(
        result.best_plan,
        evidence(result),
        scope_flavour(result),
        layers_of(result.facts.layout) if result.facts.layout else 0,
        result.facts.decode,
        target=None if result.is_simulated else result.facts.target,
        delivery=result.delivery,
    )


def layers_of(layout: Layout) -> list[str] | int:
    """Return the kinds of the layers of one list; of several, how many each has, or 0 if their lengths differ."""
    lengths = Counter(layer.name.rpartition(".")[0] for layer in layout.layers)
    if len(lengths) <= 1:
        return [layer.kind for layer in layout.layers]
    return lengths.popitem()[1] if len({*lengths.values()}) == 1 else 0


def evidence(result: SearchResult) -> dict[str, Any]:
    """Return the winner's evidence, as plain values."""
    winner = result.winner
    assert winner is not None
    return {
        "target": result.facts.description,
        "study": result.study,
        "trial": winner.number,
        "trials": len(result.trials),
        "baseline_ms": round(winner.speedup.baseline_ms, 4),
        "latency_ms": round(winner.speedup.latency_ms, 4),
        "speedup": round(winner.speedup.ratio, 4),
        "ci95": [round(bound, 4) for bound in winner.speedup.ci95] if winner.speedup.ci95 else None,
        "rounds": winner.speedup.rounds,
        "processes": len(winner.speedups),
        **({"dies": list(result.dies)} if result.dies else {}),
        **(
            {}
            if result.is_simulated or not result.comparison
            else {"noise_floor": round(result.comparison.noise_floor, 5)}
        ),
        **({} if result.repeatability is None else {"repeatability": round(result.repeatability, 5)}),
        **({"simulated": True} if result.is_simulated else {}),
        "bit_identical": True if result.is_verified else None,
        "verified": verified_line(result),
        "verification": encoded(result.verification.summary) if result.verification else None,
        **({"baseline_differs_from_model": result.model_difference} if result.model_difference else {}),
        **({} if result.is_compared else {"final_comparison": "not made: the time budget ended first"}),
        "code_digest": _code_digest(result, winner.number),
        "tied_trials": [tie.number for tie in result.verdict.ties] if result.verdict else [],
        "fingerprint": {**result.facts.fingerprint, **result.facts.versions},
    }


def verified_line(result: SearchResult) -> str:
    """Return how far the winner's bits were compared with the baseline's, and the result."""
    if not result.is_verified:
        return "not done: the figures are simulated"
    if result.verification is None:
        return result.facts.verified or "only the trial's short replays"
    return result.verification.summary.text


def _code_digest(result: SearchResult, number: int) -> str:
    """Return the digest of the winner's code in the final comparison, or in its trial if there was none."""
    final = [row.code_digest for row in result.final if row.name == str(number)]
    return (
        final + [record.outcome.code_digest for record in result.trials if record.number == number and record.outcome]
    )[0]


def scope_flavour(result: SearchResult) -> ScopeFlavour:
    """Return what the plan's scopes become; a simulated plan is meant for an NPU."""
    return result.backend.scope_flavour if result.backend else ScopeFlavour.REGION
