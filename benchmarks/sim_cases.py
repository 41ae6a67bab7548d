"""The cost model compared with published cases: published figures, simulated figures, and errors.

    python benchmarks/sim_cases.py [--write]

Prints the table of docs/explanation/simulation.md; ``--write`` puts it there.
One set of constants, that of ``atlas_a3.yaml``, for all.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script can only import modules beside it

from benchmarks.real_pairs import PAIRS, Pair, first_use_of_unfused_us, left_out, set_values  # noqa: E402
from sktune.core.layout import Layout  # noqa: E402
from sktune.core.plan import Plan, Scope  # noqa: E402
from sktune.sim.constants import Constants, load_constants  # noqa: E402
from sktune.sim.deployment import deploy  # noqa: E402
from sktune.sim.launch import head_us  # noqa: E402
from sktune.sim.model import SimulatedStep, StepModel  # noqa: E402
from sktune.sim.operators import Operator  # noqa: E402
from sktune.sim.superkernel import busy_us  # noqa: E402
from sktune.sim.trace import ATTENTION, trace_operators  # noqa: E402
from sktune.targets import PresetSpec  # noqa: E402
from sktune.targets.loading import load  # noqa: E402
from sktune.targets.presets import load_preset  # noqa: E402
from sktune.targets.tracing import trace_layout  # noqa: E402

PAGE = ROOT / "docs" / "explanation" / "simulation.md"
BEGIN, END = "<!-- cases: benchmarks/sim_cases.py -->", "<!-- end of cases -->"


@dataclass(frozen=True, slots=True)
class Case:
    """One published figure and the simulated one, in the same unit."""

    name: str
    source: str
    published: float
    simulated: float
    unit: str
    remark: str


LONGCAT_SOURCE = "cann-recipes-infer, LongCat-Flash"
CLOUDMATRIX = "arXiv 2506.12708"
RECIPES = "cann-recipes-infer"
HUAWEI = "Huawei's article, CSDN 155195336"

# LongCat-Flash operators on 24 AIC + 48 AIV and on half of them, microseconds.
LONGCAT = {
    "MLAProlog": (45.2, 68.1),
    "FA": (91.8, 118.0),
    "MM": (14.2, 18.0),
    "TBMM": (12.5, 19.6),
    "QBMM1": (14.6, 18.7),
    "QBMM2": (16.3, 20.1),
}

# Published cases that the model cannot reproduce.
CANNOT = (
    ("hy3 295B, 31.5 to 30.8 ms", RECIPES, "its operators and their times are not published"),
    ("LongCat-Flash-Lite, no gain", RECIPES, "its operators and their streams are not published"),
    ("LongCat-Flash, TPOT 9.5 to 10.64 ms", RECIPES, "two streams on parts of the cores, and multi-token prediction"),
    ("Qwen3-235B, 30 ms", RECIPES, "tensor parallelism over 4 dies"),
    ("DeepSeek-R1 on 128 dies, TPOT 44.9 ms", RECIPES, "multi-token prediction: a step answers for several tokens"),
    ("CloudMatrix384, TPOT 49.4, 24.6 and 14.9 ms", CLOUDMATRIX, "multi-token prediction; ratios are in the table"),
    ("CloudMatrix384, micro-batch gain 5.8 to 9.4%", CLOUDMATRIX, "two streams on disjoint cores, by hand"),
    ("CloudMatrix384, dispatch, combine and utilisation", CLOUDMATRIX, "constants of the model, so not a test of it"),
    ("DispatchFFNCombineW4A8, 250.5 us", "vllm-ascend, note of 2026-09-16", "bound by scalar units, not in the model"),
    ("recommender net at 10% utilisation", "GE, inference_optimization_cases", "bound by the host, between kernels"),
    ("multi_stream toy schedule, 110 and 100 us", "torchair, multi_stream.md", "the schedule is not fully stated"),
    ("RmsNorm, 10 us", LONGCAT_SOURCE, "its shape is not published"),
    ("skill text, 10 to 40%", "cannbot-skills, model-infer-superkernel", "no measurement behind it"),
)


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/explanation/simulation.md")
    arguments = parser.parse_args()
    text = table(load_constants())
    print(text)
    if arguments.write:
        page = PAGE.read_text()
        before, _, rest = page.partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{text}{END}{after}")


def table(constants: Constants) -> str:
    """Return the three tables as Markdown."""
    lines = [
        pairs(constants),
        "| case | source | published | simulated | error | remark |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for case in [*core_counts(constants), *deepseek(constants)]:
        if case.unit == "%":
            error = f"{case.simulated - case.published:+.1f} points"
        else:
            error = f"{100 * (case.simulated / case.published - 1):+.0f}%"
        lines.append(
            f"| {case.name} | {case.source} | {_figure(case.published, case.unit)} "
            f"| {_figure(case.simulated, case.unit)} | {error} | {case.remark} |"
        )
    lines += ["", "| case | source | why the model cannot answer it |", "| --- | --- | --- |"]
    lines += [f"| {name} | {source} | {why} |" for name, source, why in CANNOT]
    return "\n".join(lines) + "\n"


def _figure(value: float, unit: str) -> str:
    return f"{value:.3g}" if not unit else f"{value:.4g} {unit}" if unit != "%" else f"{value:.1f}%"


def pairs(constants: Constants) -> str:
    """Return the real pairs: gain, simulated gain, and the one with the pair left out of the fit, as Markdown."""
    lines = [
        "| profile without and with SuperKernel | source | published | gain | simulated | left out | error left out |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for pair in PAIRS:
        (apart,) = left_out(constants, [pair])
        lines.append(_pair(pair, pair.simulated_gain(constants), apart))
    unfused = set_values(constants, {"first_use_us": first_use_of_unfused_us()})
    exercise = PAIRS[:2]
    for pair, apart in zip(exercise, left_out(unfused, exercise, ("barrier_mix_us",)), strict=True):
        name = f"the same, both passes left out, `first_use_us` {unfused['first_use_us']:.1f}"
        lines.append(_pair(replace(pair, name=name), None, apart))
    return "\n".join(lines) + "\n"


def _pair(pair: Pair, simulated: float | None, apart: float) -> str:
    return (
        f"| {pair.name} | {pair.source} | {pair.before_us:.1f} to {pair.after_us:.1f} us | {pair.gain:.1f}% "
        f"| {'' if simulated is None else f'{simulated:.1f}%'} | {apart:.1f}% | {apart - pair.gain:+.1f} points |"
    )


def core_counts(constants: Constants) -> list[Case]:
    """LongCat's operators on half of the cores, from their time on all."""
    cases = []
    moved_a_us = 1e6 * constants["hbm_tbps"] * constants["hbm_efficiency"]
    for name, (whole_us, half_us) in LONGCAT.items():
        on_all = Operator(name, name, "cube", blocks=24)
        on_all = replace(on_all, bytes_moved=(whole_us - head_us(on_all, constants)) * moved_a_us)
        on_half = replace(on_all, blocks=12)
        simulated = head_us(on_half, constants) + busy_us(on_half, constants)
        remark = "in sample: core_exponent is the mean of these six"
        cases.append(Case(f"{name} on 12 AIC + 24 AIV", LONGCAT_SOURCE, half_us, simulated, "us", remark))
    return cases


