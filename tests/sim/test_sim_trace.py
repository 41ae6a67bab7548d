"""The simulator's operators from a model on shapes alone or from a GE graph, and the published cases."""

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig

from sktune.ascend.ge_graph import GeGraph, GeOperator, TensorSpec
from sktune.ascend.unit_kernels import unit_kernels
from sktune.core.errors import SimulationError, TargetError
from sktune.core.layout import Layout, Unit
from sktune.core.plan import Plan, Scope
from sktune.sim.deployment import COMBINE, DISPATCH, deploy, deployment_notes
from sktune.sim.ge import from_ge_graph
from sktune.sim.model import SimulatedStep
from sktune.sim.operators import Operator
from sktune.sim.trace import trace_operators
from sktune.targets import PresetSpec
from sktune.targets.loading import load
from sktune.targets.presets import load_preset
from sktune.targets.tracing import trace_layout
from tests.builders import ROOT
from tests.releases import as_recorded, shapes_only
from tests.sim.simulated_steps import CONSTANTS, simulate, step_latency, step_of, vector


@pytest.fixture(scope="module")
def full() -> tuple[tuple[Operator, ...], Layout]:
    """Return the published DeepSeek-V3, traced on shapes."""
    target = load(PresetSpec("deepseek-v3", scale="full", device="meta"))
    layout = trace_layout(target, load_preset("deepseek-v3").space)
    return trace_operators(target, layout, CONSTANTS), layout


@shapes_only
@pytest.mark.slow
def test_the_published_model_is_traced_without_weights(full: tuple[tuple[Operator, ...], Layout]) -> None:
    """61 layers, with equal tasks in all layers of a kind; the matmuls have the published shapes."""
    operators, layout = full
    assert len(layout.layers) == 61
    assert [layer.kind for layer in layout.layers] == ["dense"] * 3 + ["moe"] * 58
    assert all(unit.time_share == 0 for unit in layout.units)
    by_layer = [[op.type for op in operators if f".layers.{i}." in f"{op.module}."] for i in range(61)]
    assert by_layer[0] == by_layer[2] and by_layer[3] == by_layer[60]
    grouped = [op for op in operators if op.type == "GroupedMatmul"]
    assert len(grouped) == 2 * 58
    assert grouped[0].flops == 2 * 96 * 8 * 7168 * 4096


@shapes_only
@pytest.mark.slow
def test_one_die_of_the_deployment_is_of_the_published_size(full: tuple[tuple[Operator, ...], Layout]) -> None:
    """CloudMatrix384: 874 us per layer in INT8 with two micro-batches; bf16 in one stream is within a factor of 2.5."""
    operators, layout = full
    die = deploy(operators, CONSTANTS)
    assert [op.type for op in die].count(DISPATCH) == [op.type for op in die].count(COMBINE) == 58
    assert "256 routed experts over 256 dies" in deployment_notes(operators, CONSTANTS)
    baseline = step_latency(die, Plan(), layout, CONSTANTS)
    assert isinstance(baseline, SimulatedStep)
    assert 874 < baseline.total_us / 61 < 2.5 * 874
    layers = [[unit.name for unit in layout.units if unit.layer == index] for index in range(61)]
    fused = step_latency(die, Plan(tuple(Scope(names[0], names[-1]) for names in layers)), layout, CONSTANTS)
    assert isinstance(fused, SimulatedStep)
    assert 0.9 < fused.total_us / baseline.total_us < 1


@pytest.mark.parametrize("device", ["cpu", pytest.param("meta", marks=shapes_only)])
def test_a_small_model_is_traced_on_real_and_on_meta_tensors(device: str) -> None:
    """Both give the matmuls of the model; the state is restored."""
    target = load(PresetSpec("llama", scale="tiny", device=device))
    layout = trace_layout(target, load_preset("llama").space)
    before = {name: tensor.clone() for name, tensor in target.state.items()}
    operators = trace_operators(target, layout, CONSTANTS)
    layers = len(layout.layers)
    assert [op.type for op in operators].count("MatMulV2") == 7 * layers + 1
    assert [op.type for op in operators].count("FusedInferAttentionScore") == layers
    assert {op.unit for op in operators} - {None} <= {unit.name for unit in layout.units}
    assert [op.position for op in operators] == list(range(len(operators)))
    if device == "cpu":
        assert all((before[name] == tensor).all() for name, tensor in target.state.items())
    assert deploy(operators, CONSTANTS) == operators
    assert deployment_notes(operators, CONSTANTS) == ""


