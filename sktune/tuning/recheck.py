"""Rechecks: whether a plan that was found earlier is still valid here: its code, its bits, and its speed.

For use after an upgrade, and in CI. The plan's compiled code is loaded as ``sktune.apply`` loads it, with otherwise
empty caches, so that the code that is checked is the code that will run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ValidationError

from sktune.backends.fingerprint import fingerprint
from sktune.core.delivery import Delivery
from sktune.core.errors import BackendError, BadInputError, ExitCode, PlanError, TargetError
from sktune.core.events.base import ABSENT
from sktune.core.events.commands import Rechecked
from sktune.core.files import real_path
from sktune.core.outcome import Speedup
from sktune.core.plan_file import PlanFile, read_plan_file
from sktune.core.space import SpaceSpec
from sktune.core.verification import DEFAULT_VERIFY_STEPS, Verification
from sktune.measure.machine import Placement
from sktune.program.sktune_program.task import VERIFIED_STEPS
from sktune.study.study import folder_name
from sktune.targets import ConfigSpec, RecipeSpec, TargetSpec
from sktune.tuning.request import RANDOM
from sktune.tuning.site import placed
from sktune.worker import make_runner
from sktune.worker.jobs import Compare, Report, Runner, RunnerSetup, Verify, silent

PLAN = "plan"
LEAST_STEPS = VERIFIED_STEPS + 1
"""A program compares ``VERIFIED_STEPS`` in every run, and has a run of its own only for more."""


class RecheckVerdict(StrEnum):
    """The verdict of a recheck."""

    KEEP = "keep"
    SLOWER = "slower now"
    DIFFERS = "bits differ"
    NO_SCOPE = "no scope"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the command."""
        return {
            RecheckVerdict.KEEP: ExitCode.DONE,
            RecheckVerdict.SLOWER: ExitCode.SLOWER_NOW,
            RecheckVerdict.DIFFERS: ExitCode.BITS_DIFFER,
            RecheckVerdict.NO_SCOPE: ExitCode.DONE,
        }[self]


@dataclass(frozen=True, slots=True)
class Recheck:
    """The result of a recheck.

    Attributes:
        verdict: on the plan.
        code: whether the code is the code that was verified, in one line.
        changes: differences from the environment and model that the plan was found with, one line for each.
        verification: of the bits.
        speedup: of the plan against the baseline in one fresh process; None if the bits differ.
    """

    verdict: RecheckVerdict
    code: str
    changes: tuple[str, ...]
    verification: Verification
    speedup: Speedup | None = None

    def event(self, plan: Path, shape: str = "") -> Rechecked:
        """Return the event that tells it; ``plan`` is the file, and ``shape`` whose plan it is if it has several."""
        speedup = self.speedup
        return Rechecked(
            plan=str(plan),
            verdict=self.verdict,
            exit_code=self.verdict.exit_code,
            code=self.code,
            changes=self.changes,
            verification=self.verification.summary,
            baseline_ms=speedup.baseline_ms if speedup else None,
            latency_ms=speedup.latency_ms if speedup else None,
            speedup=speedup.ratio if speedup else None,
            ci95=speedup.ci95 if speedup else None,
            shape=shape or ABSENT,
        )


@dataclass(frozen=True)
class RecheckRequest:
    """What to check.

    Attributes:
        plan: a plan file that names its target.
        model: where the model is now; None for the place in the plan file.
        weights: where the checkpoint is now; None for the place in the plan file, or beside the model if it was there.
        verify_steps: decode steps to compare with the baseline, bit for bit.
        runs: folder of the runs; logs are written to ``rechecks/`` in it.
        compile_timeout_s: maximum time for one compile.
        trust: whether to run the code in the model's folder; what the plan file says about that is not enough.
        shape: of a file with several shapes the only one to check, such as ``batch=8 context=1024``; None for all.
    """

    plan: Path
    model: str | None = None
    weights: Path | None = None
    verify_steps: int = DEFAULT_VERIFY_STEPS
    runs: Path = Path("runs")
    compile_timeout_s: float = 300.0
    trust: bool = False
    shape: str | None = None

    def __post_init__(self) -> None:
        if self.verify_steps < 1:
            raise BadInputError(f"--verify-steps must be at least 1; got {self.verify_steps}")


def recheck(request: RecheckRequest, report: Report = silent) -> Iterator[tuple[str, Recheck]]:
    """Check code, bits and speed of the plan in a file, or of that of each shape with the shape's name.

    Args:
        request: what to check.
        report: called with each stage that begins.

    Yields the shape's name, empty in a file of a single shape, and the result. A plan that no longer runs is told once
    the others are checked.

    Raises:
        BadInputError: a model is given, and each shape has a recipe of its own.
        PlanError: the file is not a plan file, does not name its target, or its scopes do not fit the model.
        BackendError: a plan no longer compiles or runs.
        SktuneError: the model cannot be loaded, or its baseline does not run.
    """
    file = read_plan_file(request.plan)
    chosen = file.alone
    if request.shape is not None:
        entry = file.entry_of(request.shape, str(request.plan))
        chosen = [(entry.name, file.at(entry))]
    if request.model is not None and len(chosen) > 1 and any(entry.recipe for entry in file.shapes):
        raise BadInputError("--model names one recipe, and each shape has its own; name its shape with --shape, too")
    broken = []
    for name, alone in chosen:
        if name and alone.to_plan().is_baseline:
            yield name, Recheck(RecheckVerdict.NO_SCOPE, "no scope, so there is nothing to check", (), Verification())
            continue
        try:
            checked = _recheck(request, alone, report)
        except BackendError as failure:
            broken.append(f"{name}: {failure}" if name else str(failure))
        else:
            yield name, checked
    if broken:
        raise BackendError("; ".join(broken))


