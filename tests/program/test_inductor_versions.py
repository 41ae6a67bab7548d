"""Plans for Inductor are refused with a torch of which nobody knows which bits its Inductor keeps; nothing else is."""

import pytest
import torch

from sktune.backends.inductor.availability import examine_program
from sktune.backends.inductor.backend import InductorBackend
from sktune.backends.program_python import ProgramPython
from sktune.core.errors import BackendError
from sktune.core.events.commands import State
from sktune.core.space import SpaceSpec
from sktune.program.sktune_program.frontends import FRONTENDS, REGIONS
from sktune.program.sktune_program.inductor.versions import problem_with
from sktune.program.sktune_program.task import RankTask
from sktune.targets.base import decode_inputs
from sktune.targets.tracing import trace_layout
from tests.models import stacked_cache


@pytest.mark.parametrize(
    ("version", "is_known"),
    [("2.6.0", False), ("2.7.1", False), ("2.8.0", True), ("2.13.0+cpu", True), ("2.15.0", True), ("2.16.0", False)],
)
def test_versions_that_are_not_known_are_refused_in_one_line(version: str, is_known: bool) -> None:
    """Which names the version and those that are known; ``doctor`` says the same of a program's Python."""
    problem = problem_with(version)
    assert (problem == "") is is_known
    assert is_known or (version in problem and "torch 2.8 to 2.15" in problem and "\n" not in problem)
    finding = examine_program(ProgramPython("python", facts={"torch": version, "compiler": "g"}))[0]
    assert (finding.state is State.OK) is is_known


def test_both_sides_refuse_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in sktune's own process, and a program's rank."""
    target = stacked_cache.target()
    layout = trace_layout(target, SpaceSpec())
    inputs = decode_inputs(target, 0, 1)[0]
    monkeypatch.setattr(torch, "__version__", "2.7.1")
    with pytest.raises(BackendError, match=r"Inductor of torch 2\.7\.1"):
        InductorBackend(target, layout, inputs)
    with pytest.raises(Exception, match=r"Inductor of torch 2\.7\.1"):
        FRONTENDS[REGIONS].prepared(RankTask(False, REGIONS), {})
