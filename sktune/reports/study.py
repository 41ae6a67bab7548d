"""Reports: ``best_plan.yaml``, ``trials.csv`` and ``report.md``, from a study's record and without a device."""

import shlex
import shutil
from math import expm1, log
from pathlib import Path
from typing import Any

import pandas as pd

from sktune.backends.options import SUPERKERNEL_BACKENDS, step_options
from sktune.core.errors import StudyError
from sktune.core.outcome import FinalRow, Speedup
from sktune.core.plan import Plan
from sktune.core.plan_file import ARTIFACTS, write_plan
from sktune.measure.confidence_sequence import FARTHEST
from sktune.measure.final_comparison import floor_looks
from sktune.measure.noise_floor import drift
from sktune.measure.winner import AGAIN, ENOUGH_PROCESSES
from sktune.source.yaml_flag import FLAG
from sktune.study.result import BEST_PLAN, SearchResult
from sktune.study.study import TrialRecord

REFERENCES = {
    "baseline": "baseline (no scope, kernel by kernel)",
    AGAIN: "the baseline, compiled again",
    "uncompiled": "the model uncompiled",
    "torch.compile(mode='max-autotune')": 'torch.compile(mode="max-autotune") of the whole step',
}


STAGES = ("compile", "verify", "measure", "observe")


