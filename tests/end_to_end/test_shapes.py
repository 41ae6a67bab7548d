"""Several shapes, compiled and measured for real: a plan for each, applied to the step of each."""

import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import sktune
from sktune.cli import app
from sktune.core.errors import ExitCode
from sktune.core.events.lines import parse_event
from sktune.targets.base import decode_inputs
from tests.builders import TESTS, refusal
from tests.models.pointwise import target

MODEL = f"{TESTS / 'models' / 'pointwise.py'}:target"
STEPS = 48
SPACE = """
version: 1
space:
  units: [chain]
  layers_per_scope: [all]
  options: {inductor: {cpu: {emulate_precision_casts: [true], matmul: [aten], reductions: [aten]}}}
"""


def run(tuned: sktune.Target) -> list[torch.Tensor]:
    """Compile the decode step, and return the outputs of some steps."""
    step = torch.compile(tuned.decode_step, backend="sktune", fullgraph=True, dynamic=False)
    with torch.no_grad():
        return [step(*inputs).clone() for inputs in decode_inputs(tuned, 7, STEPS)]


@pytest.mark.slow
def test_a_plan_for_each_shape_is_searched_and_applied(tmp_path: Path) -> None:
    """With its verified code; `recheck` checks each, and at another shape strict plans are refused."""
    (tmp_path / "space.yaml").write_text(SPACE)
    answer = sktune.search_shapes(
        MODEL, shapes="batch=2,8", space=tmp_path / "space.yaml", trials=3, study="s", runs=tmp_path, verify_steps=64
    )
    assert not answer.single.is_baseline
    assert all(regret < 1 for regret in answer.regrets(answer.single))
    path = answer.folder / "best_plan.yaml"
    for batch in (2, 8):
        plain, marked = target(batch), target(batch)
        expected = run(plain)
        marks = sktune.apply(marked.module, path, strict=True)
        assert all(map(torch.equal, expected, run(marked)))
        marks.detach()
        torch.compiler.reset()
    unknown = target(4)
    sktune.apply(unknown.module, path, strict=True)
    with pytest.raises(Exception, match="no plan was verified"):
        run(unknown)
    torch.compiler.reset()
    checked = CliRunner().invoke(app, ["recheck", str(path), "--verify-steps", "32", "--runs", str(tmp_path), "--json"])
    assert checked.exit_code in (ExitCode.DONE, ExitCode.SLOWER_NOW), checked.output  # beside other tests
    events = [event for line in checked.stdout.splitlines() if (event := parse_event(line))]
    assert [event["shape"] for event in events] == ["batch=2", "batch=8"]
    assert {event["code"] for event in events} == {"as verified"}

    delivered, written = path.parent / "batch-2.artifacts", path.read_text()
    for source in answer.results[0].folder.glob("*artifacts*"):
        shutil.rmtree(source)
    assert "the code for batch=2, is missing" in refusal("report", "s", "--runs", str(tmp_path))
    assert delivered.is_dir() and path.read_text() == written