@shapes_only
def test_shapes_alone_have_no_weights_to_load(tmp_path: Path) -> None:
    """A checkpoint cannot be loaded into a model that only has shapes."""
    LlamaConfig().save_pretrained(tmp_path)
    with pytest.raises(TargetError, match="shapes only"):
        load(PresetSpec("llama", scale="tiny", device="meta", weights=str(tmp_path)))


def test_units_that_run_nothing_cost_nothing() -> None:
    """A scope over units without device tasks changes nothing."""
    operators, _ = step_of([vector()])
    layout = Layout((Unit("u0", "u0"), Unit("quiet", "quiet")), ())
    step = step_latency(operators, Plan((Scope("quiet", "quiet"),)), layout, CONSTANTS)
    assert isinstance(step, SimulatedStep) and step.total_us == pytest.approx(simulate(Plan(), [vector()]).total_us)


def test_a_ge_graph_gives_the_tasks_of_its_units() -> None:
    """Sizes come from the graph's shapes, transposed or not; constants and views are not tasks."""
    rows, inner, columns = (TensorSpec(shape, "bfloat16") for shape in ((96, 512), (1024, 512), (96, 1024)))
    graph = GeGraph(
        "graph",
        (
            GeOperator("x", "Data", output_specs=(rows,)),
            GeOperator("w", "Data", output_specs=(inner,)),
            GeOperator("mm", "MatMulV2", ("x:0", "w:0"), (rows, inner), (columns,), scope="u0"),
            GeOperator("view", "Reshape", ("mm:0",), (columns,), (columns,), scope="u0"),
            GeOperator("cast", "Cast", ("view:0",), (columns,), (replace(columns, dtype="float32"),), stream="side"),
        ),
    )
    layout = Layout((Unit("u0", "u0"),), ())
    matmul, cast = from_ge_graph(graph, layout, CONSTANTS)
    assert (matmul.core, matmul.unit, matmul.flops) == ("cube", "u0", 2 * 96 * 512 * 1024)
    assert matmul.bytes_moved == 2 * (96 * 512 + 1024 * 512 + 96 * 1024)
    assert (cast.core, cast.unit, cast.can_fuse) == ("vector", None, False)
    assert cast.stream != matmul.stream
    # On another stream it waits for what it takes, through a view: one event, as GE would insert it.
    assert (matmul.after, cast.after) == ((), (0,))
    kernels = [(name, kernel.type, kernel.core) for name, kernel in unit_kernels(graph, layout)]
    assert kernels == [("u0", "MatMulV2", "cube"), (None, "Cast", "vector")]
    with pytest.raises(SimulationError, match="units_plan"):
        from_ge_graph(graph, Layout((Unit("u1", "u1"),), ()), CONSTANTS)


@as_recorded
@pytest.mark.slow
def test_the_published_cases_in_the_docs_match_the_model() -> None:
    """No figure there is written by hand; a release of transformers may add or remove a few small operators."""
    root = ROOT
    location = importlib.util.spec_from_file_location("sim_cases", root / "benchmarks" / "sim_cases.py")
    assert location is not None and location.loader is not None
    cases = importlib.util.module_from_spec(location)
    sys.modules["sim_cases"] = cases
    location.loader.exec_module(cases)
    page = (root / "docs" / "explanation" / "simulation.md").read_text()
    written = page.partition(cases.BEGIN)[2].partition(cases.END)[0].strip()
    for line, line_now in zip(written.splitlines(), cases.table(CONSTANTS).strip().splitlines(), strict=True):
        assert FIGURE.sub("#", line) == FIGURE.sub("#", line_now)
        for column, (cell, cell_now) in enumerate(zip(line.split("|"), line_now.split("|"), strict=True)):
            now = figures(cell_now)
            accepted = pytest.approx(now, abs=1.5) if column == ERROR_COLUMN else pytest.approx(now, rel=0.03)
            assert figures(cell) == accepted


FIGURE = re.compile(r"[-+]?\d+(?:\.\d+)?")
ERROR_COLUMN = 5
"""The column in per cent or percentage points."""


def figures(cell: str) -> list[float]:
    return [float(figure) for figure in FIGURE.findall(cell)]
