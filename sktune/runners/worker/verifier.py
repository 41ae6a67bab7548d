"""Verification of plans: what every trial compares, and what is compared before a plan is called identical."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from sktune.backends.base import REGION_STEPS, Backend, Compiled, RegionBudget
from sktune.core.errors import NotDeterministicError, described
from sktune.core.plan import Plan
from sktune.core.verification import RegionCheck, Verification
from sktune.measure.bits import Mismatch
from sktune.measure.devices import ran_out_of_memory
from sktune.runners.worker import step_check
from sktune.runners.worker.replays import Replay, compare, prepare, record, replayed_inputs
from sktune.targets.base import Inputs, Target
from sktune.targets.state import complete_state

logger = logging.getLogger(__name__)

VERIFIED_STEPS = 2048
"""Decode steps on which a plan is compared with the baseline before it is called identical."""
TRIAL_REGIONS = RegionBudget(elements=2_000_000, seconds=2.0)
FINALIST_REGIONS = RegionBudget(seconds=15.0)
EXACT_SHARE = 0.25
"""Of the time, for a plan whose regions are all exact by construction."""


class Verifier:
    """Compares plans of one target with one baseline.

    Args:
        target, backend: what is compiled, and by what.
        baseline: the empty plan, compiled.
        alive: called now and then.

    Attributes:
        banned: what differs in each region that was found to differ from its kernels, by key.
        replays: the short replays that every trial compares; the first one's first step is what is timed.
        model_difference: where the baseline differs from the model as it runs uncompiled; empty where it does not.

    Raises:
        NotDeterministicError: the baseline differs from itself.
    """

    def __init__(self, target: Target, backend: Backend, baseline: Compiled, alive: Callable[[], None]) -> None:
        self._target, self._baseline, self._alive = target, baseline, alive
        self._state = complete_state(target, backend.written())
        self.banned: dict[str, str] = {}
        self.replays = prepare(target, self._state)
        self._recordings = record(baseline.step, self.replays)
        if difference := self.difference(baseline):
            raise NotDeterministicError(
                f"the baseline does not equal itself ({difference}); make the model deterministic "
                "(no dropout, no atomics), or bit-identity cannot be decided"
            )
        self.model_difference = self._difference_from_model(backend)

    @property
    def quick_steps(self) -> int:
        """Decode steps of all short replays."""
        return sum(len(replay.inputs) for replay in self.replays)

    def difference(self, compiled: Compiled) -> Mismatch | None:
        """Return where the short replays differ from the baseline's."""
        return compare(compiled.step, self._recordings)

    def quick(self, plan: Plan, compiled: Compiled) -> Verification:
        """Compare what every trial does: short replays, and the regions that are not exact by construction."""
        if known := self._known_to_differ(compiled):
            return known
        if difference := self.difference(compiled):
            # The seed that showed it comes first; the step need not be the one in which it arose.
            replays = sorted(self.replays, key=lambda replay: replay.seed != difference.seed)
            changes_bits = self._changing_scopes(plan, compiled, replays)
            return Verification(difference=_located(difference, changes_bits), changes_bits=changes_bits)
        found = Verification(self.quick_steps, len(self.replays), self._elements, code_digest=compiled.code_digest)
        if compiled.check_regions is None or compiled.is_exact:
            return found
        return self._with_regions(found, compiled, TRIAL_REGIONS)

    def _known_to_differ(self, compiled: Compiled) -> Verification | None:
        """Return what an earlier plan's check says of a region that this one has, too."""
        for key, label in compiled.region_labels.items():
            if key in self.banned:
                region = RegionCheck(label, key, difference=self.banned[key])
                return Verification(regions=(region,), code_digest=compiled.code_digest, changes_bits=(label,))
        return None

    def _with_regions(self, found: Verification, compiled: Compiled, budget: RegionBudget) -> Verification:
        if compiled.check_regions is None:
            return found
        regions = compiled.check_regions(self._region_steps(), budget)
        differing = [region for region in regions if region.difference]
        self.banned.update({region.key: region.difference for region in differing})
        return replace(found, regions=regions, changes_bits=tuple(region.label for region in differing))

    def thorough(
        self, entries: Mapping[str, tuple[Plan, Compiled]], steps: int, seconds: float | None
    ) -> dict[str, Verification]:
        """Compare each distinct region with its kernels, then at least ``steps`` decode steps with the baseline's.

        Args:
            entries: plans and what they were compiled to, by name.
            steps: to compare.
            seconds: most time; None for what it takes. Steps that there was no time for weaken the bound.
        """
        began_s = time.monotonic()
        # Who wants fewer steps wants less of the other check, too.
        share = replace(FINALIST_REGIONS, seconds=FINALIST_REGIONS.seconds * min(1.0, steps / VERIFIED_STEPS))
        if seconds is not None:
            share = replace(share, seconds=min(share.seconds, seconds / 2 / max(1, len(entries))))
        found: dict[str, Verification] = {}
        for name, (_, compiled) in entries.items():
            self._alive()
            blank = Verification(code_digest=compiled.code_digest)
            budget = replace(share, seconds=share.seconds * EXACT_SHARE) if compiled.is_exact else share
            found[name] = self._known_to_differ(compiled) or self._with_regions(blank, compiled, budget)
        candidates = {name: own.step for name, (_, own) in entries.items() if not found[name].differing_regions}
        places = step_check.contexts(self._target, self._state, self._baseline.step, steps)
        ends_s = math.inf if seconds is None else began_s + seconds
        compared = step_check.compare_steps(
            self._target, self._state, self._baseline.step, candidates, places, partial(self._goes_on, ends_s)
        )
        for name, own in compared.items():
            blamed: tuple[str, ...] = ()
            if own.mismatch and own.place:
                replay = step_check.replay_of(self._target, self._state, self._baseline.step, own.place)
                blamed = self._changing_scopes(*entries[name], [replay])
            found[name] = replace(
                found[name], steps=own.steps, contexts=own.contexts, elements=own.elements,
                difference=_located(own.mismatch, blamed), changes_bits=blamed,
            )  # fmt: skip
        return found

    def _goes_on(self, ends_s: float) -> bool:
        self._alive()
        return time.monotonic() < ends_s

    @property
    def _elements(self) -> int:
        """Elements that the quick check compares: the outputs of each step, and the state after the last."""
        outputs = [tensor for recording in self._recordings for step in recording.outputs for tensor in step.values()]
        return sum(tensor.numel() for tensor in outputs) + sum(replay.elements for replay in self.replays)

    def _region_steps(self) -> Iterator[Inputs]:
        return replayed_inputs(self.replays, REGION_STEPS // len(self.replays))

    def _difference_from_model(self, backend: Backend) -> str:
        references = backend.references()
        if "uncompiled" not in references:
            return ""
        try:
            return str(self.difference(references["uncompiled"]()) or "")
        except Exception as failure:
            if ran_out_of_memory(failure):
                raise
            return f"the model does not run uncompiled: {described(failure)}"

    def _changing_scopes(self, plan: Plan, compiled: Compiled, replays: Sequence[Replay]) -> tuple[str, ...]:
        """Return the labels of the scopes that change bits, none where they cannot be told from the others."""
        if len(plan.scopes) == 1:
            return (plan.scopes[0].label,)
        if compiled.blame is None:
            return ()
        try:
            with torch.no_grad():
                return compiled.blame(replayed_inputs(replays))
        except Exception:
            logger.warning("the scopes that change bits could not be found", exc_info=True)
            return ()


def _located(difference: Mismatch | None, blamed: tuple[str, ...]) -> str:
    """Return a difference in one line, with the scope that is to blame where that is known."""
    if difference is None:
        return ""
    return f"scope {blamed[0]}: {difference}" if blamed else str(difference)