def write(result: SearchResult, folder: Path) -> list[Path]:
    """Write the files into ``folder`` and return their paths.

    A plan file is written only where a plan won; one of an earlier verdict is removed.

    Raises:
        StudyError: the folder cannot be written.
    """
    files = {"trials.csv": trials_csv(result), "report.md": report_markdown(result)}
    if result.winner:
        files[BEST_PLAN] = plan_yaml(result)
    try:
        if not result.winner:
            (folder / BEST_PLAN).unlink(missing_ok=True)
        if not result.delivery:
            shutil.rmtree(folder / ARTIFACTS, ignore_errors=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as failure:
        raise StudyError(
            f"{folder} cannot be written ({failure.strerror}); free it and run `sktune report`"
        ) from failure
    return [folder / name for name in files]


def plan_yaml(result: SearchResult) -> str:
    """Return the winner as a plan file, with its evidence."""
    return write_plan(
        result.best_plan,
        evidence(result),
        plan_backend(result),
        len(result.facts.get("layout", {}).get("layers", ())),
        result.facts.get("decode"),
        target=None if result.is_simulated else result.facts.get("target"),
        delivery=result.delivery,
    )


def evidence(result: SearchResult) -> dict[str, Any]:
    """Return what speaks for the winner, as plain values."""
    winner = result.winner
    assert winner is not None
    return {
        "target": result.facts.get("description", ""),
        "study": result.study,
        "trial": winner.number,
        "trials": len(result.trials),
        "baseline_ms": round(winner.speedup.baseline_ms, 4),
        "latency_ms": round(winner.speedup.latency_ms, 4),
        "speedup": round(winner.speedup.ratio, 4),
        "ci95": None if result.is_simulated else [round(bound, 4) for bound in winner.speedup.ci95],
        "rounds": winner.speedup.rounds,
        "processes": len(winner.speedups),
        **(
            {}
            if result.is_simulated or not result.comparison
            else {"noise_floor": round(result.comparison.noise_floor, 5)}
        ),
        **({"simulated": True} if result.is_simulated else {}),
        "bit_identical": True if result.is_verified else None,
        "verified": verified_line(result),
        "verification": result.verification.summary() if result.verification else None,
        **({"baseline_differs_from_model": result.model_difference} if result.model_difference else {}),
        **({} if result.is_compared else {"final_comparison": "not made: the time budget ended before"}),
        "code_digest": _code_digest(result, winner.number),
        "tied_trials": [tie.number for tie in result.verdict.ties] if result.verdict else [],
        "fingerprint": dict(result.facts.get("fingerprint", {})),
    }


def verified_line(result: SearchResult) -> str:
    """Return what was compared between the winner and the baseline, and what follows from it."""
    if not result.is_verified:
        return "not done: the figures are simulated"
    if result.verification is None:
        return str(result.facts.get("verified", "the trial's short replays alone"))
    return str(result.verification.summary()["text"])


def model_line(result: SearchResult) -> str:
    """Return how the baseline differs from the model without a compiler; empty where it does not."""
    if not result.model_difference:
        return ""
    return (
        "The baseline itself is not the uncompiled model, bit for bit "
        f"({table_cell(result.model_difference)}): equal bits are those of the compiled model."
    )


def _code_digest(result: SearchResult, number: int) -> str:
    """Return the code's identity in the final comparison, or in the trial where there was none."""
    final = [row.code_digest for row in result.final if row.name == str(number)]
    return (
        final + [record.outcome.code_digest for record in result.trials if record.number == number and record.outcome]
    )[0]


def trials_csv(result: SearchResult) -> str:
    """Return one row for each trial: outcome, figures, parameters."""
    rows = [_row(record, result.is_simulated) for record in result.trials]
    table: str = pd.DataFrame(rows).to_csv(index=False)
    return table


def _row(record: TrialRecord, is_simulated: bool) -> dict[str, Any]:
    outcome = record.outcome
    assert outcome is not None
    speedup = outcome.speedup
    low, high = speedup.ci95 if speedup and not is_simulated else (None, None)
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


def verdict_line(result: SearchResult) -> str:
    """Return the answer in one line."""
    winner = result.winner
    if result.verdict is None:
        return "The search has not come to its final comparison; run the same command again."
    if winner is None and _has_averages_alone(result):
        return (
            "No verdict: a single average for each plan has no interval. Have the program log a line for each decode "
            "step, or give the recipe `latency: steps`; until then keep the model as it is."
        )
    if winner is None:
        return f"No scope: no plan beats the baseline with confidence. Keep the model as it is.{_unfinished(result)}"
    if result.is_simulated:
        ratio = f"{winner.speedup.ratio:.3f} times as fast as the baseline"
        return f"Trial {winner.number} is {ratio}, simulated; verification was not done.{_doubt(result)}"
    low, high = winner.speedup.ci95
    return (
        f"Trial {winner.number} is {winner.speedup.ratio:.3f} times as fast as the baseline "
        f"(95% interval {low:.3f} to {high:.3f}); its bits: {verified_line(result)}.{_doubt(result)}"
    )


def _has_averages_alone(result: SearchResult) -> bool:
    """Whether plans were measured, and no figure of them has an interval."""
    figures = (
        [row.speedup for row in result.final if row.name.isdigit()]
        if result.final
        else [record.outcome.speedup for record in result.trials if record.outcome and record.outcome.is_complete]
    )
    measured = [figure for figure in figures if figure]
    return bool(measured) and not result.is_simulated and not any(map(_has_interval, measured))


def _has_interval(speedup: Speedup) -> bool:
    return log(speedup.ci95[1] / speedup.ratio) <= 0.99 * FARTHEST


def _unfinished(result: SearchResult) -> str:
    return "" if result.is_compared else " The time budget ended before more was known; run the same command again."


def _doubt(result: SearchResult) -> str:
    if result.is_compared:
        return ""
    return " There was no time for a final comparison: this is the trial's own figure, and the best of many flatters."


def proxy_line(result: SearchResult) -> str:
    """Return in one line how well fewer layers ranked the plans that were carried over."""
    proxy = result.proxy
    assert proxy is not None
    passed = len(result.proxy_ranking())
    ranked = result.proxy_rank_correlation
    told = "too few to rank" if ranked is None else f"Spearman's rank correlation of their speedups {ranked:.2f}"
    return (
        f"Found with {proxy.layers} layers of each kind in {proxy.trials} trials (study {table_cell(proxy.study)}). Of "
        f"{len(proxy.carried)} plans carried over, {passed} passed on the whole model: {told}."
    )


def report_markdown(result: SearchResult) -> str:
    """Return the report for people."""
    summary = result.summary()
    pruned = ", ".join(f"{count} {reason}" for reason, count in summary["pruned"].items() if count) or "none"
    parts = [
        f"# {table_cell(result.study)}\n",
        f"{table_cell(result.facts.get('description', ''))}\n",
        f"**{verdict_line(result)}**\n",
        *([f"{model_line(result)}\n"] if result.model_difference else []),
        f"{summary['trials']} trials: {summary['complete']} complete; pruned: {pruned}.\n",
        f"Space: {result.facts.get('space_size', '?')} plans. {_time_spent(result)}\n",
    ]
    if result.proxy:
        parts.append(f"{proxy_line(result)}\n")
    if result.final:
        parts += [
            "## Final comparison\n",
            SIMULATED if result.is_simulated else _FINAL_NOTE.format(intervals=_of_processes(result)),
            _final_table(result),
            _ties(result),
            _doubts(result),
        ]
    if result.winner:
        plan = result.winner.plan
        parts += ["## The plan\n", _plan_table(plan), _fusion(result), how_to_apply(result, plan)]
    parts += ["## Trials\n", _trials_table(result), "## Made with\n", _fingerprint(result)]
    return "\n".join(part for part in parts if part)


SIMULATED = (
    "All figures are simulated: a model of Atlas A3 computed them (docs/explanation/simulation.md). Its dispatch "
    "gap, heads and barriers are assumptions until `sktune calibrate` fits them to a profile, and gains grow with them."
    " Measure before you rely on any.\n"
)
_FINAL_NOTE = (
    "The best trials were measured again in turn, and the fastest of them once more in fresh processes, verified again "
    "in each: these figures are the ones to quote. A trial's own figure flatters the best of many. {intervals}\n"
)


def _of_processes(result: SearchResult) -> str:
    """Return how many processes there were, and what intervals hold."""
    count = result.processes
    held = (
        "what processes are known to differ by (docs/explanation/measurement.md), and that the best of several was "
        "picked"
    )
    if count >= ENOUGH_PROCESSES:
        return (
            f"Intervals hold what these {count} processes differed by, {held}; those of the last two rows are of one "
            "process."
        )
    processes = "1 process" if count == 1 else f"{count} processes"
    return f"There was time for {processes} only. Intervals hold {held}: a gain has to stand out from that."


def how_to_apply(result: SearchResult, plan: Plan) -> str:
    """Return how a user compiles what a trial has compiled, as Markdown."""
    if is_recipe(result):
        block = apply_block(result, plan, str((result.folder / BEST_PLAN).resolve()))
        where = f", in `{table_cell(result.facts['directory'])}`" if "directory" in result.facts else ""
        return f"\nStart the program with it{where}:\n\n{block}\n{_yaml_note(result)}"
    applied = f"\nApply it in Python, before the decode step is compiled:\n\n{apply_block(result, plan, BEST_PLAN)}\n"
    delivered = _delivered(result)
    return f"{applied}\n{delivered}" if delivered else applied


def _delivered(result: SearchResult) -> str:
    """Return whether the plan comes with its compiled code, and how to check it again."""
    if result.is_simulated or "target" not in result.facts:
        return ""
    recheck = f"`sktune recheck {BEST_PLAN}` checks code, bits and speed again, after an upgrade for instance."
    if result.delivery:
        return (
            f"The code that was verified lies in `{ARTIFACTS}`, beside the plan: on a machine of this kind `apply` "
            f"loads it and compiles no kernel anew. {recheck}\n"
        )
    problem = result.facts.get("delivery", {}).get("problem")
    return (f"It comes without compiled code ({table_cell(problem)}). " if problem else "") + f"{recheck}\n"


def _yaml_note(result: SearchResult) -> str:
    """Return in what the YAML of a recipe's runs differed from the program's own."""
    if not (changed := result.facts.get("yaml")):
        return ""
    others = "".join(f", `{table_cell(f'{name}: {value}')}`" for name, value in changed["set"].items())
    return (
        f"\nThe search had `{FLAG}: False`{others} in `{table_cell(changed['file'])}`: the plan's scopes take the "
        "place of the program's own.\n"
    )


def is_recipe(result: SearchResult) -> bool:
    """Whether a program that sktune does not own was searched."""
    return "command" in result.facts


def apply_block(result: SearchResult, plan: Plan, file: str) -> str:
    """Return a block of Markdown: what puts the plan that lies in ``file`` on, without an edit of the source."""
    if not is_recipe(result):
        return f"```python\n{apply_code(plan, plan_backend(result), file)}\n```"
    site = "PYTHONPATH=$(python3 -m sktune.launch --site)${PYTHONPATH:+:$PYTHONPATH}"
    return f"```bash\nexport {site}\nSKTUNE_PLAN={shlex.quote(file)} {result.facts['command']}\n```"


def apply_code(plan: Plan, backend: str, file: str) -> str:
    """Return the Python code with which a user compiles the plan that lies in ``file``."""
    code = [f'sktune.apply(model, "{file}")']
    compiler = '"sktune"'
    if backend == "npu":
        options = step_options(backend, plan)
        code.insert(0, "import torch_npu, torchair\n")
        code += ["config = torchair.CompilerConfig()", 'config.mode = "max-autotune"']
        code += [f"config.experimental_config.{name} = {value!r}" for name, value in options.items()]
        compiler = "torchair.get_npu_backend(compiler_config=config)"
    code.append(f"step = torch.compile(decode_step, backend={compiler}, fullgraph=True, dynamic=False)")
    return "\n".join(code)


def plan_backend(result: SearchResult) -> str:
    """Return what the plan's scopes are for: a simulated plan is one for an NPU."""
    return "npu" if result.facts.get("fingerprint", {}).get("backend") in SUPERKERNEL_BACKENDS else "inductor"


def _time_spent(result: SearchResult) -> str:
    whole, final = result.facts.get("seconds", 0.0), result.facts.get("final_seconds", 0.0)
    return f"Time: {whole:.0f} s, of which the final comparison {final:.0f} s."


def _interval(speedup: Speedup, is_simulated: bool) -> str:
    if is_simulated:
        return "simulated"
    if not _has_interval(speedup):
        return "none: too few steps, or a single average"
    return f"{speedup.ci95[0]:.3f} to {speedup.ci95[1]:.3f}"


def final_rows(result: SearchResult) -> list[tuple[str, str, str, str, str]]:
    """Return name, latency, speedup, interval and bits of each row of the final comparison."""
    return [_final_row(result, row) for row in result.final]


def _final_row(result: SearchResult, row: FinalRow) -> tuple[str, str, str, str, str]:
    name = REFERENCES.get(row.name, f"trial {row.name}")
    if result.winner and row.name == str(result.winner.number):
        name += " (winner)"
    bits = "differ" if row.speedup and row.bit_identical is False else row.verdict
    if row.bit_identical and row.name.isdigit() and (verification := result.verification_of(int(row.name))):
        bits = f"identical on {verification.steps:,} steps"
    if (speedup := result.final_speedup(row)) is None:
        return name, "-", "-", "-", bits
    interval = "-" if row.name == "baseline" else _interval(speedup, result.is_simulated)
    return name, f"{speedup.latency_ms:.3f}", f"{speedup.ratio:.3f}", interval, bits


def _final_table(result: SearchResult) -> str:
    lines = ["| | ms per step | speedup | 95% interval | bits |", "| --- | ---: | ---: | --- | --- |"]
    lines += ["| " + " | ".join(table_cell(value) for value in row) + " |" for row in final_rows(result)]
    differing = [row for row in result.final if row.bit_identical is False and row.speedup]
    notes = [
        f"\n{table_cell(REFERENCES.get(row.name, 'trial ' + row.name))}: {table_cell(row.verdict)}."
        for row in differing
    ]
    return "\n".join(lines) + "\n" + "".join(note + "\n" for note in notes)


def _ties(result: SearchResult) -> str:
    if not result.verdict or not result.verdict.ties:
        return ""
    ties = ", ".join(_tie(tie.number, tie.speedup, tie.plan) for tie in result.verdict.ties)
    return f"Cannot be told apart from the winner, and not simpler: {ties}.\n"


def _doubts(result: SearchResult) -> str:
    """Return how the figures were freed of luck, and what disturbed them."""
    comparison = result.comparison
    if comparison is None or result.is_simulated:
        return ""
    looks = floor_looks(result.facts)
    told = [f"Noise floor: the baseline seemed up to {comparison.noise_floor:.2%} from itself; no less is claimed."]
    if len(looks) > 1:
        told.append(f"From the first look at it to the last the baseline's latency changed by {drift(looks):+.1%}.")
    if result.verdict and result.verdict.optimism > 0:
        lost = -expm1(-result.verdict.optimism)
        told.append(f"The winner's figures are lowered by {lost:.2%}, for having been picked as the best.")
    disturbed = [record for record in result.trials if record.outcome and record.outcome.noise]
    if disturbed:
        told.append(f"The machine was not quiet in {len(disturbed)} of {len(result.trials)} trials (see trials.csv).")
    told += [f"Process {number}: {table_cell(noise)}." for number, noise in enumerate(comparison.noise, 1) if noise]
    return " ".join(told) + "\n"


def _tie(number: int, speedup: Speedup, plan: Plan) -> str:
    scopes, options = plan.complexity
    return f"trial {number} ({speedup.ratio:.3f}, {scopes} scopes, {options} options)"


def _plan_table(plan: Plan) -> str:
    lines = ["| first unit | last unit | options |", "| --- | --- | --- |"]
    for scope in plan.scopes:
        options = ", ".join(f"{name}={str(value).lower()}" for name, value in scope.options)
        lines.append(f"| `{table_cell(scope.first)}` | `{table_cell(scope.last)}` | {table_cell(options)} |")
    return "\n".join(lines) + "\n"


def _trials_table(result: SearchResult) -> str:
    lines = [
        "| trial | origin | scopes | outcome | speedup | 95% interval |",
        "| ---: | --- | ---: | --- | ---: | --- |",
    ]
    for record in result.trials:
        outcome = record.outcome
        assert outcome is not None
        told = "complete" if outcome.is_complete else f"{outcome.reason}: {outcome.detail}"
        ratio = f"{outcome.speedup.ratio:.3f}" if outcome.speedup else ""
        interval = _interval(outcome.speedup, result.is_simulated) if outcome.speedup else ""
        cells = (str(record.number), record.origin, str(len(record.plan.scopes)), told, ratio, interval)
        lines.append("| " + " | ".join(table_cell(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _fusion(result: SearchResult) -> str:
    """Return what the winner's scopes became, as far as the compiler told."""
    outcomes = [record.outcome for record in result.trials if result.winner and record.number == result.winner.number]
    lines = [line for outcome in outcomes if outcome for line in outcome.fusion]
    return "\n".join(["What the scopes became:\n", *(f"- {table_cell(line)}" for line in lines), ""]) if lines else ""


def _fingerprint(result: SearchResult) -> str:
    return (
        "\n".join(f"- {key}: {table_cell(value)}" for key, value in result.facts.get("fingerprint", {}).items()) + "\n"
    )


def table_cell(text: str) -> str:
    """Return ``text`` as it may stand in a Markdown table: one line, no markup of its own."""
    flat = " ".join(str(text).split())
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "\\|").replace("`", "'")
