"""The verdict: which plan won, by how much, how sure that is, and what to do next."""

import re
import shlex

from markupsafe import Markup

from sktune.core.files import real_path
from sktune.core.outcome import BASELINE, BASELINE_REPEAT, Outcome, Speedup
from sktune.core.printable import shortened
from sktune.reports.application import apply_block
from sktune.reports.figure import Figure
from sktune.reports.markup import EMPTY, element, joined
from sktune.reports.plan_names import REFERENCES
from sktune.reports.plan_output import verified_line
from sktune.reports.shown import Shown
from sktune.reports.study import UNKNOWN_GAIN
from sktune.study.result import BEST_PLAN
from sktune.targets import Application

MAX_CAUSES = MAX_TIES = 3
MAX_INCONSISTENCY = 0.05


def verdict(shown: Shown) -> Figure:
    """Return the card at the top of the page."""
    result, say = shown.result, shown.say
    head, facts = element("div", *_headline(shown), class_="big"), element("dl", *_facts(shown), class_="facts")
    warning = element("p", say("verdict.doubtful"), class_="warning") if _is_doubtful(shown) else None
    card = element("div", head, warning, facts, _next_step(shown), class_="card")
    notes = [say("verdict.simulated")] if result.is_simulated and result.trials else []
    if result.winner and not result.is_simulated and _is_inconsistent(result.winner.speedup):
        notes.append(say("verdict.disturbed"))
    if result.model_difference:
        notes.append(say("verdict.model_difference", difference=result.model_difference))
    return Figure(say("verdict.title"), "", card, notes=tuple(notes))


def _is_inconsistent(speedup: Speedup) -> bool:
    """Whether the ratio of the medians is not the speedup, within its interval and what a reader would call equal."""
    low, high = speedup.bounds
    ratio = speedup.baseline_ms / speedup.latency_ms
    return not low <= ratio <= high or abs(ratio / speedup.ratio - 1.0) > MAX_INCONSISTENCY


def _headline(shown: Shown) -> list[Markup]:
    result, say = shown.result, shown.say
    if result.winner is None:
        key = "failed" if result.has_failed else "none" if result.verdict else "running" if result.trials else "empty"
        return [element("strong", say(f"verdict.{key}"), class_="none"), *_so_far(shown)]
    speedup = result.winner.speedup
    doubt = say("verdict.interval", interval=shown.interval(speedup)) if speedup.ci95 else say("simulated")
    return [
        element("strong", f"{speedup.ratio:.3f}×", class_="none" if _is_doubtful(shown) else None),
        element("span", shown.name(result.winner.plan), class_="name"),
        element("span", _latencies(shown, speedup), class_="figures"),
        element("span", doubt, class_="figures"),
    ]


def _is_doubtful(shown: Shown) -> bool:
    """Whether the winner's gain is smaller than its doubt, or than what a copy of the baseline appeared to gain."""
    result = shown.result
    if result.winner is None or result.is_simulated:
        return False
    speedup, again = result.winner.speedup, _copy(shown)
    low, high = speedup.bounds
    gain = speedup.ratio - 1.0
    return high - low > 2.0 * gain or (again is not None and abs(again.ratio - 1.0) > gain / 2.0)


def _copy(shown: Shown) -> Speedup | None:
    """Return the figures of the baseline's second copy in the final comparison."""
    return next((row.speedup for row in shown.result.final if row.name == BASELINE_REPEAT), None)


def _latencies(shown: Shown, speedup: Speedup) -> str:
    """Return the latencies before and after, if their ratio is the speedup; otherwise the share that is saved."""
    if _is_inconsistent(speedup) and not shown.result.is_simulated:
        return shown.say("verdict.saves", share=f"{1 - 1 / speedup.ratio:.1%}")
    return f"{speedup.baseline_ms:.3f} → {speedup.latency_ms:.3f} {shown.say('ms_per_step')}"


def _alternatives(shown: Shown) -> str:
    """Return the plans that tie with the winner, and what there is without sktune."""
    result, say = shown.result, shown.say
    ties = result.verdict.ties if result.verdict else ()
    listed = ", ".join(
        f"{shown.named(shown.records[plan.number])} {plan.speedup.ratio:.3f}×"
        for plan in ties[:MAX_TIES] if plan.number in shown.records
    ) + (", …" if len(ties) > MAX_TIES else "")  # fmt: skip
    parts = [say("verdict.ties", ties=say.counted(len(ties), "plan"), listed=listed)] if ties else []
    for row in result.final:
        if row.name in REFERENCES and row.name not in (BASELINE, BASELINE_REPEAT) and row.speedup:
            bits = say("verdict.bits_equal" if row.bit_identical else "outcome.mismatch")
            parts.append(f"{say(REFERENCES[row.name])} {row.speedup.ratio:.3f}× ({bits})")
    return "; ".join(parts)


def _so_far(shown: Shown) -> list[Markup]:
    """Return the best plan of a search that has not reached its verdict."""
    if shown.result.verdict or not shown.best:
        return []
    record = shown.best[0]
    speedup = shown.speedup_of(record)
    figure = f"{speedup.ratio:.3f}× [{shown.interval(speedup)}]" if speedup else ""
    return [element("span", shown.say("verdict.so_far", name=shown.named(record), figure=figure), class_="figures")]


