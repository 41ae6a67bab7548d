"""Studies for tests of the page: every kind of outcome, without compiling anything."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from sktune.backends import backend_info
from sktune.core.fused_scopes import FusedPart, FusedScope
from sktune.core.language import Language, Sentences
from sktune.core.layout import Layout
from sktune.core.outcome import FinalRow, Outcome, Reason, ScopeTime, Speedup, Stage
from sktune.core.plan import Plan
from sktune.core.space import SearchSpace, SpaceSpec, bind
from sktune.core.verification import Verification
from sktune.measure.final_comparison import FinalComparison
from sktune.measure.noise_floor import NoiseFloorSample
from sktune.reports.shown import Shown
from sktune.reports.texts import TEXTS
from sktune.samplers import find_strategy
from sktune.study.result import SearchResult, result_of
from sktune.study.study import TuningStudy, folder_name, sqlite_url
from sktune.study.worker_log import Fate
from tests.builders import MADE_WITH, decoder_layout

HOSTILE = "</script><script>alert(1)</script>\"'`<img src=x onerror=alert(1)> \u202e中文 " + "x" * 10_000
BASELINE_MS = 10.0


def space_of(layout: Layout) -> SearchSpace:
    """Return a space with two options over ``layout``."""
    return bind(SpaceSpec(), layout, {"early-start": (0, 1), "split-mode": (4, 2)}, backend_info("npu").options.rules)


def measured(ratio: float, width: float = 0.01) -> Speedup:
    """Return a measured speedup."""
    return Speedup(BASELINE_MS, BASELINE_MS / ratio, ratio, (ratio - width, ratio + width), 40)


def study_in(
    runs: Path, name: str = "study", *, trials: int = 12, layers: int = 3, text: str = "EB0500: it cannot be fused",
    description: str = "a model", final: bool = True, scope_times: bool = True, **made_with: str,
) -> SearchResult:  # fmt: skip
    """Return a stored study in which every seventh trial fails, each in another way, and the rest saves by scope."""
    folder = runs / folder_name(name)
    folder.mkdir(parents=True)
    layout = decoder_layout(("dense", *["moe"] * (layers - 1)))
    space = space_of(layout)
    study = TuningStudy.open(name, sqlite_url(folder), create=True)
    made = MADE_WITH | {"sktune": "0.2.0", "backend": "npu", "device": "an NPU"} | made_with
    study.remember(fingerprint=made, description=description, layout=layout, seconds=100.0, baseline_ms=BASELINE_MS)
    study.remember(
        floor_looks=(NoiseFloorSample(0, measured(1.001, 0.002)), NoiseFloorSample(7, measured(0.999, 0.002)))
    )
    rng = np.random.default_rng(0)
    for number in range(trials):
        proposal = study.ask(space, find_strategy("random"), seed=0)
        ended = _outcome(proposal.plan, number, text, rng, scope_times=scope_times)
        study.tell(proposal, ended, ended.speedup.latency_ms if ended.speedup else None)
    result = result_of(study, folder)
    if final:
        _compare(study, result)
    return result_of(study, folder)


@contextmanager
def on_three_dies(runs: Path, name: str = "shared", *, prefix: str = "npu", why: str = "slow") -> Iterator[TuningStudy]:
    """Make a study on three dies of one host, and yield it while its search runs.

    The first die runs trial 3, the second is about to take one, the last is quarantined; of trials 4 and 5, one waits.
    """
    folder = runs / folder_name(name)
    folder.mkdir(parents=True)
    layout = decoder_layout(("dense", "moe"))
    space = space_of(layout)
    study = TuningStudy.open(name, sqlite_url(folder), create=True)
    made = MADE_WITH | {"sktune": "0.2.0", "backend": "npu", "device": "an NPU"}
    study.remember(fingerprint=made, description="a model", layout=layout, baseline_ms=BASELINE_MS)
    dies = [f"{prefix} {number}" for number in range(3)]
    rng = np.random.default_rng(0)
    with study.claimed(made) as leases:
        for die in dies:
            leases.workers.add(die, prefix, Fate.JOINED)
        proposals = [study.ask(space, find_strategy("random"), seed=0) for _ in range(6)]
        for number, (proposal, die) in enumerate(zip(proposals, dies, strict=False)):
            ended = replace(_outcome(proposal.plan, number, "", rng, scope_times=False), die=die)
            study.tell(proposal, ended, ended.speedup.latency_ms if ended.speedup else None)
        leases.workers.add(dies[2], prefix, Fate.QUARANTINED, why)
        leases.settle(leases.grant(proposals[4].number, 1, dies[2]))
        leases.begin(leases.grant(proposals[3].number, 2, dies[0]), 2e9)
        yield study


def _outcome(plan: Plan, number: int, text: str, rng: np.random.Generator, *, scope_times: bool) -> Outcome:
    seconds = {"compile": 2.0, "verify": 0.5, "measure": 1.0, "observe": 0.25}
    if number % 7 == 6 and plan.scopes:
        failed = [Reason.COMPILE_FAILED, Reason.MISMATCH, Reason.TIMEOUT, Reason.CRASHED][number // 7 % 4]
        blamed = plan.scopes[0].label if number // 7 % 2 == 0 else ""
        return Outcome(
            failed, text, seconds=seconds, blamed=blamed, stage=Stage.COMPILE, log=f"logs/trial-{number:04d}.log"
        )
    ratio = 1.0 + 0.01 * len(plan.scopes) + float(rng.normal(0, 0.002))
    pieces = tuple(ScopeTime(scope.first, scope.last, True, 1.0, 0.9) for scope in plan.scopes)
    reason = Reason.SLOWER if ratio < 1.0 else None
    return Outcome(
        reason, "", measured(ratio), seconds, scope_times=pieces if scope_times else (), fused=fused_of(plan),
        verification=Verification(64, 2, 4096), noise="other load" if number == 3 else "",
    )  # fmt: skip


def fused_of(plan: Plan) -> tuple[FusedScope, ...]:
    """Return what the scopes became: the first is split by a collective."""
    whole, cut = FusedPart(6, "MIX_AIC_1_2"), FusedPart(1, types=("HcomAllReduce",))
    parts = [(whole, cut, FusedPart(2, "MIX_AIV_1_0"))] + [(whole,)] * (len(plan.scopes) - 1)
    return tuple(FusedScope((scope.label,), each) for scope, each in zip(plan.scopes, parts, strict=False))


def _compare(study: TuningStudy, result: SearchResult) -> None:
    complete = [record for record in result.trials if record.outcome and record.outcome.is_complete]
    best = sorted(
        complete, key=lambda record: -record.outcome.speedup.ratio if record.outcome and record.outcome.speedup else 0
    )
    processes: list[tuple[Sequence[FinalRow], str]] = []
    for process in range(3):
        rows = [
            FinalRow("baseline", measured(1.0), "identical", True),
            FinalRow("baseline again", measured(1.001), "identical", True),
        ]
        for record in best[:3]:
            assert record.outcome and record.outcome.speedup
            rows.append(
                FinalRow(
                    str(record.number), measured(record.outcome.speedup.ratio + 0.001 * process), "identical", True
                )
            )
        processes.append((rows, ""))
    study.remember(
        final=FinalComparison.of(processes, ()),
        final_trials=len(result.trials),
        final_seconds={"measure": 15.0, "verify": 5.0},
    )
    study.verified({str(record.number): Verification(2048, 8, 1 << 20) for record in best[:3]})


def shown(result: SearchResult, language: Language = "en") -> Shown:
    """Return what the page of a study shows."""
    return Shown(result, Sentences(TEXTS, language))


def at_fixed_times(result: SearchResult) -> SearchResult:
    """Return the result with trials of five seconds, one after the other, by one worker."""
    began = datetime(2026, 1, 1)  # noqa: DTZ001 - as Optuna stores it
    trials = [
        replace(record, began=began + timedelta(seconds=5 * index), ended=began + timedelta(seconds=5 * index + 5),
                worker="host:1")
        for index, record in enumerate(result.trials)
    ]  # fmt: skip
    return replace(result, trials=trials)