def _recheck(request: RecheckRequest, file: PlanFile, report: Report) -> Recheck:
    """Check one plan, that of a file with a single one."""
    spec, space = target_of(file, request)
    then = file.found_with
    # Its code and bits are those of as many threads as it was found with.
    placement, _ = placed(spec, then)
    changes = _changes(then, spec, placement)
    delivery = file.artifacts.delivery() if file.artifacts else None
    folder = request.plan.parent / file.artifacts.folder if file.artifacts else Path()
    if delivery:
        try:
            delivery.contents(folder)
        except PlanError as failure:  # the code that would run is not the verified code
            return Recheck(RecheckVerdict.DIFFERS, str(failure), changes, Verification(difference=str(failure)))
    logs = request.runs / "rechecks" / folder_name(real_path(request.plan).parent.name)
    with TemporaryDirectory(prefix="sktune-recheck-") as cache:
        delivered = (real_path(folder), delivery) if delivery else None
        setup = RunnerSetup(spec, space, logs, Path(cache), request.compile_timeout_s, delivered, placement)
        with make_runner(setup) as runner:
            return _checked(runner, file, delivery, changes, request.verify_steps, report)


def _checked(
    runner: Runner,
    file: PlanFile,
    delivery: Delivery | None,
    changes: tuple[str, ...],
    steps: int,
    report: Report,
) -> Recheck:
    opened = runner.open()
    plan = file.to_plan()
    opened.layout.check(plan)
    verification = runner.run(Verify(PLAN, plan, max(steps, LEAST_STEPS)), report)
    if verification is None:  # a program has no more decode steps than each of its runs compares
        verification = Verification(VERIFIED_STEPS)
    if verification.is_broken:
        raise BackendError(f"the plan no longer runs: {verification.difference}; search again")
    code = _code(verification, delivery, opened.facts.get("not_delivered", ""))
    if not verification.is_identical:
        return Recheck(RecheckVerdict.DIFFERS, code, changes, verification)
    rows = runner.run(Compare([(PLAN, plan)]), report).rows
    row = next(row for row in rows if row.name == PLAN)
    if row.speedup is None:
        raise BackendError(f"the plan could not be compared with the baseline: {row.verdict}; search again")
    if row.bit_identical is False:
        return Recheck(RecheckVerdict.DIFFERS, code, changes, replace(verification, difference=row.verdict))
    verdict = RecheckVerdict.KEEP if row.speedup.bounds[0] > 1 else RecheckVerdict.SLOWER
    return Recheck(verdict, code, changes, verification, row.speedup)


def _code(verification: Verification, delivery: Delivery | None, not_loaded: str) -> str:
    """Return in one line whether the code is the code that was delivered with the plan."""
    if delivery is None:
        return "the plan comes without compiled code; it was compiled here"
    if verification.code_digest == delivery.code_digest:
        return f"compiled here, the same as was verified ({not_loaded})" if not_loaded else "as verified"
    why = f" ({not_loaded})" if not_loaded else ""
    return f"other code than was verified: {verification.code_digest[:16]} instead of {delivery.code_digest[:16]}{why}"


def target_of(file: PlanFile, request: RecheckRequest) -> tuple[TargetSpec, SpaceSpec]:
    """Return the target and space of the plan, with the places where the model and its weights are now.

    Raises:
        PlanError: the file does not name a target that can be found.
    """
    if file.target is None:
        raise PlanError(
            f"{request.plan} does not say which model the plan is for (that of a simulation never does); search with "
            "this sktune on a device"
        )
    try:
        spec, space = TargetSpec.from_dict(file.target.spec), SpaceSpec(**file.target.units)
    except (TargetError, ValidationError) as failure:
        raise PlanError(f"{request.plan}: this sktune does not understand its target; search again") from failure
    if request.model is not None:
        source = _absolute(request.model)
        spec = replace(spec, source=source, weights=source if spec.weights == spec.source else spec.weights)
    if request.weights is not None and isinstance(spec, RecipeSpec):
        raise BadInputError("--weights cannot be used with a recipe's plan, whose program decides it; leave it out")
    if request.weights is not None:
        spec = replace(spec, weights=None if request.weights == RANDOM else str(real_path(request.weights)))
    if isinstance(spec, ConfigSpec):
        spec = _with_trust(spec, request)
    elif request.trust:
        raise BadInputError(f"--trust is for a model folder with its own code, not for {spec.name}; leave it out")
    if problem := spec.missing():
        raise PlanError(f"{request.plan}: {problem}; give its place with --model or --weights")
    return spec, space


def _with_trust(spec: ConfigSpec, request: RecheckRequest) -> ConfigSpec:
    if spec.trust and not request.trust:
        raise TargetError(f"{request.plan}: its model is code in {spec.folder}; read it, then run it with --trust")
    if request.trust and not spec.trust:
        raise BadInputError(f"{request.plan} was found for transformers' own model; leave --trust out")
    return spec


def _absolute(model: str) -> str:
    """Return a model's absolute path, since a worker may run in another folder; a module's name stays unchanged."""
    path, colon, function = model.rpartition(":") if ":" in model else (model, "", "")
    return f"{real_path(Path(path)) if Path(path).exists() else path}{colon}{function}"


def _changes(then: Mapping[str, str], spec: TargetSpec, placement: Placement) -> tuple[str, ...]:
    """Return how this machine and this model differ from those that the plan was found with."""
    if not then:
        return ()
    now = fingerprint(spec, SpaceSpec()) | placement.fingerprint
    return tuple(
        f"{name} is {now.get(name, 'not set')}, and was {then.get(name, 'not set')}"
        for name in dict.fromkeys([*then, *now])
        if name != "space" and now.get(name) != then.get(name)
    )
