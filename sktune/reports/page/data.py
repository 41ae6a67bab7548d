"""The page's data as JSON: what its script filters, shows on hover and compares, and what programs may read."""

import json
from typing import Any

from sktune.core.outcome import Reason
from sktune.core.plain_data import finite
from sktune.core.plan import Options, Plan, options_text
from sktune.core.printable import printable, shortened
from sktune.reports.figures.compared import KEYS
from sktune.reports.plan_picture import pattern_at
from sktune.reports.shown import Shown

FORMAT = 1
MAX_DETAIL = 240
WORDS = ("trial", "simulated", "copied", "copy", "filter.shown", "live.changed", "live.lost", "live.on",
         "compared.more", "ms_per_step")  # fmt: skip
"""Words that the script needs."""
OUTCOMES = ("complete", *Reason)
MAX_PERIOD = 12
"""Most scopes in a pattern that repeats."""


def page_data(shown: Shown) -> str:
    """Return the data as JSON that can stand in a script element.

    ``plans`` holds each distinct plan once, as ``gap.length.options`` for each scope: the units that it lies after the
    scope before it, its number of units, and the index of its options. Groups of scopes are separated by ``;``, and
    ``*n`` repeats one. ``trials`` refers to plans by index.
    """
    encoder = _Encoder(shown)
    trials = [encoder.trial(number) for number in shown.records]
    facts = shown.result.facts
    data = {
        "format": FORMAT,
        "study": shown.result.study,
        "model": facts.description,
        "simulated": shown.result.is_simulated,
        "summary": shown.result.summary() | {"plan": None},
        "fingerprint": dict(facts.fingerprint),
        "units": [unit.name for unit in shown.layout.units] if shown.layout else [],
        "options": [options_text(options) for options in encoder.options],
        "plans": encoder.texts,
        "trials": trials,
        "workers": list(encoder.workers),
        "words": {key: shown.say(key, **{name: "{" + name + "}" for name in ("shown", "all", "count")})
                  for key in (*WORDS, *(f"compared.{key}" for key in KEYS), *(f"outcome.{key}" for key in OUTCOMES))},
    }  # fmt: skip
    text = json.dumps(finite(data), ensure_ascii=False, separators=(",", ":"), default=str, allow_nan=False)
    # "<" could end the element, and the separators end a line of a script in old engines.
    return printable(text).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


class _Encoder:
    """Encodes trials and plans, each distinct plan and set of options once."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        units = shown.layout.units if shown.layout else ()
        self._position = {unit.name: index for index, unit in enumerate(units)}
        self.options: dict[Options, int] = {(): 0}
        self.workers: dict[str, int] = {}
        self._plans: dict[Plan, int] = {}
        self.texts: list[dict[str, Any]] = []

    def trial(self, number: int) -> dict[str, Any]:
        """Return a trial's values; those that are empty are left out."""
        shown, record = self._shown, self._shown.records[number]
        outcome = record.outcome
        speedup = outcome.speedup if outcome else None
        values = {
            "n": number,
            "o": shown.origin(record),
            "r": str(outcome.reason or "complete") if outcome else "",
            "s": round(speedup.ratio, 5) if speedup else None,
            "ci": [round(bound, 5) for bound in speedup.ci95] if speedup and speedup.ci95 else None,
            "b": round(speedup.baseline_ms, 4) if speedup else None,
            "ms": round(speedup.latency_ms, 4) if speedup else None,
            "f": self._final(number),
            "p": self._plan(record.judged_plan),
            "w": self.workers.setdefault(shown.result.workers.name_of(record), len(self.workers)),
            "d": shortened(outcome.detail, MAX_DETAIL) if outcome else "",
        }
        return {key: value for key, value in values.items() if value not in (None, "")}

    def _final(self, number: int) -> dict[str, Any] | None:
        """Return a plan's figures in the final comparison; None if it was not in it."""
        result = self._shown.result
        speedup = next((result.final_speedup(row) for row in result.final if row.name == str(number)), None)
        if speedup is None:
            return None
        ci95 = {"ci": [round(bound, 5) for bound in speedup.ci95]} if speedup.ci95 else {}
        return {
            "s": round(speedup.ratio, 5),
            "b": round(speedup.baseline_ms, 4),
            "ms": round(speedup.latency_ms, 4),
            **ci95,
        }

    def _plan(self, plan: Plan) -> int:
        if plan not in self._plans:
            self._plans[plan] = len(self.texts)
            self.texts.append(
                {"name": self._shown.name(plan), "k": len(plan.scopes), "s": self._scopes(plan),
                 **({"o": options_text(plan.options)} if plan.options else {})}
            )  # fmt: skip
        return self._plans[plan]

    def _scopes(self, plan: Plan) -> str:
        reached, pieces = 0, list[str]()
        for scope in plan.scopes:
            if scope.first not in self._position or scope.last not in self._position:
                continue
            first, last = self._position[scope.first], self._position[scope.last]
            options = self.options.setdefault(scope.options, len(self.options))
            pieces.append(f"{first - reached}.{last - first + 1}.{options}")
            reached = last + 1
        return _repeated(pieces)


def _repeated(pieces: list[str]) -> str:
    """Return pieces in groups separated by ``;``; a pattern that repeats is one group, with its number of times."""
    groups: list[str] = []
    at = 0
    while at < len(pieces):
        period, times = pattern_at(pieces, at, longest=MAX_PERIOD, least=2)
        group = " ".join(pieces[at : at + period])
        if times > 1:
            groups.append(f"{group}*{times}")
        elif groups and "*" not in groups[-1]:
            groups[-1] += f" {group}"
        else:
            groups.append(group)
        at += period * times
    return ";".join(groups)
