"""The reference of bits: its comparison, its plans, continuing a file, and what counts as a wrong verification."""

import json
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import reference_bits
from benchmarks.judge_reference import Judged, page, summary, violations
from benchmarks.reference_plans import (
    BASELINE,
    EXACT_KIND,
    INEXACT,
    KNOWN,
    MAY_CHANGE_BITS,
    drawn,
    known_plans,
    space_of,
)
from benchmarks.reference_plans import MODELS as REFERENCE_MODELS
from benchmarks.reference_steps import Counts, Difference, Trace, compared, traced
from sktune.backends.base import Step
from sktune.backends.inductor.info import EXACT, OPTIONS
from sktune.core.errors import BadInputError
from sktune.core.space import SpaceSpec
from sktune.core.verification import RegionCheck, Verification
from sktune.targets.base import Target
from tests.builders import decoder_layout

STEPS, CAPACITY = 8, 16
DATA = reference_bits.ROOT / "benchmarks" / "data" / "reference_bits.json"


class Running(nn.Module):
    """Adds its input to a sum that is kept between steps."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = nn.Buffer(torch.zeros(2))
        self.position = nn.Buffer(torch.zeros(1, dtype=torch.long))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum, from values of the same shape (2,)."""
        self.sum.add_(values)
        self.position.add_(1)
        return self.sum * 1


def running(fixed_context: bool = False) -> Target:
    """Return a target whose steps are identified by their position in the cache."""
    module = Running()
    state = dict(module.named_buffers())

    def prefill(seed: int, steps: int, context: int | None = None) -> list[tuple[torch.Tensor]]:
        filled = 2 if context is None else context
        values = torch.rand(filled + steps, 2, generator=torch.Generator().manual_seed(seed))
        module.sum.zero_().add_(values[:filled].sum(0))
        module.position.fill_(filled)
        return [(row.clone(),) for row in values[filled:]]

    return Target(module, module.forward, prefill, state, capacity=None if fixed_context else CAPACITY)


def changed(target: Target, at: Collection[int], change: Callable[[torch.Tensor, torch.Tensor], object]) -> Step:
    """Return the target's step with ``change`` applied to its output or state if it begins at positions ``at``."""

    def run(values: torch.Tensor) -> torch.Tensor:
        is_wrong = int(target.state["position"]) in at
        output: torch.Tensor = target.decode_step(values)
        if is_wrong:
            change(output, target.state["sum"])
        return output

    return Step(run)


def counted(
    at: Collection[int], change: Callable[[torch.Tensor, torch.Tensor], object]
) -> tuple[Counts, Difference | None]:
    """Compare a step that is wrong at positions ``at``, in one context that begins at position 4."""
    target = running()
    trace = traced(target, Step(target.decode_step), seed=7, slots=4, context=None, steps=STEPS)
    return compared(target, changed(target, at, change), trace)


def test_equal_steps_have_no_difference() -> None:
    """Differences outside of the context are not seen."""
    assert counted((3, 12), lambda output, state: output.add_(1)) == (Counts(1, STEPS), None)


def test_an_output_that_differs_counts_once() -> None:
    """The steps after it begin with the baseline's state."""
    counts, first = counted((5, 9), lambda output, state: output[0].add_(1))
    assert counts == Counts(1, STEPS, 1, differing_steps=2, own_differing_steps=2)
    assert first == Difference(7, 4, 1, "output 0", 1, 2)


def test_a_difference_in_the_state_persists_in_the_steps_after_it() -> None:
    """These differ in continuous decoding, and are equal if each begins with the baseline's state."""
    counts, first = counted((6,), lambda output, state: state[1].add_(1))
    assert counts == Counts(1, STEPS, 1, differing_steps=6, own_differing_steps=1, state_only_steps=1)
    assert first == Difference(7, 4, 2, "sum", 1, 2)


def test_later_differences_are_seen_after_a_difference_in_the_state() -> None:
    """A step that differs itself is counted, although it begins with a wrong state in continuous decoding."""
    counts, _ = counted((6, 8), lambda output, state: state.add_(1))
    assert (counts.differing_steps, counts.own_differing_steps) == (6, 2)


