"""An analysis: what was asked, what the study answered, and what follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sktune.analysis.decision import Findings, ScopeOption, Step, Walk
from sktune.analysis.guide_options import OptionResult
from sktune.analysis.model_folder import Place, PlannedChange
from sktune.analysis.recommendation import Recommendation, Risk
from sktune.analysis.sentences import Sentences
from sktune.core.outcome import Speedup
from sktune.study.result import SearchResult


@dataclass(frozen=True, slots=True)
class Command:
    """What to run next; ``purpose`` is a key of the sentences."""

    purpose: str
    line: str


@dataclass(frozen=True)
class Analysis:
    """What `sktune analyze` has found.

    Attributes:
        model: what was searched on, as the user named it.
        words: the sentences of the user's language.
        backend_told: which backend was chosen, and why.
        batch: sequences decoded together; None where that is not known.
        result: the study.
        findings, walk: what the guide's tree was answered from, and where it leads.
        profile: figures of the profile, as the study keeps them; None without one.
        options: of the guide, each with its result.
        recommendation, plan: what to do, and the plan file; None where the answer is "no scope".
        place, change: where the plan shall go, and what it changes there; None without a model folder.
        risks: reasons to trust this less.
        commands: what to run next.
        files: what was written.
    """

    model: str
    words: Sentences
    backend_told: str
    batch: int | None
    result: SearchResult
    findings: Findings
    walk: Walk
    profile: Mapping[str, Any] | None
    options: tuple[OptionResult, ...]
    recommendation: Recommendation
    plan: Path | None
    place: Place | None
    change: PlannedChange | None
    risks: tuple[Risk, ...]
    commands: tuple[Command, ...]
    files: tuple[Path, ...] = ()

    @property
    def is_stand_in(self) -> bool:
        """Whether something else than an NPU, or a model of one, was measured."""
        return not self.result.is_simulated and not self.result.is_of_npu

    @property
    def made_with(self) -> Mapping[str, str]:
        """The study's fingerprint."""
        return self.result.facts.fingerprint

    @property
    def figures_told(self) -> str:
        """What the figures are worth, in one sentence."""
        device = self.made_with.get("device", "?")
        if self.result.is_simulated:
            return self.words("figures.sim")
        return self.words("figures.stand_in" if self.is_stand_in else "figures.npu", device=device)

    @property
    def reason_told(self) -> str:
        """Why this is recommended."""
        told = self.recommendation
        if told.speedup is None:
            return self.words(told.why)
        shown = self.interval_told(told.speedup)
        values = {"choice": option_told(self.words, self.walk.choice), "speedup": f"{told.speedup.ratio:.3f}"}
        reason = self.words(told.why, interval=shown, **values)
        return f"{reason} {self._better_left()}".strip()

    def _better_left(self) -> str:
        """Return what a first attempt leaves on the table."""
        winner = self.result.winner
        if self.recommendation.why == "why.winner" or not winner or winner.number == self.recommendation.trial:
            return ""
        option = next((row.option for row in self.options if row.trial == winner.number), ScopeOption.CUSTOM)
        speedup = f"{winner.speedup.ratio:.3f}"
        return self.words("better_left", option=option_told(self.words, option), speedup=speedup)

    def interval_told(self, speedup: Speedup) -> str:
        """Return a speedup's interval, or that it is simulated."""
        if speedup.ci95 is None:
            return self.words("simulated")
        low, high = speedup.ci95
        return self.words("interval", low=f"{low:.3f}", high=f"{high:.3f}")

    def summary(self) -> dict[str, Any]:
        """Return the closing event's values."""
        return {
            "study": self.result.study,
            "goal": self.findings.goal,
            "language": self.words.language,
            "simulated": self.result.is_simulated,
            "stand_in": self.is_stand_in,
            **walk_summary(self.words, self.findings, self.walk),
            "profile": dict(self.profile) if self.profile else None,
            "options": [{**row.to_dict(), "name": option_told(self.words, row.option)} for row in self.options],
            "recommendation": {
                **self.recommendation.to_dict(self.result.is_verified),
                "name": option_told(self.words, self.recommendation.option),
                "reason": self.reason_told,
                "plan": str(self.plan) if self.plan else None,
            },
            "risks": [{"risk": risk.name, "text": risk.text} for risk in self.risks],
            "next": [command.line for command in self.commands],
            "files": [str(path) for path in self.files],
        }


def walk_summary(words: Sentences, findings: Findings, walk: Walk) -> dict[str, Any]:
    """Return a walk through the tree as plain values, with a sentence for each step."""
    return {
        **findings.to_dict(),
        "decision": [
            {
                "question": step.question,
                "answer": step.answer,
                "leads_to": step.leads_to,
                "text": step_told(words, findings, step),
            }
            for step in walk.steps
        ],
        "guide_choice": walk.choice,
    }


def walk_told(words: Sentences, findings: Findings, walk: Walk) -> list[str]:
    """Return the walk in lines for people: the shares of the step, the questions, and where they lead."""
    lines = []
    shares = findings.shares
    if shares.largest:
        values = {name: f"{getattr(shares, name):.1%}" for name in ("attention", "moe", "ffn", "other")}
        lines.append(words("tree.shares", source=words(f"source.{shares.source}"), **values))
        lines.append(words("tree.largest", module=words(f"module.{shares.largest}")))
    lines += [step_told(words, findings, step) for step in walk.steps]
    return [*lines, words("tree.choice", option=option_told(words, walk.choice))]


def step_told(words: Sentences, findings: Findings, step: Step) -> str:
    """Return a question with its answer, and where it leads."""
    shares = findings.shares
    kinds = ", ".join(f"{kind} ({count})" for kind, count in findings.kinds.items()) or "-"
    values = {name: f"{getattr(shares, name):.1%}" for name in ("attention", "moe", "ffn")}
    told = words(f"tree.{step.question}.{step.answer}", kinds=kinds, **values)
    if step.leads_to is None:
        return told
    return f"{told} → {option_told(words, step.leads_to)}"


def option_told(words: Sentences, option: ScopeOption | None) -> str:
    """Return an option's name."""
    return words(f"option.{option or 'none'}")
