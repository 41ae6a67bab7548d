"""The files that the skill expects from an analysis, with the skill's names and headings.

Its JSON files have the study's figures, null if unknown. Formats: performance-baseline-guide.md of the skill
model-infer-superkernel (hicann/cannbot-skills).
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sktune.analysis.guide_options import OptionStatus, improvement_percent
from sktune.analysis.model import Analysis, option_text, walk_lines
from sktune.analysis.model_folder import SETTINGS
from sktune.core.errors import BadInputError
from sktune.core.files import write_text
from sktune.core.plain_data import finite
from sktune.measure import samples
from sktune.reports.application import apply_block
from sktune.reports.figure import Table, table_cell
from sktune.study.result import SearchResult

REPORT = "superkernel_optimization_report.md"
BASELINE = "baseline_performance.json"
COMPARISON = "performance_comparison.json"
OPTION_COLUMNS = ("option", "trial", "result", "latency", "baseline", "speedup", "improvement", "final")
LISTED = 3
"""Scopes that are named; the plan file has all."""

Milliseconds = npt.NDArray[np.float64]


def write(analysis: Analysis, folder: Path) -> tuple[Path, ...]:
    """Write the files into ``folder`` and return their paths.

    Raises:
        BadInputError: the folder cannot be written.
    """
    figures = {BASELINE: baseline_performance(analysis), COMPARISON: performance_comparison(analysis)}
    files = {REPORT: report_markdown(analysis)}
    for name, values in figures.items():
        files[name] = json.dumps(finite(values), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_text(folder / name, content)
    except OSError as failure:
        raise BadInputError(f"{folder} cannot be written ({failure.strerror}); name another with --out") from failure
    return tuple(folder / name for name in files)


_TEMPLATES = Environment(  # noqa: S701 - Markdown, in which the template escapes what it is given with ``cell``
    loader=FileSystemLoader(Path(__file__).parent),
    trim_blocks=True,
    keep_trailing_newline=True,
    undefined=StrictUndefined,
)
_TEMPLATES.filters["cell"] = table_cell


def report_markdown(analysis: Analysis) -> str:
    """Return the report, in the language of the analysis."""
    text, change = analysis.text, analysis.change
    walk = walk_lines(text, analysis.findings, analysis.walk)
    plan = analysis.recommendation.plan
    return _TEMPLATES.get_template("report.md.jinja").render(
        analysis=analysis, text=text, result=analysis.result, change=change, speedup=analysis.recommendation.speedup,
        configuration=_configuration(analysis),
        decision=[analysis.backend_text, *walk, *profile_lines(analysis)],
        apply_block=apply_block(analysis.result, plan, str(analysis.plan)) if analysis.plan else "",
        fence="````" if change and "```" in change.diff else "```",
        baseline=_performance(analysis, baseline_performance(analysis)["performance"]),
        optimized=_performance(analysis, performance_comparison(analysis)["optimized"]),
        improvement_percent=improvement_percent,
        options=Table([text(f"column.{name}") for name in OPTION_COLUMNS], options_rows(analysis)).markdown(),
        option=option_text(text, analysis.recommendation.option),
    )  # fmt: skip


def _configuration(analysis: Analysis) -> str:
    text, result, recommendation = analysis.text, analysis.result, analysis.recommendation
    scopes = recommendation.plan.scopes
    listed = [*(scope.label for scope in scopes[:LISTED]), *(["..."] if len(scopes) > LISTED else [])]
    options = {f"{name}={value}": None for scope in scopes for name, value in scope.options}
    options |= {f"{name}={value}": None for name, value in recommendation.plan.options}
    rows: list[tuple[str, Any]] = [
        ("model", result.facts.description or analysis.model),
        ("backend", f"{analysis.made_with.get('backend')}, {analysis.made_with.get('device')}"),
        ("study", result.study),
        ("trials", len(result.trials)),
        ("scope", option_text(text, recommendation.option)),
        ("scopes", f"{len(scopes)}: {', '.join(listed)}" if scopes else "0"),
        ("options", ", ".join(options) or "-"),
        *([("bits", bits_text(analysis))] if recommendation.verification else []),
    ]
    if place := analysis.place:
        rows += [("folder", place.folder), ("yaml", place.yaml or text("not_known"))]
        rows += [(name, place.settings.get(name, text("not_known"))) for name in SETTINGS]
    return Table((text("item"), text("value")), [(text(f"item.{name}"), value) for name, value in rows]).markdown()


def bits_text(analysis: Analysis) -> str:
    """Return how far the recommended plan's bits were compared with the baseline's; empty if they were not."""
    text, verification = analysis.text, analysis.recommendation.verification
    lines = []
    if verification:
        lines.append(text("bits", steps=f"{verification.steps:,}", one_in=f"{verification.one_in:,}"))
    if difference := analysis.result.model_difference:
        lines.append(text("bits.model", difference=difference))
    return "; ".join(lines)


def profile_lines(analysis: Analysis) -> list[str]:
    """Return a line on the profile; none without one."""
    if not (profile := analysis.profile):
        return []
    values = {"step_ms": f"{profile.step_ms:.3f}", "gap_share": f"{profile.gap_share:.1%}"}
    return [analysis.text("profile", bottleneck=profile.bottleneck, **values)]


def _performance(analysis: Analysis, performance: dict[str, float | None]) -> str:
    text = analysis.text
    units = {
        "decode_latency": ("decode_latency_ms", "{:.3f} ms"),
        "throughput": ("throughput_tokens_per_sec", "{:.1f} " + text("tokens_per_s")),
        "prefill": ("prefill_latency_ms", "{:.3f} ms"),
        "memory": ("memory_usage_gb", "{:.2f} GB"),
        "compile_time": ("compile_time_sec", "{:.1f} s"),
    }
    rows = []
    for name, (key, form) in units.items():
        value = performance[key]
        rows.append((text(name), text("not_measured") if value is None else form.format(value)))
    return Table((text("metric"), text("value")), rows).markdown()


def options_rows(analysis: Analysis) -> list[tuple[str, ...]]:
    """Return a row for each option, with a cell for each of ``OPTION_COLUMNS``."""
    text = analysis.text
    rows: list[tuple[str, ...]] = []
    for row in analysis.options:
        is_unverified = row.status is OptionStatus.PASSED and analysis.result.is_simulated
        status = text("status.simulated" if is_unverified else f"status.{row.status}")
        if row.trial is not None and row.trial == analysis.recommendation.trial:
            status = f"{status} ({text('same_as_winner')})"
        if row.detail and row.status not in (OptionStatus.PASSED, OptionStatus.SLOWER):
            status = f"{status}: {row.detail}"
        figures = ("-", "-", "-", "-", "-")
        if speedup := row.speedup:
            figures = (
                f"{speedup.latency_ms:.3f} ms", f"{speedup.baseline_ms:.3f} ms", f"{speedup.ratio:.3f}x",
                f"{improvement_percent(speedup):.2f}%", f"{row.final.ratio:.3f}x" if row.final else "-",
            )  # fmt: skip
        rows.append((option_text(text, row.option), "-" if row.trial is None else str(row.trial), status, *figures))
    return rows


def baseline_performance(analysis: Analysis) -> dict[str, Any]:
    """Return the contents of `baseline_performance.json`."""
    made_with, batch = analysis.made_with, analysis.batch
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
                "batch": batch,
                "yaml": dict(analysis.place.settings) if analysis.place else None,
            },
        },
        "performance": _metrics(baseline_ms, batch, None),
        "statistics": {
            "runs": None if sampled is None else len(sampled),
            "decode_latency_std": _spread(sampled),
            "throughput_std": None if sampled is None or not batch else _spread(1e3 * batch / sampled),
        },
    }


def performance_comparison(analysis: Analysis) -> dict[str, Any]:
    """Return the contents of `performance_comparison.json`; without a recommended plan its figures are null."""
    speedup = analysis.recommendation.speedup
    baseline = baseline_performance(analysis)["performance"]
    # How long the recommended plan took to compile in its trial; a simulation compiles nothing.
    tried = () if analysis.result.is_simulated else analysis.result.trials
    outcomes = (record.outcome for record in tried if record.number == analysis.recommendation.trial)
    compile_s = next((outcome.seconds.get("compile") for outcome in outcomes if outcome), None)
    optimized = _metrics(speedup.latency_ms if speedup else None, analysis.batch, compile_s)
    latency_saved = improvement_percent(speedup) if speedup else None
    tokens_gained = 100 * (speedup.baseline_ms / speedup.latency_ms - 1) if speedup else None
    gained = {"decode_latency_ms": latency_saved, "throughput_tokens_per_sec": tokens_gained}
    return {
        "baseline": baseline,
        "optimized": optimized,
        "improvements": {
            name: {
                "baseline": baseline[name],
                "optimized": optimized[name],
                "improvement_percent": percent if baseline[name] and optimized[name] else None,
            }
            for name, percent in gained.items()
        },
    }


def _metrics(latency_ms: float | None, batch: int | None, compile_s: float | None) -> dict[str, float | None]:
    return {
        "decode_latency_ms": latency_ms,
        "throughput_tokens_per_sec": 1e3 * batch / latency_ms if batch and latency_ms else None,
        "prefill_latency_ms": None,
        "memory_usage_gb": None,
        "compile_time_sec": compile_s,
    }


def _spread(values: Milliseconds | None) -> float | None:
    return None if values is None or len(values) < 2 else float(np.std(values, ddof=1))


def _sampled_ms(result: SearchResult, trial: int | None) -> Milliseconds | None:
    """Return the baseline's undisturbed samples from the measurement that is reported; None without samples."""
    if trial is None or result.is_simulated:
        return None
    processes = len(result.comparison.speedups.get(str(trial), ())) if result.comparison else 0
    names = [f"final-{number}.npz" for number in range(1, processes + 1)] or [f"trial-{trial:04d}.npz"]
    known = []
    for name in names:
        with suppress(BadInputError):  # deleted since; the study's own figures do not need them
            recorded = samples.read(result.folder / samples.FOLDER / name)
            known.append(1e3 * recorded.seconds[~recorded.disturbed, 0])
    return np.concatenate(known) if known else None
