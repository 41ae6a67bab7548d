"""An analysis: the request, the study's results, and the conclusions."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from sktune.analysis.decision import Findings, ScopeOption, TreeStep, TreeWalk
from sktune.analysis.guide_options import OptionResult, figures, option_of
from sktune.analysis.model_folder import ModelFolder, PlannedChange
from sktune.analysis.recommendation import Recommendation
from sktune.core.events.analysis import AnalysisFinished, DecisionStep, RecommendationShown, Risk
from sktune.core.events.values import ProfileFigures
from sktune.core.language import Sentences, Texts
from sktune.core.outcome import Speedup
from sktune.study.result import SearchResult

SENTENCES: Texts = yaml.safe_load(Path(__file__).with_name("sentences.yaml").read_text(encoding="utf-8"))
"""All sentences of an analysis, in both languages."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run next; ``purpose`` is a key of the sentences."""

    purpose: str
    line: str


@dataclass(frozen=True)
class Analysis:
    """The result of `sktune analyze`.

    Attributes:
        model: the model or recipe, as the user named it.
        text: sentences in the user's language.
        backend_text: which backend was chosen, and why.
        batch: sequences decoded together; None if unknown.
        result: the study.
        findings, walk: the facts that answered the guide's tree, and the path through it.
        profile: figures of the profile, as stored in the study; None without one.
        options: of the guide, each with its result.
        recommendation, plan: what to do, and the plan file; None if the answer is "no scope".
        place, change: where the plan is to be applied, and the change it makes there; None without a model folder.
        risks: reasons to trust the recommendation less.
        commands: to run next.
        files: that were written.
    """

    model: str
    text: Sentences
    backend_text: str
    batch: int | None
    result: SearchResult
    findings: Findings
    walk: TreeWalk
    profile: ProfileFigures | None
    options: tuple[OptionResult, ...]
    recommendation: Recommendation
    plan: Path | None
    place: ModelFolder | None
    change: PlannedChange | None
    risks: tuple[Risk, ...]
    commands: tuple[Command, ...]
    files: tuple[Path, ...] = ()

    @property
    def is_stand_in(self) -> bool:
        """Whether the figures come from hardware other than an NPU."""
        return not self.result.is_simulated and not self.result.is_of_npu

    @property
    def made_with(self) -> Mapping[str, str]:
        """The study's fingerprint."""
        return self.result.facts.fingerprint

    @property
    def figures_text(self) -> str:
        """How far the figures can be trusted, in one sentence."""
        device = self.made_with.get("device", "?")
        if self.result.is_simulated:
            return self.text("figures.sim")
        return self.text("figures.stand_in" if self.is_stand_in else "figures.npu", device=device)

    @property
    def reason_text(self) -> str:
        """Why this is recommended."""
        why, speedup = self.recommendation.why, self.recommendation.speedup
        if speedup is None:
            return self.text(why)
        choice, interval = option_text(self.text, self.walk.choice), self.interval_text(speedup)
        reason = self.text(why, choice=choice, speedup=f"{speedup.ratio:.3f}", interval=interval)
        winner = self.result.winner
        if why == "why.winner" or not winner or winner.number == self.recommendation.trial:
            return reason
        # A first attempt leaves a better plan unused.
        option = option_text(self.text, option_of(winner.number, self.options))
        return f"{reason} {self.text('better_left', option=option, speedup=f'{winner.speedup.ratio:.3f}')}"

    def interval_text(self, speedup: Speedup) -> str:
        """Return a speedup's interval, or that it is simulated."""
        if speedup.ci95 is None:
            return self.text("simulated")
        low, high = speedup.ci95
        return self.text("interval", low=f"{low:.3f}", high=f"{high:.3f}")

    @property
    def event(self) -> AnalysisFinished:
        """The closing event."""
        advice = self.recommendation
        return AnalysisFinished(
            study=self.result.study,
            goal=self.findings.goal,
            language=self.text.language,
            simulated=self.result.is_simulated,
            stand_in=self.is_stand_in,
            model_type=self.findings.model_type,
            kinds=self.findings.kinds,
            shares=self.findings.shares,
            decision=decision_steps(self.text, self.findings, self.walk),
            guide_choice=self.walk.choice,
            profile=self.profile,
            options=[row.shown(option_text(self.text, row.option)) for row in self.options],
            recommendation=RecommendationShown(
                **figures(advice.speedup),
                option=advice.option,
                name=option_text(self.text, advice.option),
                reason=self.reason_text,
                plan=str(self.plan) if self.plan else None,
                trial=advice.trial,
                scopes=len(advice.plan.scopes),
                bit_identical=True if self.result.is_verified and advice.trial is not None else None,
                verification=advice.verification.summary if advice.verification else None,
                compared=advice.compared,
            ),
            risks=self.risks,
            next=[command.line for command in self.commands],
            files=[str(path) for path in self.files],
        )


def decision_steps(text: Sentences, findings: Findings, walk: TreeWalk) -> list[DecisionStep]:
    """Return a path through the tree, with a sentence for each step."""
    return [
        DecisionStep(step.question, step.answer, step.leads_to, step_text(text, findings, step)) for step in walk.steps
    ]


def walk_lines(text: Sentences, findings: Findings, walk: TreeWalk) -> list[str]:
    """Return the path as lines of text: the shares of the step, the questions, and the option at its end."""
    lines = []
    shares = findings.shares
    if shares.largest:
        values = {name: f"{getattr(shares, name):.1%}" for name in ("attention", "moe", "ffn", "other")}
        lines.append(text("tree.shares", source=text(f"source.{shares.source}"), **values))
        lines.append(text("tree.largest", module=text(f"module.{shares.largest}")))
    lines += [step_text(text, findings, step) for step in walk.steps]
    return [*lines, text("tree.choice", option=option_text(text, walk.choice))]


def step_text(text: Sentences, findings: Findings, step: TreeStep) -> str:
    """Return a question with its answer, and the option that it leads to."""
    shares = findings.shares
    kinds = ", ".join(f"{kind} ({count})" for kind, count in findings.kinds.items()) or "-"
    values = {name: f"{getattr(shares, name):.1%}" for name in ("attention", "moe", "ffn")}
    sentence = text(f"tree.{step.question}.{step.answer}", kinds=kinds, **values)
    if step.leads_to is None:
        return sentence
    return f"{sentence} → {option_text(text, step.leads_to)}"


def option_text(text: Sentences, option: ScopeOption | None) -> str:
    """Return an option's name."""
    return text(f"option.{option or 'none'}")
