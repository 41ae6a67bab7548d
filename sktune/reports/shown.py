"""What figures show: a study's result, what was learned from it, and the words of a language."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from sktune.core.language import Sentences
from sktune.core.layout import Layout
from sktune.core.outcome import Outcome, Speedup, excludes_any
from sktune.core.plan import Option, Plan, options_text
from sktune.reports.plan_names import ENGLISH, plan_name
from sktune.reports.why import Why, learned_from
from sktune.samplers import strategy_names
from sktune.study.records import TrialRecord, incumbent_first
from sktune.study.result import SearchResult

if TYPE_CHECKING:
    from sktune.profiling.analysis import Profile

MAX_PLANS = 5
"""Plans that are drawn beneath each other: the winner and its runners-up."""


@dataclass(frozen=True)
class Shown:
    """The content of figures.

    Attributes:
        result: of the study.
        say: the words.
        profiles: of the baseline's step and of the winner's, as far as they are known.
    """

    result: SearchResult
    say: Sentences = ENGLISH
    profiles: "tuple[Profile, ...]" = ()

    @cached_property
    def why(self) -> Why | None:
        """What was learned; None before anything was measured."""
        return learned_from(self.result)

    @property
    def speedup(self) -> str:
        """The name of a speedup."""
        return self.say("speedup_simulated" if self.result.is_simulated else "speedup")

    @property
    def ms(self) -> str:
        """The unit of latencies."""
        return self.say("simulated_ms" if self.result.is_simulated else "ms")

    @property
    def layout(self) -> Layout | None:
        """The model's units; None before the first trial."""
        return self.result.facts.layout

    @cached_property
    def records(self) -> Mapping[int, TrialRecord]:
        """The finished trials by number."""
        return {record.number: record for record in self.result.trials}

    @cached_property
    def best(self) -> Sequence[TrialRecord]:
        """The best plans: the winner first, then the other finalists, then by their trials' figures."""
        finalists = sorted(
            ((row.name, speedup.ratio) for row in self.result.final if (speedup := self.result.final_speedup(row))),
            key=lambda each: -each[1],
        )
        winner = [self.result.winner.number] if self.result.winner else []
        numbers = [*winner, *(int(name) for name, _ in finalists if name.isdigit())]
        numbers += [record.number for record in incumbent_first(self.result.trials)]
        known = dict.fromkeys(number for number in numbers if number in self.records)
        distinct = {self.records[number].judged_plan: self.records[number] for number in reversed(known)}
        return [self.records[number] for number in known if self.records[number] in distinct.values()][:MAX_PLANS]

    @cached_property
    def samplers(self) -> frozenset[str]:
        """The names of all samplers; other origins are starting points."""
        return frozenset(strategy_names())

    @cached_property
    def common_options(self) -> frozenset[tuple[str, Option]]:
        """The options that every scope of every plan has."""
        scopes = [set(scope.options) for record in self.result.trials for scope in record.judged_plan.scopes]
        return frozenset(set.intersection(*scopes)) if scopes else frozenset()

    def speedup_of(self, record: TrialRecord) -> Speedup | None:
        """Return a plan's speedup in the final comparison, or else in its trial."""
        for row in self.result.final:
            if row.name == str(record.number):
                return self.result.final_speedup(row)
        return record.outcome.speedup if record.outcome else None

    def is_finalist(self, record: TrialRecord) -> bool:
        """Whether the plan was measured in the final comparison."""
        return any(row.name == str(record.number) and row.speedup for row in self.result.final)

    def name(self, plan: Plan) -> str:
        """Return a plan's name by its shape."""
        return plan_name(plan, self.layout, self.say)

    def named(self, record: TrialRecord) -> str:
        """Return a plan's name with its trial, and with those of its options that not all plans have."""
        plan = record.judged_plan
        of_scopes = dict.fromkeys(option for scope in plan.scopes for option in scope.options)
        options = options_text(tuple(each for each in (*of_scopes, *plan.options) if each not in self.common_options))
        name = self.name(record.judged_plan) + (f"; {options}" if options else "")
        return self.say("shape.of_trial", name=name, number=record.number)

    def ended(self, outcome: Outcome) -> str:
        """Return what became of a trial, in a word."""
        return self.say(f"outcome.{outcome.reason or 'complete'}")

    def origin(self, record: TrialRecord) -> str:
        """Return what proposed a plan."""
        if record.is_repeat:
            return self.say("origin.repeat")
        return self.say("origin.probe") if record.is_probe else record.origin

    def interval(self, speedup: Speedup | None) -> str:
        """Return a speedup's interval; empty without one."""
        if speedup is None:
            return ""
        if speedup.ci95 is None:
            return self.say("simulated")
        if not excludes_any(speedup.ratio, speedup.ci95):
            return self.say("none")
        return f"{speedup.ci95[0]:.3f} – {speedup.ci95[1]:.3f}"

    def options(self, plan: Plan) -> str:
        """Return the options of a plan's scopes and of the step."""
        of_scopes = options_text(tuple(dict.fromkeys(option for scope in plan.scopes for option in scope.options)))
        of_step = options_text(plan.options)
        return "; ".join(filter(None, (of_scopes, of_step)))
