"""The law of SuperKernels: what it counts, its prior, what is found of a device, and devices that do not follow it."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from optuna.trial import TrialState, create_trial

from benchmarks.device_constants import learned_on, truth
from benchmarks.landscapes.devices import TEST, device
from sktune.core.codec import decoded, encoded
from sktune.core.fused_scopes import FusedPart, FusedScope
from sktune.core.layout import Kernel, KernelCore, Layer, Layout, Unit
from sktune.core.outcome import Outcome, Reason
from sktune.core.scope_options import option_defaults
from sktune.core.space import NEW, OptionRules, SpaceSpec, bind
from sktune.learning.attributes import OUTCOME
from sktune.learning.device import constants_us, found
from sktune.learning.history import Learned
from sktune.learning.law import (
    CODE_KNOTS_KIB,
    COPIES,
    DEFAULTS,
    INTO_MIX_US,
    OUT_OF_MIX_US,
    PRELOADED_KIB,
    PRIOR_TANGENT,
    PRIOR_US,
    TEXT_KIB,
    Law,
    Tangent,
)
from sktune.learning.segments import SegmentCatalogue
from sktune.sim.constants import load_constants
from sktune.sim.launch import task_us
from sktune.study.strategy import distributions


def layout_of(rng: np.random.Generator, units: int = 9) -> Layout:
    """Return units with a few random kernels each, some of them with none."""
    cores: tuple[KernelCore, ...] = ("vector", "vector", "cube", "mix")

    def kernels(most: int) -> tuple[Kernel, ...]:
        count = int(rng.integers(most + 1))
        return tuple(
            Kernel(f"T{rng.integers(4)}", cores[int(rng.integers(4))], bool(rng.random() < 0.8),
                   busy_us=float(rng.choice((0.0, 0.05, 1.0, 1.7, 9.0))))
            for _ in range(count)
        )  # fmt: skip

    return Layout(
        tuple(Unit(f"layers.{n // 3}.u{n % 3}", f"u{n}", n // 3, kernels=kernels(6), between=kernels(2))
              for n in range(units)),
        tuple(Layer(f"layers.{n}", f"kind{n}") for n in range(units // 3)),
    )  # fmt: skip


def counted(layout: Layout, first: int, last: int) -> dict[str, float]:
    """Return what the law counts in one scope, operator by operator."""
    kernels: list[Kernel] = []
    for number, unit in enumerate(layout.units[first : last + 1], first):
        kernels += unit.kernels + (unit.between if number < last else ())
    # What lies between before the first kernel, or after the last one, is not in the scope.
    while kernels and not layout.units[first].kernels:
        first += 1
        kernels = kernels[len(layout.units[first - 1].between) :]
        if first > last:
            return {}
    runs: list[list[Kernel]] = [[]]
    for kernel in kernels:
        if kernel.can_fuse:
            runs[-1].append(kernel)
        else:
            runs.append([])
    found: dict[str, float] = {"superkernel_us": 0.0}
    for run in runs:
        found["superkernel_us"] += len(run) > 1
        cores = {kernel.core for kernel in run}
        whole = cores.pop() if len(cores) == 1 else "mix"
        loaded = TEXT_KIB[run[0].core] if run else 0.0
        for before, after in pairwise(run):
            loaded += TEXT_KIB[after.core]
            names = ["links", f"after {before.core}", f"full {whole}", f"type {after.type}"]
            names += ["crossings"] if before.core != after.core and "mix" not in (before.core, after.core) else []
            if before.type != after.type:
                names += ["changes", *(["changes after the first lines"] if loaded > PRELOADED_KIB else [])]
                if not before.busy_us:
                    names += [f"changes after {before.type}", "changes of unknown times"]
            for copies, load_us in zip(COPIES, PRIOR_TANGENT.loads_us, strict=True):
                if before.type != after.type and 0 < before.busy_us < load_us:
                    names.append(f"late in {copies} copies")
                    found[f"hidden in {copies} copies"] = found.get(f"hidden in {copies} copies", 0) + before.busy_us
            if 0 < (shorter_us := min(before.busy_us, after.busy_us)) < PRIOR_TANGENT.early_start_us:
                found["short early starts"] = found.get("short early starts", 0.0) + shorter_us
            else:
                names.append("early starts")
            for name in names:
                found[name] = found.get(name, 0.0) + 1
            for knot in CODE_KNOTS_KIB:
                name = f"code beyond {knot:g} KiB"
                found[name] = found.get(name, 0.0) - (loaded > knot)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_the_operators(seed: int) -> None:
    """In each class of segments of random layouts, against a count operator by operator."""
    layout = layout_of(np.random.default_rng(seed))
    if not layout.units[0].kernels or not all(unit.kernels for unit in layout.units):
        layout = Layout(tuple(unit for unit in layout.units if unit.kernels), layout.layers)
    catalogue = SegmentCatalogue(layout, float("inf"))
    law = Law(catalogue)
    for number, (first, last) in enumerate(zip(catalogue.first, catalogue.last, strict=True)):
        expected = counted(layout, int(first), int(last))
        for column, name in enumerate(law.names):
            if not name.startswith("pair ") and name != "changes beyond the preload":
                assert law.counts[number, column] == pytest.approx(expected.get(name, 0.0)), (name, first, last)


def test_what_options_do_depends_on_types() -> None:
    """Early start by an operator's type; loading code by the type before, and by the number of copies."""
    cube, vector = Kernel("T0", "cube"), Kernel("T1", "vector")
    layout = Layout((Unit("u", "u", kernels=(cube, vector, cube, vector)),), ())
    law = Law(SegmentCatalogue(layout, float("inf")))

    def saved(**options: int | str) -> dict[str, float]:
        given = tuple((name.replace("_", "-"), value) for name, value in options.items())
        weights = law.counts[0] @ law.weights(given)
        return {term.name: weight for term, weight in zip(law.terms, weights, strict=True) if weight}

    default = saved()
    assert (default["early start of T0"], default["early start of T1"]) == (1, 2)
    assert "early start of T0" not in saved(early_start=0)
    assert (default["unhidden after T0"], default["unhidden after T1"]) == (-2, -1)
    assert "unhidden after T1" not in saved(preload_code="none")
    copied = {copies: {name for name in saved(split_mode=copies) if name.endswith("or more copies")}
              for copies in (1, 3, 4, 64)}  # fmt: skip
    assert copied[4] == {"unhidden after cube in 4 or more copies", "unhidden after vector in 4 or more copies"}
    assert [name.split(" in ")[1] for name in sorted(copied[3] | copied[64])] == [
        "2 or more copies", "8 or more copies"] * 2  # fmt: skip
    assert law.types_after("cube") == {"T1": 1.0}