def _facts(shown: Shown) -> list[Markup]:
    result, say = shown.result, shown.say
    facts, made = result.facts, result.facts.fingerprint
    pruned = ", ".join(f"{count} {say('outcome.' + reason)}" for reason, count in result.pruned().items() if count)
    versions = ", ".join(
        f"{name} {made[name]}" for name in ("sktune", "torch", "torch_npu", "cann", "transformers", "python")
        if made.get(name) and made[name] != "not installed"
    )  # fmt: skip
    ended = max((record.ended for record in result.trials if record.ended), default=None)
    entries = [
        ("bits", _bits(shown)),
        ("plan", shown.options(result.winner.plan) or say("no_options") if result.winner else ""),
        ("others", _alternatives(shown)),
        ("left", _left(shown)),
        ("model", facts.description),
        ("trials", say("verdict.trials_text", trials=len(result.trials), complete=result.complete,
                       pruned=pruned or say("none"))),
        ("noise", _noise(shown)),
        ("time", say("verdict.time_text", seconds=f"{facts.seconds:,.0f}", final=f"{facts.final_s:,.0f}")
                 if facts.seconds else ""),
        ("device", " / ".join(filter(None, (made.get("backend"), made.get("device"))))),
        ("versions", versions),
        ("when", f"{ended:%Y-%m-%d %H:%M}" if ended else ""),
    ]  # fmt: skip
    return [joined((element("dt", say(f"verdict.{key}")), element("dd", value))) for key, value in entries if value]


def _left(shown: Shown) -> str:
    result = shown.result
    if result.verdict is None or result.gain_left is None:
        return ""
    if result.gain_left > UNKNOWN_GAIN:
        return shown.say("verdict.left_unknown")
    return shown.say("verdict.left_text", share=f"{result.gain_left:.1%}")


def _bits(shown: Shown) -> str:
    result, say = shown.result, shown.say
    if not result.trials:
        return ""
    if result.is_simulated:
        return say("verdict.bits_simulated")
    if result.winner is None:
        return ""
    if result.verification is None:
        return verified_line(result)
    checked = result.verification
    exact = " " + say("verdict.exact") if checked.is_exact else ""
    return say("verdict.bits_identical", steps=f"{checked.steps:,}", one_in=f"{checked.one_in:,}") + exact


def _noise(shown: Shown) -> str:
    result, say = shown.result, shown.say
    if result.is_simulated or result.comparison is None:
        return ""
    parts = [say("verdict.floor", floor=f"{result.comparison.noise_floor:.2%}", processes=result.processes)]
    if result.repeatability is not None:
        parts.append(say("verdict.repeatability", limit=f"{result.repeatability:.1%}"))
    if again := _copy(shown):
        parts.append(say("verdict.copy", ratio=f"{again.ratio:.3f}"))
    if disturbed := sum(bool(record.outcome and record.outcome.noise) for record in result.trials):
        parts.append(say("verdict.disturbed_trials", disturbed=disturbed, trials=len(result.trials)))
    return "; ".join(parts)


def _causes(shown: Shown) -> Markup:
    """Return the commonest causes of failures, each with a trial that shows it."""
    alike: dict[tuple[str, str], list[Outcome]] = {}
    for record in shown.result.trials:
        if record.outcome and record.outcome.reason:
            cause = re.sub(r"\d+", "0", record.outcome.detail)
            alike.setdefault((record.outcome.reason, cause), []).append(record.outcome)
    commonest = sorted(alike.values(), key=len, reverse=True)[:MAX_CAUSES]
    return element("ul", *(element("li", _cause(shown, outcomes)) for outcomes in commonest))


def _cause(shown: Shown, outcomes: list[Outcome]) -> Markup:
    first = outcomes[0]
    trials = shown.say.counted(len(outcomes), "trial")
    line = f"{trials}: {shown.ended(first)}. {shortened(first.detail, 300)}"
    return joined((line, " ", element("code", first.log) if first.log else None))


def _next_step(shown: Shown) -> Markup:
    """Return what a reader should do now, with the command or the code."""
    result, say = shown.result, shown.say
    if result.winner is None:
        key = "failed" if result.has_failed else "leave" if result.is_compared else "continue"
        advice = element("p", element("b", say("next.title")), " ", say(f"next.{key}"))
        return element("div", advice, _causes(shown) if key == "failed" else None, class_="next")
    starts_program = result.usage.application is Application.AT_START
    file = str(real_path(result.folder / BEST_PLAN)) if starts_program else BEST_PLAN
    block = apply_block(result, result.winner.plan, file).strip().split("\n")[1:-1]
    if starts_program and result.facts.directory:
        block.insert(0, f"cd {shlex.quote(result.facts.directory)}")
    recheck = element("p", say("next.recheck"), " ", element("code", f"sktune recheck {BEST_PLAN}"))
    return element(
        "div",
        element("p", element("b", say("next.title")), " ", say("next.apply", file=BEST_PLAN)),
        element("pre", "\n".join(block), tabindex="0"),
        EMPTY if result.is_simulated or result.facts.target is None else recheck,
        class_="next",
    )