@pytest.mark.parametrize(
    "change",
    [lambda output, state: output.view(torch.int32)[0].bitwise_xor_(1), lambda output, state: output.resize_(1)],
    ids=["last bit", "shape"],
)
def test_every_bit_and_the_shape_count(change: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    """There is no tolerance."""
    assert counted((5,), change)[0].own_differing_steps == 1


@pytest.mark.parametrize(
    ("expected", "got", "differs"), [(0.0, -0.0, True), (float("nan"), float("nan"), False)], ids=["zeros", "NaN"]
)
def test_bits_are_compared_instead_of_values(expected: float, got: float, differs: bool) -> None:
    """Zeros of different sign differ, and equal NaNs do not."""
    target = running()
    trace = traced(target, Step(lambda values: torch.full((1,), expected)), 0, 0, None, 1)
    counts, _ = compared(target, Step(lambda values: torch.full((1,), got)), trace)
    assert counts.differing_steps == differs


def test_a_fixed_context_is_filled_further_by_the_baseline() -> None:
    """A target that chooses its own context begins at any slot behind it."""
    target = running(fixed_context=True)
    trace = traced(target, Step(target.decode_step), seed=0, slots=5, context=2, steps=3)
    assert [int(state["position"]) for state in trace.states] == [5, 6, 7, 8]
    assert len(trace.inputs) == len(trace.outputs) == 3


def test_the_digest_distinguishes_traces() -> None:
    """It covers the baseline's whole run, and the digest before it."""

    def digest(seed: int, before: str) -> str:
        target = running()
        trace: Trace = traced(target, Step(target.decode_step), seed, 0, None, 4)
        return trace.digest(before)

    assert digest(0, "") == digest(0, "")
    assert len({digest(0, ""), digest(1, ""), digest(0, "before")}) == 3


def test_plans_have_the_values_of_their_kind() -> None:
    """Each plan outside the exact values has one that may change bits; the others have none. All are distinct."""
    layout = decoder_layout(("dense", "dense"), ("input_norm", "self_attn", "post_norm", "mlp"))
    space, defaults = space_of(SpaceSpec(), layout), OPTIONS.rules.defaults
    for kind in (INEXACT, EXACT_KIND):
        plans = list(islice(drawn(space, kind, "seed"), 40))
        assert plans == list(islice(drawn(space, kind, "seed"), 40))
        assert len(set(plans)) == 40
        for plan in plans:
            layout.check(plan)
            for scope in plan.scopes:
                values = {**defaults, **dict(scope.options)}
                changing = [name for name, value in MAY_CHANGE_BITS.items() if values[name] == value]
                assert bool(changing) == (kind == INEXACT)
                assert kind == INEXACT or {name: values[name] for name in EXACT} == EXACT
    single = [plan for plan in islice(drawn(space, INEXACT, "seed"), 40) if plan.scopes[0].first == plan.scopes[0].last]
    assert len(single) > 10, "single units differ rarely, and are what a verification misses"


def judged(kind: str, differing: int, verification: Verification) -> Judged:
    """Return a plan with ``differing`` of 20,000 steps that differ."""
    return Judged("model", "plan", kind, Counts(1250, 20_000, 1, differing, differing), False, verification)


IDENTICAL = Verification(steps=2048, contexts=32)
BY_STEPS = Verification(difference="seed 3", code_digest="abc")
BY_REGION = Verification(regions=(RegionCheck("norm", elements=9, difference="1 element"),), code_digest="abc")


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        (judged(INEXACT, 0, IDENTICAL), ""),
        (judged(INEXACT, 28, IDENTICAL), ""),
        (judged(INEXACT, 29, IDENTICAL), "called identical"),
        (judged(INEXACT, 29, BY_STEPS), ""),
        (judged(INEXACT, 3, Verification(steps=100_000)), "the bound is"),
        (judged(INEXACT, 3, Verification(steps=10_000)), ""),
        (judged(INEXACT, 0, BY_STEPS), "no region that differs"),
        (judged(INEXACT, 0, BY_REGION), ""),
        (judged(INEXACT, 1, BY_STEPS), ""),
        (judged(EXACT_KIND, 0, IDENTICAL), ""),
        (judged(EXACT_KIND, 1, IDENTICAL), "has exact values only, and 1 of 20000"),
        (judged(EXACT_KIND, 0, BY_REGION), "is rejected"),
    ],
)
def test_wrong_verifications_are_violations(row: Judged, wrong: str) -> None:
    """A missed difference, a bound that does not hold, and a plan that is rejected without reason."""
    found = list(violations([row]))
    assert len(found) == bool(wrong)
    assert wrong in "".join(found)


