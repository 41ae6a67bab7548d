"""The files that the skill expects from an analysis, with the skill's names and headings."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sktune.analysis.guide_options import OptionResult, OptionStatus, improvement_percent
from sktune.analysis.model import Analysis, option_text, walk_lines
from sktune.analysis.model_folder import SETTINGS
from sktune.analysis.performance import baseline_performance, performance_comparison
from sktune.core.errors import BadInputError
from sktune.core.files import write_text
from sktune.core.plain_data import finite
from sktune.reports.application import apply_block
from sktune.reports.figure import Table, table_cell

REPORT = "superkernel_optimization_report.md"
BASELINE = "baseline_performance.json"
COMPARISON = "performance_comparison.json"
OPTION_COLUMNS = ("option", "trial", "result", "latency", "baseline", "speedup", "improvement", "final")
LISTED = 3
"""Scopes that are named; the plan file has all."""


def write(analysis: Analysis, folder: Path) -> tuple[Path, ...]:
    """Write the files into ``folder`` and return their paths.

    Raises:
        BadInputError: the folder cannot be written.
    """
    files = {
        REPORT: report_markdown(analysis),
        BASELINE: _json(baseline_performance(analysis)),
        COMPARISON: _json(performance_comparison(analysis)),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_text(folder / name, content)
    except OSError as failure:
        raise BadInputError(f"{folder} cannot be written ({failure.strerror}); name another with --out") from failure
    return tuple(folder / name for name in files)


def report_markdown(analysis: Analysis) -> str:
    """Return the report, in the language of the analysis."""
    text = analysis.text
    parts = [
        f"# {text('title')}",
        f"**{table_cell(analysis.figures_text)}**",
        f"## {text('head.configuration')}",
        _configuration(analysis),
        f"### {text('head.decision')}",
        "\n".join(f"- {table_cell(line)}" for line in (analysis.backend_text, *_decision(analysis))),
        f"## {text('head.change')}",
        _change(analysis),
        f"## {text('head.results')}",
        table_cell(analysis.figures_text),
        f"### {text('head.baseline')}",
        _performance(analysis, baseline_performance(analysis)["performance"]),
        f"### {text('head.optimized')}",
        _performance(analysis, performance_comparison(analysis)["optimized"]),
        f"### {text('head.improvement')}",
        _improvement(analysis),
        f"### {text('head.options')}",
        _options(analysis),
        f"## {text('head.conclusion')}",
        f"**{text('recommendation', option=option_text(text, analysis.recommendation.option))}** "
        + table_cell(analysis.reason_text),
        f"### {text('head.risks')}",
        "\n".join(f"- {table_cell(risk.text)}" for risk in analysis.risks),
        f"## {text('head.usage')}",
        _usage(analysis),
    ]
    return "\n\n".join(parts) + "\n"


def _configuration(analysis: Analysis) -> str:
    text, result, recommendation = analysis.text, analysis.result, analysis.recommendation
    scopes = recommendation.plan.scopes
    options = {f"{name}={value}": None for scope in scopes for name, value in scope.options}
    options |= {f"{name}={value}": None for name, value in recommendation.plan.options}
    rows: list[tuple[str, Any]] = [
        ("model", result.facts.description or analysis.model),
        ("backend", f"{analysis.made_with.get('backend')}, {analysis.made_with.get('device')}"),
        ("study", result.study),
        ("trials", len(result.trials)),
        ("scope", option_text(text, recommendation.option)),
        ("scopes", _listed([scope.label for scope in scopes])),
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


def _listed(labels: Sequence[str]) -> str:
    """Return how many scopes there are, and the first of them."""
    more = ", ..." if len(labels) > LISTED else ""
    return f"{len(labels)}: {', '.join(labels[:LISTED])}{more}" if labels else "0"


def _decision(analysis: Analysis) -> list[str]:
    lines = walk_lines(analysis.text, analysis.findings, analysis.walk)
    return [*lines, *profile_lines(analysis)]


def profile_lines(analysis: Analysis) -> list[str]:
    """Return a line on the profile; none without one."""
    if not (profile := analysis.profile):
        return []
    values = {"step_ms": f"{profile.step_ms:.3f}", "gap_share": f"{profile.gap_share:.1%}"}
    return [analysis.text("profile", bottleneck=profile.bottleneck, **values)]


def _change(analysis: Analysis) -> str:
    text = analysis.text
    if analysis.plan is None:
        return text("change.none")
    block = apply_block(analysis.result, analysis.recommendation.plan, str(analysis.plan))
    unedited = f"{text(f'change.{analysis.result.usage.application}')}\n\n{block}"
    if analysis.change is None:
        return f"{text('change.no_folder')}\n\n{unedited}"
    if analysis.change.refused:
        return f"{text('change.refused', reason=table_cell(analysis.change.refused))}\n\n{unedited}"
    notes = "".join(f"\n- {table_cell(note)}" for note in analysis.change.notes)
    if not analysis.change.diff:
        return text("change.nothing") + notes
    fence = "````" if "```" in analysis.change.diff else "```"
    return f"{text('change.diff')}\n\n{fence}diff\n{analysis.change.diff.rstrip()}\n{fence}\n{notes}".rstrip()


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


def _improvement(analysis: Analysis) -> str:
    text, speedup = analysis.text, analysis.recommendation.speedup
    if speedup is None:
        return text("why.none")
    heads = (text("metric"), text("head.baseline"), text("head.optimized"), text("head.improvement"))
    figures = (f"{speedup.baseline_ms:.3f} ms", f"{speedup.latency_ms:.3f} ms", f"{improvement_percent(speedup):.2f}%")
    table = Table(heads, [(text("decode_latency"), *figures)]).markdown()
    ratio = f"{text('speedup')}: {speedup.ratio:.3f}x{analysis.interval_text(speedup)}"
    return f"{table}\n\n{ratio}\n\n{text('formula')}"


def _options(analysis: Analysis) -> str:
    text = analysis.text
    heads = [text(f"column.{name}") for name in OPTION_COLUMNS]
    return f"{text('options_note')}\n\n{Table(heads, options_rows(analysis)).markdown()}"


def options_rows(analysis: Analysis) -> list[tuple[str, ...]]:
    """Return a row for each option, with a cell for each of ``OPTION_COLUMNS``."""
    return [_option_row(analysis, row) for row in analysis.options]


def _option_row(analysis: Analysis, row: OptionResult) -> tuple[str, ...]:
    text = analysis.text
    is_unverified = row.status is OptionStatus.PASSED and analysis.result.is_simulated
    status = text("status.simulated" if is_unverified else f"status.{row.status}")
    if row.trial is not None and row.trial == analysis.recommendation.trial:
        status = f"{status} ({text('same_as_winner')})"
    if row.detail and row.status not in (OptionStatus.PASSED, OptionStatus.SLOWER):
        status = f"{status}: {row.detail}"
    head = (option_text(text, row.option), "-" if row.trial is None else str(row.trial), status)
    if (speedup := row.speedup) is None:
        return (*head, "-", "-", "-", "-", "-")
    final = f"{row.final.ratio:.3f}x" if row.final else "-"
    figures = (f"{speedup.latency_ms:.3f} ms", f"{speedup.baseline_ms:.3f} ms", f"{speedup.ratio:.3f}x")
    return (*head, *figures, f"{improvement_percent(speedup):.2f}%", final)


def _usage(analysis: Analysis) -> str:
    text, result = analysis.text, analysis.result
    lines = [text("usage.decode_only")]
    if analysis.plan:
        lines.append(text("usage.plan", plan=analysis.plan))
    lines.append(text("usage.study", study=table_cell(result.study), folder=result.folder))
    commands = [f"# {text(command.purpose)}\n{command.line}" for command in analysis.commands]
    return "\n".join(f"- {line}" for line in lines) + "\n\n```bash\n" + "\n".join(commands) + "\n```"


def _json(value: dict[str, Any]) -> str:
    return json.dumps(finite(value), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