def test_the_prior_is_the_simulators() -> None:
    """Its means are the constants of the simulated device, and its defaults those of the compiler."""
    constants = load_constants()
    for name, (mean_us, _) in PRIOR_US.items():
        assert mean_us == pytest.approx(task_us(constants) if name == "task_us" else constants[name])
    loads_us = tuple(constants["icache_fetch_us"] + constants["icache_contention_us"] / copies
                     + constants["icache_copy_us"] * copies for copies in COPIES)  # fmt: skip
    assert PRIOR_TANGENT.loads_us == pytest.approx(loads_us)
    assert PRIOR_TANGENT.early_start_us == constants["early_start_us"]
    assert (constants["gap_into_mix_us"], constants["gap_out_of_mix_us"]) == (INTO_MIX_US, OUT_OF_MIX_US)
    assert DEFAULTS.items() <= option_defaults().items()


def test_operators_hide_what_their_known_times_allow() -> None:
    """Loading and early start are charged by the operator's time where the device needs longer, and whole elsewhere."""
    short, long = Kernel("T0", "vector", busy_us=0.5), Kernel("T1", "vector", busy_us=9.0)
    catalogue = SegmentCatalogue(Layout((Unit("u", "u", kernels=(short, long, short)),), ()), float("inf"))
    law = Law(catalogue, tangent=Tangent((4.0, 3.0, 2.0, 1.0), 0.75))
    saved = dict(zip([term.name for term in law.terms], law.counts[0] @ law.weights(()), strict=True))
    # Of two changes one is late, and both links start early by no more than the short operator's time.
    assert (saved["icache_fetch_us"], saved["icache_contention_us"], saved["icache_copy_us"]) == (-1, -0.25, -4)
    assert (saved["early_start_us"], saved["hidden"]) == (0, 0.5 + 2 * 0.5)
    fast = Law(catalogue, tangent=Tangent((0.4,) * 4, 0.1))
    saved = dict(zip([term.name for term in fast.terms], fast.counts[0] @ fast.weights(()), strict=True))
    assert (saved["icache_fetch_us"], saved["early_start_us"], saved["hidden"]) == (0, 2, 0)