def test_a_plan_with_other_code_is_not_a_violation() -> None:
    """The reference only covers the code that it ran; the summary names plans that compiled to other code."""
    row = replace(judged(INEXACT, 29, IDENTICAL), is_known_code=False)
    assert list(violations([row])) == []
    assert any("model, plan" in line for line in summary([row], []))
    assert summary([row], [])[-1] == "- no violation in the others; 1 not judged"


def test_the_page_lists_every_plan_and_every_violation() -> None:
    """With one line for each plan, below the figures."""
    rows = [judged(INEXACT, 29, IDENTICAL), judged(INEXACT, 0, BY_REGION), judged(EXACT_KIND, 0, IDENTICAL)]
    wrong = list(violations(rows))
    text = page(rows, wrong, reference_bits.made_with(), "command")
    assert text.count("| model | plan |") == 4
    assert "| region |" in text
    assert "**violation** in model, plan: called identical" in text
    assert summary(rows[1:], [])[-1] == "- no violation"


def test_a_file_of_another_machine_is_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits depend on the processor and on torch."""
    out = tmp_path / "bits.json"
    reference_bits.save(out, "own_model", {"contexts": 0})
    monkeypatch.setattr(reference_bits, "made_with", lambda: {"torch": "0.1"})
    with pytest.raises(BadInputError, match="write to another file"):
        reference_bits.read(out)


@pytest.mark.slow
def test_a_run_continues_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs on one file give the same as a single run, and the baseline never differs from itself."""
    monkeypatch.setattr(reference_bits, "use_threads", lambda: None)
    monkeypatch.chdir(reference_bits.ROOT)
    numbers = {INEXACT: 0, EXACT_KIND: 0}
    for name, steps in (("parts", 240), ("parts", 480), ("whole", 480)):
        reference_bits.run("own_model", tmp_path / f"{name}.json", numbers, steps)
    parts, whole = (reference_bits.read(tmp_path / f"{name}.json")["models"] for name in ("parts", "whole"))
    assert parts == whole
    counts = {name: row["counts"] for name, row in parts["own_model"]["plans"].items()}
    assert counts.keys() == {"baseline", "attention_norm", "feed_forward_norm..feed_forward"}
    assert {row["steps"] for row in counts.values()} == {480}
    assert counts["baseline"]["differing_steps"] == 0


def test_the_data_are_as_documented() -> None:
    """The baseline and plans of exact values never differ; both plans of the issue do."""
    models = json.loads(DATA.read_text(encoding="utf-8"))["models"]
    for entry in models.values():
        kinds = [row["kind"] for row in entry["plans"].values()]
        assert (kinds.count(INEXACT), kinds.count(EXACT_KIND)) == (10, 5)
        for row in entry["plans"].values():
            counts = Counts(**row["counts"])
            assert (counts.contexts, counts.steps) == (
                entry["contexts"],
                entry["contexts"] * entry["steps_per_context"],
            )
            assert (counts.differing_steps > 0) == (row["first"] is not None)
            assert counts.own_differing_steps <= counts.differing_steps
            assert row["kind"] not in (BASELINE, EXACT_KIND) or not counts.differing_steps
    plans = models["own_model"]["plans"]
    assert [row["counts"]["own_differing_steps"] for row in plans.values() if row["kind"] == KNOWN] == [25, 33]


def test_the_plans_of_the_issue_have_scopes_in_every_layer() -> None:
    """They only exist for own_model."""
    layout = decoder_layout(("dense", "dense"), ("attention_norm", "attention", "feed_forward_norm", "feed_forward"))
    plans = known_plans(REFERENCE_MODELS["own_model"], layout)
    assert [len(plan.scopes) for plan in plans.values()] == [2, 2]
    assert dict(plans["attention_norm"].scopes[0].options) == {"emulate_precision_casts": True, "matmul": "aten"}
    assert known_plans(REFERENCE_MODELS["llama"], layout) == {}
