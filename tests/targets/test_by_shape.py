"""Plans for several shapes on one model: each compiled step gets the plan of its own shape."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sktune
from sktune.backends.inductor import backend
from sktune.core.delivery import ExpectedCode
from sktune.core.errors import PlanError
from sktune.core.plan import Plan, Scope
from sktune.core.plan_file import plan_values, read_plan_file, write_plan
from sktune.program.sktune_program.calls import shapes_of_calls
from sktune.program.sktune_program.inductor import compiled_regions
from sktune.targets.by_shape import ShapedPlans

EXACT = (("emulate_precision_casts", True), ("matmul", "aten"), ("reductions", "aten"))
FIRST, BOTH = Plan((Scope("blocks.0", "blocks.0", EXACT),)), Plan((Scope("blocks.0", "blocks.1", EXACT),))


class Block(nn.Module):
    """One unit; ``mask`` stands for what has the length of the KV cache."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, values: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return the mixed values."""
        mixed: torch.Tensor = self.mix(values).relu()
        return values + (mixed if mask is None else mixed * mask.sum())


class Model(nn.Module):
    """Two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Run the blocks; only the first one sees the mask."""
        mixed: torch.Tensor = self.blocks[1](self.blocks[0](values, mask=mask))
        return mixed


def inputs(batch: int, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the arguments of a step at a shape."""
    return torch.ones(batch, 8), torch.ones(batch, context)


@pytest.fixture
def model() -> Model:
    """A model in evaluation."""
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """The labels of the scopes of each graph that is compiled."""
    labels: list[list[str]] = []
    compile_scopes = compiled_regions.compile_scopes

    def recording(marked: Any, example_inputs: Any) -> Any:
        labels.append(sorted(marked.spans))
        return compile_scopes(marked, example_inputs)

    monkeypatch.setattr(backend, "compile_scopes", recording)
    torch.compiler.reset()
    yield labels
    torch.compiler.reset()


def calls_at(model: Model, batch: int, context: int) -> dict[str, str]:
    """Return the types and shapes with which a step of this shape calls the blocks."""
    with shapes_of_calls(model, {name: name for name in ("blocks.0", "blocks.1")}) as calls:
        model(*inputs(batch, context))
    return calls


def plan_file(folder: Path, model: Model, plans: dict[tuple[int, int], Plan], single: Plan = FIRST) -> Path:
    """Write a plan file with a plan for each shape of batch and context."""
    entries = [
        {
            "batch": batch,
            "context": context,
            "calls": calls_at(model, batch, context),
            **plan_values(plan, {}),
        }
        for (batch, context), plan in plans.items()
    ]
    path = folder / "best_plan.yaml"
    path.write_text(write_plan(single, {}, shapes=entries))
    return path


def run(model: Model, *shapes: tuple[int, int]) -> None:
    """Compile the model's step at each shape, and check its bits."""
    step = torch.compile(model, backend="sktune", fullgraph=True, dynamic=False)
    with torch.no_grad():
        for shape in shapes:
            assert torch.equal(step(*inputs(*shape)), model(*inputs(*shape)))


def test_each_shape_gets_its_own_plan(model: Model, compiled: list[list[str]], tmp_path: Path) -> None:
    """Told by batch and context; the plan of one may be the baseline."""
    path = plan_file(tmp_path, model, {(1, 16): FIRST, (4, 16): BOTH, (4, 64): Plan()})
    marks = sktune.apply(model, path)
    run(model, (1, 16), (4, 16), (4, 64))
    assert compiled == [["blocks.0"], ["blocks.0..blocks.1"], []]
    marks.detach()
    torch.compiler.reset()
    run(model, (1, 16))
    assert compiled[-1] == []


def test_the_plans_live_as_long_as_the_model(model: Model, compiled: list[list[str]], tmp_path: Path) -> None:
    """Also if what ``apply`` returns is thrown away."""
    sktune.apply(model, plan_file(tmp_path, model, {(1, 16): FIRST, (4, 16): BOTH}))
    run(model, (4, 16))
    assert compiled == [["blocks.0..blocks.1"]]


def test_a_shape_that_was_never_verified(
    model: Model, compiled: list[list[str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It gets the single plan, and a warning with the shapes that there are."""
    sktune.apply(model, plan_file(tmp_path, model, {(1, 16): BOTH, (4, 16): BOTH}))
    with caplog.at_level(logging.WARNING):
        run(model, (2, 16))
    assert compiled == [["blocks.0"]]
    assert "no plan was verified (verified: batch=1 context=16, batch=4 context=16)" in caplog.text


def test_shapes_that_a_step_does_not_tell_apart(
    model: Model, compiled: list[list[str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They get the single plan, unless their plans are the same."""
    path = plan_file(tmp_path, model, {(1, 16): FIRST, (4, 16): BOTH})
    path.write_text(path.read_text().replace("float32[4,", "float32[1,"))
    marks = sktune.apply(model, path)
    with caplog.at_level(logging.WARNING):
        run(model, (1, 16))
    assert "does not tell batch=1 context=16 and batch=4 context=16 apart" in caplog.text
    assert compiled == [["blocks.0"]]
    marks.detach()
    path = plan_file(tmp_path, model, {(1, 16): BOTH, (4, 16): BOTH})
    path.write_text(path.read_text().replace("float32[4,", "float32[1,"))
    sktune.apply(model, path)
    torch.compiler.reset()
    run(model, (1, 16))
    assert compiled[-1] == ["blocks.0..blocks.1"]


def test_strict_plans_are_refused_where_a_shape_is_not_clear(model: Model, tmp_path: Path) -> None:
    """The single plan comes without verified code, so it is no way out; that of one shape can be named."""
    path = plan_file(tmp_path, model, {(1, 16): FIRST, (4, 16): BOTH})
    path.write_text(path.read_text().replace("float32[4,", "float32[1,"))
    plans = ShapedPlans(model, read_plan_file(path), [{}, {}], strict=True)
    calls = read_plan_file(path).shapes[0].calls
    with pytest.raises(PlanError, match=r"does not tell batch=1 context=16 and batch=4 context=16 apart.*shape="):
        plans.chosen(calls)
    with pytest.raises(PlanError, match="no plan was verified"):
        plans.chosen({"blocks.0": "float32[9, 8]"})
    with pytest.raises(PlanError, match=r"sizes that may change.*compile it with dynamic=False"):
        plans.chosen({"blocks.0": "float32[s0, 8]"})
    plans.detach()


@pytest.mark.parametrize("strict", [False, True])
def test_one_plan_whose_code_differs_by_shape(
    model: Model, compiled: list[list[str]], tmp_path: Path, caplog: pytest.LogCaptureFixture, strict: bool
) -> None:
    """Where a step does not tell the shapes apart, neither code is called unverified; strict ones need a name."""
    path = plan_file(tmp_path, model, {(1, 16): FIRST, (4, 16): FIRST})
    path.write_text(path.read_text().replace("float32[4,", "float32[1,"))
    codes = [{"blocks.0": ExpectedCode(digest, strict)} for digest in ("one", "another")]
    plans = ShapedPlans(model, read_plan_file(path), codes, strict=strict)
    if strict:
        with pytest.raises(PlanError, match=r"apart, and the code of their plan differs; name one with shape="):
            plans.chosen(read_plan_file(path).shapes[0].calls)
    else:
        run(model, (1, 16))
        assert compiled == [["blocks.0"]] and "verified" not in caplog.text
    plans.detach()


def test_more_shapes_than_dynamo_keeps_graphs(model: Model, compiled: list[list[str]], tmp_path: Path) -> None:
    """Each shape has one."""
    batches = range(1, 12)
    path = plan_file(tmp_path, model, {(batch, 16): Plan() for batch in batches}, Plan())
    with torch._dynamo.config.patch(recompile_limit=8):
        sktune.apply(model, path)
        run(model, *((batch, 16) for batch in batches))
    assert len(compiled) == len(batches)


def test_a_part_of_the_model_gets_the_plans(model: Model, compiled: list[list[str]], tmp_path: Path) -> None:
    """Of the units by which a shape is told, it may lack some."""
    around = nn.Module()
    around.model, around.head = model, nn.Linear(8, 8)  # the plan was made for this
    plan = Plan((Scope("model.blocks.0", "model.blocks.1", EXACT),))
    entries = [
        {
            "batch": batch,
            "calls": {f"model.{name}": call for name, call in calls_at(model, batch, 16).items()}
            | {"head": f"float32[{batch}, 8]"},
            **plan_values(each, {}),
        }
        for batch, each in ((1, Plan()), (4, plan))
    ]
    (tmp_path / "best_plan.yaml").write_text(write_plan(Plan(), {}, shapes=entries))
    sktune.apply(model, tmp_path / "best_plan.yaml")
    run(model, (1, 16), (4, 16))
    assert compiled == [[], ["model.blocks.0..model.blocks.1"]]


def test_one_shape_can_be_named(model: Model, compiled: list[list[str]], tmp_path: Path) -> None:
    """Then its plan is used whatever is compiled, as that of a file with a single one."""
    path = plan_file(tmp_path, model, {(1, 16): FIRST, (4, 16): BOTH})
    sktune.apply(model, path, shape="context=16 batch=4")
    run(model, (2, 16))
    assert compiled == [["blocks.0..blocks.1"]]
    with pytest.raises(PlanError, match="its shapes: batch=1 context=16, batch=4 context=16"):
        sktune.apply(model, path, shape="batch=2")
    with pytest.raises(PlanError, match="a shape is chosen from a plan file"):
        sktune.apply(model, FIRST, shape="batch=2")


def test_other_compilers_need_a_named_shape(model: Model, tmp_path: Path) -> None:
    """TorchAir compiles the step itself; the message says what to do."""
    path = plan_file(tmp_path, model, {(1, 16): FIRST, (4, 16): BOTH})
    path.write_text(path.read_text().replace("backend: inductor", "backend: npu"))
    path.write_text(path.read_text().replace("emulate_precision_casts: true", "split-mode: 4"))
    text = "\n".join(line for line in path.read_text().splitlines() if "aten" not in line)
    path.write_text(text)
    with pytest.raises(PlanError, match=r"give shape='batch=1 context=16' or another one, or start the program"):
        sktune.apply(model, path)


def test_strict_needs_code_for_every_plan(model: Model, tmp_path: Path) -> None:
    """A file without it is refused at once."""
    path = plan_file(tmp_path, model, {(1, 16): FIRST, (4, 16): BOTH})
    with pytest.raises(PlanError, match="strict=True needs a plan that comes with compiled code"):
        sktune.apply(model, path, strict=True)