def test_types_that_stay_outside_are_not_counted() -> None:
    """As soon as they were seen outside of SuperKernels."""
    layout = layout_of(np.random.default_rng(3))
    catalogue = SegmentCatalogue(layout, float("inf"))
    law = Law(catalogue, frozenset({"T1"}))
    assert not law.counts[:, law.names.index("type T1")].any()
    assert law.counts.sum() != Law(catalogue).counts.sum()


def test_a_type_that_is_fused_in_one_place_can_be_fused() -> None:
    """What is learned of a type from what scopes became, in any order; also from plans that then change bits."""
    layout = layout_of(np.random.default_rng(3))
    space = bind(SpaceSpec(layers_per_scope=[1]), layout, {}, OptionRules({}))
    kinds = list(dict.fromkeys(kernel.type for unit in layout.units for kernel in unit.kernels))
    point = {**space.simplest, **{space.parameter(unit): NEW for unit in layout.units}}

    def links_with(outside: str, inside: str, reason: Reason | None) -> float:
        parts = (FusedPart(1, types=(outside,)), FusedPart(2, "SuperKernel"))
        fused = (FusedScope(("s",), parts, (inside,)),)
        trial = create_trial(params=point, distributions=distributions(space), state=TrialState.PRUNED,
                             user_attrs={OUTCOME: encoded(Outcome(reason, fused=fused))})  # fmt: skip
        learned = Learned(space)
        learned.read([trial])
        assert learned.model.law is not None
        return float(learned.model.law.counts[:, learned.model.law.names.index("links")].sum())

    known = links_with(kinds[0], kinds[0], Reason.SLOWER)
    assert links_with(kinds[0], kinds[1], Reason.SLOWER) < known
    assert links_with(kinds[0], kinds[1], Reason.MISMATCH) < known


def test_layouts_keep_their_kernels() -> None:
    """Stored and read again; equal lists are stored once, and the digest is that of the layout without them."""
    layout = layout_of(np.random.default_rng(5))
    assert decoded(Layout, json.loads(json.dumps(encoded(layout)))) == layout
    bare = layout.with_kernels(())
    assert "kernels" not in str(encoded(bare))
    assert bare.digest == layout.digest
    alike = bare.with_kernels((unit.name, Kernel("Add", "vector")) for unit in bare.units)
    assert len(encoded(alike)["kernels"]) == 1


def test_a_device_is_found() -> None:
    """After ten trials on a device that follows the law, what a study can determine is close to the truth."""
    landscape = device("known", (), 4)
    posterior = learned_on(landscape, 10, seed=0).posterior()
    determined = [each for each in found(posterior) if each.is_determined]
    true = truth(landscape)
    assert len(determined) >= 2
    # The mean over all operators is not the simulator's constant, which is that of kernels with hooks.
    assert "early start" in {each.name for each in determined}
    assert "early_start_us" not in constants_us(posterior)
    for each in determined:
        assert abs(each.us - true[each.name]) < 4 * each.sd_us + 0.25 * abs(true[each.name]), each


def test_the_law_is_dropped_where_devices_do_not_follow_it() -> None:
    """Kernels that say nothing about what scopes save: the evidence prefers the model without them."""
    landscape = device("test", TEST, 2)
    rng = np.random.default_rng(0)
    kinds = {unit.key: tuple(Kernel(f"K{n}", "vector") for n in range(int(rng.integers(1, 40))))
             for unit in landscape.space.layout.units}  # fmt: skip
    units = tuple(replace(unit, kernels=kinds[unit.key], between=()) for unit in landscape.space.layout.units)
    landscape.space = replace(landscape.space, layout=replace(landscape.space.layout, units=units))
    learned = learned_on(landscape, 12, seed=0)
    follows = sum(belief.weight for belief in learned.beliefs() if belief.posterior.chosen.follows_law)
    assert follows < 0.5
