"""How simulated scopes follow the compiler's rules: what is fused, what fails, what hangs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sktune.ascend.superkernel_pass import PassCut
from sktune.core.errors import SpaceError
from sktune.core.layout import Layout, Unit
from sktune.core.outcome import Reason
from sktune.core.plan import Option, Plan, Scope
from sktune.sim.constants import Behaviour
from sktune.sim.model import SimulatedFailure, SimulatedStep
from sktune.sim.operators import Operator, numbered
from tests.sim.simulated_steps import CONSTANTS, cube, operator, simulate, step_latency, step_of, vector


def failure_of(operators: Sequence[Operator], *options: tuple[str, Option]) -> SimulatedFailure:
    """Return why one scope over all operators fails."""
    layout = Layout((Unit("u0", "u0"),), ())
    inside = numbered([replace(each, unit="u0", name=f"o{place}") for place, each in enumerate(operators)])
    failure = step_latency(inside, Plan((Scope("u0", "u0", options),)), layout, CONSTANTS)
    assert isinstance(failure, SimulatedFailure)
    return failure


def on_streams(*streams: int, linked: bool) -> list[Operator]:
    """Return cube and vector operators in turn on these streams; ``linked``: each waits for the one before."""
    return [
        (cube if place % 2 else vector)(50, stream=stream, after=(place - 1,) if linked and place else ())
        for place, stream in enumerate(streams)
    ]


def test_neighbours_on_two_streams_without_an_event_do_not_compile() -> None:
    """The generator refuses them with EB0500 unless stream-fusion=1; the message says so, and what to do."""
    unlinked = on_streams(0, 1, 0, 1, linked=False)
    failure = failure_of(unlinked)
    assert failure.reason is Reason.COMPILE_FAILED
    assert "EB0500" in failure.detail and "stream-fusion=1" in failure.detail
    assert failure.blamed == "u0"
    assert simulate(Plan((Scope("u0", "u0", (("stream-fusion", 1),)),)), unlinked).tasks == 1


def test_streams_that_are_all_linked_run_one_after_the_other_in_a_superkernel() -> None:
    """With stream-fusion=1, too: the generator makes two queues only where neighbours share no event."""
    linked = on_streams(0, 1, 0, 1, linked=True)
    for options in ((), (("stream-fusion", 1),)):
        step = simulate(Plan((Scope("u0", "u0", options),)), linked)
        assert step.tasks == 1
        assert step.total_us > 200


def test_a_third_stream_compiles_if_it_is_linked_or_fused() -> None:
    """The generator counts no streams."""
    assert simulate(Plan((Scope("u0", "u0"),)), on_streams(0, 1, 2, linked=True)).tasks == 1
    fused = Plan((Scope("u0", "u0", (("stream-fusion", 1),)),))
    assert simulate(fused, on_streams(0, 1, 2, linked=False)).tasks == 1


def test_an_operator_on_a_stream_of_its_own_does_not_cut_the_scope() -> None:
    """The SuperKernel notifies it and waits for it inside, as with every collective that is not fused."""
    apart = [vector(10), vector(10, kind="HcomAllReduce", stream=1, can_fuse=False, after=(0,)), vector(10, after=(1,)),
             vector(10)]  # fmt: skip
    step = simulate(Plan((Scope("u0", "u0"),)), apart)
    assert step.tasks == 2
    assert step.terms["stream_event"] > 0
    within = [replace(each, stream=0, after=()) for each in apart]
    assert simulate(Plan((Scope("u0", "u0"),)), within).tasks == 3


def test_a_refused_collective_is_foreign_on_the_scopes_stream_and_nothing_on_its_own() -> None:
    """It has lost the label when the scope is checked."""
    strict = (("strict-scope-check", "abort"),)
    refused = operator("communication", 10, "HcomAllReduce", 48, can_fuse=False)
    within = [vector(10), refused, vector(10)]
    assert "not in the scope" in failure_of(within, *strict).detail
    apart = [vector(10), replace(refused, stream=1, after=(0,)), vector(10, after=(1,)), vector(10)]
    assert simulate(Plan((Scope("u0", "u0", strict),)), apart).tasks == 2


def test_a_cube_operator_that_waits_after_a_vector_operator_does_not_compile() -> None:
    """The generator of 9.0.0 to master uses a name there that it does not define."""
    waiting = [vector(10), vector(10, kind="HcomAllReduce", stream=1, can_fuse=False), cube(10, after=(1,)), vector(10)]
    failure = failure_of(waiting)
    assert "NameError" in failure.detail and "end the scope before" in failure.detail


def test_cores_that_are_too_few_for_an_operator_do_not_compile() -> None:
    """debug-aic-num alone means no vector cores."""
    failure = failure_of([vector(), cube()], ("debug-aic-num", 24))
    assert "debug-aiv-num" in failure.detail


def test_feed_sync_all_clears_its_workspace_first() -> None:
    """Also where no operator needs it."""
    fed = Plan((Scope("u0", "u0", (("feed-sync-all", 1),)),))
    assert simulate(fed, [vector()] * 3).terms["sync_all"] == CONSTANTS["feed_prologue_us"]


def test_early_start_without_hooks_is_the_code_of_stream_fusion_on_one_stream() -> None:
    """Byte for byte, so it is one plan; with early-start=0 every border is a full barrier, fused or not."""
    inside = [vector(10), cube(10, kind="GroupedMatmul")] * 3
    times = {text: simulate(Plan((Scope("u0", "u0", options),)), inside).total_us for text, options in {
        "hooks": (), "without": (("early-start", 2),), "fused": (("stream-fusion", 1),),
        "barriers": (("early-start", 0),), "both": (("early-start", 0), ("stream-fusion", 1)),
    }.items()}  # fmt: skip
    assert times["hooks"] < times["without"] == times["fused"] < times["barriers"] == times["both"]


def test_sync_all_on_too_few_cores_hangs_without_feed_sync_all() -> None:
    """Facts 3.4; the option has a small cost."""
    inside = [vector(), vector(blocks=8, calls_sync_all=True)]
    operators, layout = step_of(inside)
    failure = step_latency(operators, Plan((Scope("u0", "u0"),)), layout, CONSTANTS)
    assert isinstance(failure, SimulatedFailure)
    assert failure.reason is Reason.TIMEOUT
    assert "simulated" in failure.detail and "feed-sync-all=1" in failure.detail
    fed = simulate(Plan((Scope("u0", "u0", (("feed-sync-all", 1),)),)), inside)
    assert fed.terms["sync_all"] > 0
    assert simulate(Plan((Scope("u0", "u0"),)), [vector(calls_sync_all=True)] * 2).terms["sync_all"] == 0


def test_a_compiler_that_splits_at_sync_all_does_not_hang() -> None:
    """Newer versions of GE begin another SuperKernel with the operator; feed-sync-all does not keep it together."""
    splitting = CONSTANTS.model_copy(
        update={"splits_at_sync_all": Behaviour(value=True, assumed=True, reason="set by a test")}
    )
    operators, layout = step_of([vector(), vector(), vector(blocks=8, calls_sync_all=True), vector(blocks=8)])
    for options in ((), (("feed-sync-all", 1),)):
        step = step_latency(operators, Plan((Scope("u0", "u0", options),)), layout, splitting)
        assert isinstance(step, SimulatedStep)
        (span,) = step.spans
        assert [part.operators for part in span.parts] == [2, 2]
        assert span.cuts == (("Mul", PassCut.SYNC_ALL),)


def test_early_start_needs_a_kernel_with_hooks_at_the_border() -> None:
    """Before or after it: the generator adds the signal or the wait that the other kernel lacks."""
    plan = Plan((Scope("u0", "u0"),))
    hooked = cube(10, kind="GroupedMatmul")
    saved = CONSTANTS["early_start_us"]
    for inside, borders in (
        ([vector(10), cube(10)], 0), ([hooked, vector(10), vector(10)], 1), ([vector(10), hooked, vector(10)], 2),
        ([hooked, hooked], 1),
    ):  # fmt: skip
        assert simulate(plan, inside).terms["early_start"] == pytest.approx(-borders * saved)


def test_a_strict_scope_fails_or_is_dropped() -> None:
    """Facts 2.2: abort fails, bypass leaves the operators unfused."""
    operators, layout = step_of([vector(), vector(), vector(kind="Cast", can_fuse=False)])
    abort = step_latency(operators, Plan((Scope("u0", "u0", (("strict-scope-check", "abort"),)),)), layout, CONSTANTS)
    assert isinstance(abort, SimulatedFailure) and "Cast" in abort.detail
    bypass = step_latency(operators, Plan((Scope("u0", "u0", (("strict-scope-check", "bypass"),)),)), layout, CONSTANTS)
    baseline = step_latency(operators, Plan(), layout, CONSTANTS)
    assert isinstance(bypass, SimulatedStep) and isinstance(baseline, SimulatedStep)
    assert bypass.total_us == baseline.total_us


def test_an_option_that_the_compiler_rejects_is_rejected() -> None:
    """The message suggests the nearest one."""
    operators, layout = step_of([vector()])
    with pytest.raises(SpaceError, match="early-start"):
        step_latency(operators, Plan((Scope("u0", "u0", (("early-star", 0),)),)), layout, CONSTANTS)
