"""``trials.csv``: one row for each trial."""

from typing import Any

import pandas as pd

from sktune.study.records import TrialRecord
from sktune.study.result import SearchResult


def trials_csv(result: SearchResult) -> str:
    """Return a CSV table with one row for each trial: outcome, figures, parameters."""
    rows = [_row(record, result.is_simulated) for record in result.trials]
    table: str = pd.DataFrame(rows).to_csv(index=False)
    return table


def _row(record: TrialRecord, is_simulated: bool) -> dict[str, Any]:
    outcome = record.outcome
    assert outcome is not None
    speedup = outcome.speedup
    low, high = speedup.ci95 if speedup and speedup.ci95 else (None, None)
    return {
        "trial": record.number,
        "origin": record.origin,
        "state": "complete" if outcome.is_complete else "pruned",
        "reason": outcome.reason or "",
        "latency_ms": speedup.latency_ms if speedup else None,
        "baseline_ms": speedup.baseline_ms if speedup else None,
        "speedup": speedup.ratio if speedup else None,
        "ci95_low": low,
        "ci95_high": high,
        "simulated": is_simulated,
        "scopes": len(record.plan.scopes),
        "comparison": outcome.comparison,
        "noise": outcome.noise,
        "detail": outcome.detail,
        "blamed": outcome.blamed,
        **{
            f"{stage}_s": round(outcome.seconds.get(stage, 0.0), 3)
            for stage in ("compile", "verify", "measure", "observe")
        },
        "regions": outcome.regions,
        "reused": outcome.reused,
        "code_digest": outcome.code_digest,
        "log": outcome.log,
        "plan": record.plan.digest[:16],
        **record.values,
    }
