"""``trials.csv``: one row for each trial."""

from typing import Any

import pandas as pd

from sktune.reports.plan_names import plan_name
from sktune.study.records import TrialRecord
from sktune.study.result import SearchResult


def trials_csv(result: SearchResult) -> str:
    """Return a CSV table with one row for each trial; see ``trials_frame``."""
    table: str = trials_frame(result).to_csv(index=False)
    return table


def trials_frame(result: SearchResult) -> pd.DataFrame:
    """Return a table with one row for each trial: plan, outcome, figures, parameters."""
    return pd.DataFrame([_row(record, result) for record in result.trials])


def _row(record: TrialRecord, result: SearchResult) -> dict[str, Any]:
    outcome = record.outcome
    assert outcome is not None
    speedup = outcome.speedup
    low, high = speedup.ci95 if speedup and speedup.ci95 else (None, None)
    return {
        "trial": record.number,
        "shape": plan_name(record.judged_plan, result.facts.layout),
        "origin": record.origin,
        "state": "complete" if outcome.is_complete else "pruned",
        "reason": outcome.reason or "",
        "latency_ms": speedup.latency_ms if speedup else None,
        "baseline_ms": speedup.baseline_ms if speedup else None,
        "speedup": speedup.ratio if speedup else None,
        "ci95_low": low,
        "ci95_high": high,
        "simulated": result.is_simulated,
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
