"""Verifies plans: quickly in every trial, and thoroughly before a plan is called identical."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

import torch

from sktune.backends.base import REGION_STEPS, Backend, Compiled, RegionBudget
from sktune.core.errors import NotDeterministicError, described
from sktune.core.outcome import Stage
from sktune.core.plan import Plan
from sktune.core.verification import DEFAULT_VERIFY_STEPS, RegionCheck, Verification, steps_needed
from sktune.measure.bits import Mismatch, bits_digest
from sktune.measure.devices import ran_out_of_memory
from sktune.targets.base import Inputs, Target
from sktune.targets.state import complete_state
from sktune.worker import step_check
from sktune.worker.replays import Replay, compare, prepare, record, replayed_inputs

logger = logging.getLogger(__name__)

TRIAL_REGIONS = RegionBudget(elements=2_000_000, seconds=0.5)
FINALIST_REGIONS = RegionBudget(seconds=15.0)
REPORT_S = 5.0
"""Time between two reports of a verification's progress, which show that the worker is alive."""
DAMAGED = "the baseline computes other bits since the plan has run: it writes to memory that is no state of the step"
EXACT_SHARE = 0.25
"""Share of the time for regions if all regions of a plan are exact by construction."""


class Verifier:
    """Compares plans of one target with one baseline.

    Args:
        target: what is compiled.
        backend: what compiles it.
        baseline: the empty plan, compiled.

    Attributes:
        banned: regions known to differ from their kernels: the difference, by key.
        replays: the short replays that every trial compares; measurements time the first step of the first one.
        model_difference: where the baseline differs from the uncompiled model; empty if nowhere.

    Raises:
        NotDeterministicError: the baseline is not deterministic.
    """

    def __init__(self, target: Target, backend: Backend, baseline: Compiled) -> None:
        self._target, self._baseline = target, baseline
        self._state = complete_state(target, backend.written())
        self.banned: dict[str, str] = {}
        self.replays = prepare(target, self._state)
        self._recordings = record(baseline.step, self.replays)
        if difference := self.difference(baseline):
            raise _not_deterministic(difference)
        self.model_difference = self._difference_from_model(backend)

    @property
    def quick_steps(self) -> int:
        """Number of decode steps in all short replays."""
        return sum(len(replay.inputs) for replay in self.replays)

    @property
    def baseline_digest(self) -> str:
        """Digest of all bits that the baseline computed in the short replays."""
        return bits_digest(
            tensors for recording in self._recordings for tensors in (*recording.outputs, recording.state)
        )

    def difference(self, compiled: Compiled) -> Mismatch | None:
        """Return the first difference from the baseline in the short replays."""
        return compare(compiled.step, self._recordings)

    def quick(self, plan: Plan, compiled: Compiled) -> Verification:
        """Compare the short replays, and the regions that are not exact by construction, as every trial does."""
        if known := self._known_to_differ(compiled):
            return known
        if difference := self.difference(compiled):
            if self._is_damaged():
                return Verification(difference=DAMAGED, is_broken=True)
            # Start with the seed that showed the difference; it may have arisen before the step that showed it.
            replays = sorted(self.replays, key=lambda replay: replay.seed != difference.seed)
            changes_bits = self._changing_scopes(plan, compiled, replays)
            return Verification(difference=_located(difference, changes_bits), changes_bits=changes_bits)
        verified = Verification(self.quick_steps, len(self.replays), self._elements, code_digest=compiled.code_digest)
        if compiled.check_regions is None or compiled.is_exact:
            return verified
        return self._with_regions(verified, compiled, TRIAL_REGIONS)

    def _known_to_differ(self, compiled: Compiled) -> Verification | None:
        """Return a failed verification if the plan has a banned region, else None."""
        for key, label in compiled.region_labels.items():
            if key in self.banned:
                region = RegionCheck(label, key, difference=self.banned[key])
                return Verification(regions=(region,), code_digest=compiled.code_digest, changes_bits=(label,))
        return None

    def _with_regions(self, verified: Verification, compiled: Compiled, budget: RegionBudget) -> Verification:
        if compiled.check_regions is None:
            return verified
        regions = compiled.check_regions(self._region_steps(), budget)
        differing = [region for region in regions if region.difference]
        self.banned.update({region.key: region.difference for region in differing})
        return replace(verified, regions=regions, changes_bits=tuple(region.label for region in differing))

    def thorough(
        self, plan: Plan, compiled: Compiled, steps: int, seconds: float, report: Callable[[str], None]
    ) -> Verification | None:
        """Compare each distinct region with its kernels, then at least ``steps`` decode steps with the baseline's.

        Args:
            plan, compiled: what is verified.
            steps: fewest decode steps to compare; see ``steps_needed``.
            seconds: time limit; may be infinite. If it is reached, fewer steps are compared and the bound is weaker.
            report: called with the number of steps that were compared, every few seconds.

        Returns:
            None if no more was compared than in a trial.
        """
        ends_s = time.monotonic() + seconds
        # Fewer steps mean a shorter check of the regions, too.
        share_s = FINALIST_REGIONS.seconds * min(1.0, steps / DEFAULT_VERIFY_STEPS)
        if compiled.is_exact:
            share_s *= EXACT_SHARE
        regions = replace(FINALIST_REGIONS, seconds=max(0.0, min(share_s, seconds / 2)))
        blank = Verification(code_digest=compiled.code_digest)
        verified = self._known_to_differ(compiled) or self._with_regions(blank, compiled, regions)
        if verified.differing_regions:
            return verified
        steps = steps_needed(steps, compiled.is_exact)
        places = step_check.contexts(self._target, self._state, self._baseline.step, steps)
        of_all = f"of {sum(place.steps for place in places):,} steps"
        next_report_s = 0.0

        def may_continue(done: int) -> bool:
            nonlocal next_report_s
            now_s = time.monotonic()
            if now_s >= next_report_s:
                report(f"{Stage.VERIFY}, {done:,} {of_all}")
                next_report_s = now_s + REPORT_S
            return now_s < ends_s

        try:
            result = step_check.compare_steps(
                self._target, self._state, self._baseline.step, compiled.step, places, may_continue
            )
        except NotDeterministicError:
            if not self._is_damaged():
                raise
            return replace(verified, difference=DAMAGED, is_broken=True)
        has_time = time.monotonic() < ends_s
        if result.context and has_time and self._is_damaged():
            return replace(verified, difference=DAMAGED, is_broken=True)
        blamed: tuple[str, ...] = (plan.scopes[0].label,) if result.context and len(plan.scopes) == 1 else ()
        if result.context and not blamed and ends_s - time.monotonic() >= seconds / 2:
            replay = step_check.replay_of(
                self._target,
                self._state,
                self._baseline.step,
                result.context,
                lambda: may_continue(result.steps) or True,
            )
            until_s = ends_s if math.isinf(seconds) else ends_s - seconds / 4
            blamed = self._changing_scopes(plan, compiled, [replay], until_s)
        elif not result.context and result.steps <= self.quick_steps:
            return None
        return replace(
            verified, steps=result.steps, contexts=result.contexts, elements=result.elements,
            difference=_located(result.difference, blamed), changes_bits=blamed,
            is_broken=bool(result.context) and not has_time,  # whether the baseline differs from itself is not known
        )  # fmt: skip

    def _is_damaged(self) -> bool:
        """Whether the baseline computes other bits than when it was opened, and these again.

        Raises:
            NotDeterministicError: it computes other ones each time.
        """
        if not self.difference(self._baseline):
            return False
        if difference := compare(self._baseline.step, record(self._baseline.step, self.replays)):
            raise _not_deterministic(difference)
        return True

    @property
    def _elements(self) -> int:
        """Number of elements that the quick check compares: outputs of each step, and the state after the last."""
        outputs = [tensor for recording in self._recordings for step in recording.outputs for tensor in step.values()]
        return sum(tensor.numel() for tensor in outputs) + sum(replay.elements for replay in self.replays)

    def _region_steps(self) -> Iterator[Inputs]:
        return replayed_inputs(self.replays, REGION_STEPS // len(self.replays))

    def _difference_from_model(self, backend: Backend) -> str:
        references = backend.references()
        if "uncompiled" not in references:
            return ""
        try:
            model = references["uncompiled"]()
            difference = self.difference(model)
        except Exception as failure:
            if ran_out_of_memory(failure):
                raise
            return f"the uncompiled model does not run: {described(failure)}"
        return "; ".join(filter(None, (str(difference), self._first_operator(model, difference)))) if difference else ""

    def _first_operator(self, model: Compiled, difference: Mismatch) -> str:
        from sktune.worker import operator_trace  # few baselines differ

        replay = next(replay for replay in self.replays if replay.seed == difference.seed)
        try:
            return operator_trace.first_difference(
                self._target.module, model.step, self._baseline, replay, difference.step + 1
            )
        except Exception:
            logger.warning("the operator at which the baseline differs could not be found", exc_info=True)
            return ""

    def _changing_scopes(
        self, plan: Plan, compiled: Compiled, replays: Sequence[Replay], until_s: float = math.inf
    ) -> tuple[str, ...]:
        """Return the labels of the scopes that change bits, none if they cannot be identified in time."""
        if len(plan.scopes) == 1:
            return (plan.scopes[0].label,)
        if compiled.blame is None:
            return ()
        try:
            with torch.no_grad():
                inputs = replayed_inputs(replays)
                return compiled.blame(takewhile(lambda _: time.monotonic() < until_s, inputs))
        except Exception:
            logger.warning("the scopes that change bits could not be identified", exc_info=True)
            return ()


def _not_deterministic(difference: Mismatch) -> NotDeterministicError:
    return NotDeterministicError(
        f"the baseline is not deterministic ({difference}); make the model deterministic "
        "(no dropout, no atomics), as bit-identity cannot be checked otherwise"
    )


def _located(difference: Mismatch | str, blamed: tuple[str, ...]) -> str:
    """Return a difference in one line, with the scope that causes it if known."""
    return f"scope {blamed[0]}: {difference}" if blamed else str(difference)
