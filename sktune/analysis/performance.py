"""Contents of the skill's JSON files: the study's figures under the names that the skill expects, null if unknown.

Formats: performance-baseline-guide.md of the skill model-infer-superkernel (hicann/cannbot-skills).
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sktune.analysis.guide_options import improvement_percent
from sktune.analysis.model import Analysis
from sktune.core.errors import BadInputError
from sktune.core.outcome import Speedup
from sktune.measure import samples
from sktune.study.result import SearchResult

Milliseconds = npt.NDArray[np.float64]


def baseline_performance(analysis: Analysis) -> dict[str, Any]:
    """Return the contents of `baseline_performance.json`."""
    made_with = analysis.made_with
    cann = made_with.get("cann", "not installed")
    settings = {name: made_with.get(name) for name in ("scale", "dtype", "context", "seed")}
    speedup = analysis.recommendation.speedup
    baseline_ms = speedup.baseline_ms if speedup else analysis.result.baseline_ms
    sampled = _sampled_ms(analysis.result, analysis.recommendation.trial)
    return {
        "test_info": {
            "model_name": analysis.model,
            "hardware": made_with.get("device"),
            "cann_version": None if cann == "not installed" else cann,
            "torch_version": made_with.get("torch"),
            "backend": made_with.get("backend"),
            "study": analysis.result.study,
            "simulated": analysis.result.is_simulated,
            "stand_in": analysis.is_stand_in,
            "config": {
                **{name: None if value == "None" else value for name, value in settings.items()},
                "batch": analysis.batch,
                "yaml": dict(analysis.place.settings) if analysis.place else None,
            },
        },
        "performance": _performance(baseline_ms, analysis.batch, None),
        "statistics": {
            "runs": None if sampled is None else len(sampled),
            "decode_latency_std": _spread(sampled),
            "throughput_std": _spread(
                None if sampled is None or not analysis.batch else 1e3 * analysis.batch / sampled
            ),
        },
    }


def performance_comparison(analysis: Analysis) -> dict[str, Any]:
    """Return the contents of `performance_comparison.json`; without a recommended plan its figures are null."""
    speedup = analysis.recommendation.speedup
    baseline = baseline_performance(analysis)["performance"]
    optimized = _performance(speedup.latency_ms if speedup else None, analysis.batch, _compile_s(analysis))
    return {
        "baseline": baseline,
        "optimized": optimized,
        "improvements": {
            name: {
                "baseline": baseline[name],
                "optimized": optimized[name],
                "improvement_percent": _improvement(name, speedup) if baseline[name] and optimized[name] else None,
            }
            for name in ("decode_latency_ms", "throughput_tokens_per_sec")
        },
    }


def _improvement(metric: str, speedup: Speedup | None) -> float | None:
    """Return the latency saved in percent, or the throughput gained."""
    if speedup is None:
        return None
    if metric == "decode_latency_ms":
        return improvement_percent(speedup)
    return 100 * (speedup.baseline_ms / speedup.latency_ms - 1)


def _performance(latency_ms: float | None, batch: int | None, compile_s: float | None) -> dict[str, float | None]:
    return {
        "decode_latency_ms": latency_ms,
        "throughput_tokens_per_sec": 1e3 * batch / latency_ms if batch and latency_ms else None,
        "prefill_latency_ms": None,
        "memory_usage_gb": None,
        "compile_time_sec": compile_s,
    }


def _compile_s(analysis: Analysis) -> float | None:
    """Return how long the recommended plan took to compile in its trial; a simulation compiles nothing."""
    for record in () if analysis.result.is_simulated else analysis.result.trials:
        if record.number == analysis.recommendation.trial and record.outcome:
            return record.outcome.seconds.get("compile")
    return None


def _spread(values: Milliseconds | None) -> float | None:
    return None if values is None or len(values) < 2 else float(np.std(values, ddof=1))


def _sampled_ms(result: SearchResult, trial: int | None) -> Milliseconds | None:
    """Return the baseline's undisturbed samples from the measurement that is reported; None without samples."""
    if trial is None or result.is_simulated:
        return None
    processes = len(result.comparison.speedups.get(str(trial), ())) if result.comparison else 0
    names = [f"final-{number}.npz" for number in range(1, processes + 1)] or [f"trial-{trial:04d}.npz"]
    recorded = [_baseline_ms(result.folder / samples.FOLDER / name) for name in names]
    known = [values for values in recorded if values is not None]
    return np.concatenate(known) if known else None


def _baseline_ms(path: Path) -> Milliseconds | None:
    try:
        recorded = samples.read(path)
    except BadInputError:
        return None  # deleted since; the study's own figures do not need them
    baseline_ms: Milliseconds = 1e3 * recorded.seconds[~recorded.disturbed, 0]
    return baseline_ms