def deepseek(constants: Constants) -> list[Case]:
    """One die of DeepSeek-V3 over 256 dies, INT8 weights and activations, 4096 tokens in the cache."""
    steps = {batch: _die(batch, constants) for batch in (96, 24, 8)}
    operators, layout = steps[96]
    baseline = _simulated(operators, Plan(), layout, constants)
    layers = [[unit.name for unit in layout.units if unit.layer == index] for index in range(len(layout.layers))]
    whole = Plan((Scope(layers[0][0], layers[-1][-1]),))
    gain = 100 * (1 - _simulated(operators, whole, layout, constants) / baseline)
    bare = [op if op.core == "aicpu" else replace(op, can_fuse=True) for op in operators]
    most = 100 * (1 - _simulated(bare, whole, layout, constants) / baseline)
    there = "there two micro-batches side by side, here one stream; 96 is taken to be the batch of a die"
    cases = [
        Case(
            "DeepSeek-R1 on CloudMatrix384, one layer, batch 96", CLOUDMATRIX, 874, baseline / len(layers), "us", there
        ),
        Case("DeepSeek-V3, gain by SuperKernel, lower end", HUAWEI, 10, gain, "%", "one scope over all layers"),
        Case("the same", HUAWEI, 10, most, "%", "if all but AI CPU operators could be fused"),
    ]
    for batch, tpot_ms in ((24, 24.6), (8, 14.9)):
        ratio = _simulated(*_swap(steps[batch]), constants) / baseline
        name = f"CloudMatrix384, batch {batch} over batch 96"
        cases.append(Case(name, CLOUDMATRIX, tpot_ms / 49.4, ratio, "", "ratio of TPOT there, of step times here"))
    return cases


def _swap(step: tuple[Sequence[Operator], Layout]) -> tuple[Sequence[Operator], Plan, Layout]:
    return step[0], Plan(), step[1]


def _die(batch: int, constants: Constants) -> tuple[Sequence[Operator], Layout]:
    target = load(PresetSpec("deepseek-v3", scale="full", device="meta", batch=batch, context=4096))
    layout = trace_layout(target, load_preset("deepseek-v3").space)
    return [_quantised(op) for op in deploy(trace_operators(target, layout, constants), constants)], layout


def _quantised(operator: Operator) -> Operator:
    """Return a bf16 matmul as INT8; attention stays in bf16, as CloudMatrix384 has it."""
    if operator.core != "cube" or operator.dtype != "bf16" or operator.type == ATTENTION:
        return operator
    return replace(operator, dtype="int8", bytes_moved=operator.bytes_moved / 2)


def _simulated(operators: Sequence[Operator], plan: Plan, layout: Layout, constants: Constants) -> float:
    step = StepModel(operators, layout, constants).step(plan)
    assert isinstance(step, SimulatedStep), step
    return step.total_us


if __name__ == "__main__":
    main()
