"""A program's compiled function under a plan: scopes in the decode step, whatever was called before."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from sktune.program.sktune_program import rank as ranks
from sktune.program.sktune_program import torch_private
from sktune.program.sktune_program.frontends import FRONTENDS, Frontend
from sktune.program.sktune_program.inductor.marks import InductorScope
from sktune.program.sktune_program.plan import MarkedScope
from sktune.program.sktune_program.rank import Rank
from sktune.program.sktune_program.reporter import Reporter
from sktune.program.sktune_program.task import DecodeCall, RankTask

SCOPES = (MarkedScope("first", "last", "both", {}),)
Compile = Callable[[str, Mapping[str, Any], list[RankTask]], Any]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """No graphs of other tests, and torch's own limit of them."""
    torch.compiler.reset()
    with torch._dynamo.config.patch(recompile_limit=torch_private.DYNAMO_GRAPHS):
        yield


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What the process would do when it ends."""
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr("sktune.program.sktune_program.rank.atexit.register", registered.append)
    return registered


class Model(nn.Module):
    """Whose ``forward`` is a decode step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Run both."""
        outputs: torch.Tensor = self.last(torch.relu(self.first(inputs)))
        return outputs


def task(batch: int, backend: str = "npu", function: str = "Model.forward") -> RankTask:
    """The scopes of a call with so many rows."""
    return RankTask(False, backend, decode=DecodeCall(function, f"float32[{batch},8]"), scopes=SCOPES)


class Ran:
    """A backend that runs what was captured, and counts the scopes of each run."""

    def __init__(self) -> None:
        self.scopes: list[int] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        count = sum("scope_enter" in str(node.target) for node in graph.graph.nodes)

        def run(*arguments: Any) -> Any:
            self.scopes.append(count)
            return graph.forward(*arguments)

        return run


@pytest.fixture
def program_scopes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The front end of TorchAir, with marks that this machine has: the program's own compiler gets them."""
    front_end = Frontend(lambda task, keywords: (keywords, InductorScope))
    monkeypatch.setattr(ranks, "FRONTENDS", {**FRONTENDS, "npu": front_end})


@pytest.mark.usefixtures("at_exit", "program_scopes")
@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("batches", [(8,), (4, 8)])
@torch.no_grad()
def test_a_graph_of_any_size_that_ran_before_is_not_the_decode_steps(
    dynamic: bool | None, batches: tuple[int, ...]
) -> None:
    """Dynamo has no guards on hooks: it would run the graph of other calls, which has no scopes, in their place."""
    ran, module = Ran(), Model()
    rank = Rank(torch.compile, [task(batch) for batch in batches], Reporter(None), "plan.yaml")
    step = rank.compile(module, backend=ran, dynamic=dynamic)
    for batch in (2, 3, 8, 5, 4, 8):
        assert torch.equal(step(torch.ones(batch, 8)), module(torch.ones(batch, 8)))
    assert ran.scopes == [0, 0, 1, 0, int(4 in batches), 1]


@pytest.mark.usefixtures("at_exit", "program_scopes")
@torch.no_grad()
def test_a_function_may_be_compiled_twice() -> None:
    """For prefill and for decode: both have the same graphs, of which those of the former have no scopes."""
    ran, module = Ran(), Model()
    rank = Rank(torch.compile, [task(8, function="Model.forward#2")], Reporter(None), "plan.yaml")
    prefill, decode = (rank.compile(module.forward, backend=ran, dynamic=True) for _ in range(2))
    prefill(torch.ones(3, 8))
    decode(torch.ones(8, 8))
    prefill(torch.ones(8, 8))
    assert ran.scopes == [0, 1, 0]


@pytest.mark.usefixtures("at_exit", "program_scopes")
@pytest.mark.parametrize("has_signature", [True, False])
@torch.no_grad()
def test_the_decode_step_may_be_compiled_after_prefill_has_run(has_signature: bool) -> None:
    """Where both are one function, prefill's graph must not run in its place."""
    ran, module, wanted = Ran(), Model(), task(8, function="Model.forward#2")
    if not has_signature:
        wanted = replace(wanted, decode=DecodeCall("Model.forward#2"))
    rank = Rank(torch.compile, [wanted], Reporter(None), "plan.yaml")
    rank.compile(module.forward, backend=ran, dynamic=True)(torch.ones(3, 8))
    rank.compile(module.forward, backend=ran, dynamic=True)(torch.ones(8, 8))
    assert ran.scopes == [0, 1]


@pytest.mark.usefixtures("at_exit", "program_scopes")
@pytest.mark.parametrize("first", [4, 8])
@torch.no_grad()
def test_a_shape_without_scopes_keeps_no_other_from_its_own(first: int) -> None:
    """Whichever comes first in the file."""
    ran, module = Ran(), Model()
    tasks = [task(batch, function="Model.forward#2") for batch in (first, 12 - first)]
    tasks = [each if "[8," in str(each.decode) else replace(each, scopes=()) for each in tasks]
    rank = Rank(torch.compile, tasks, Reporter(None), "plan.yaml")
    prefill, decode = (rank.compile(module.forward, backend=ran, dynamic=True) for _ in range(2))
    for step, batch in ((prefill, 3), (decode, 8), (decode, 4), (prefill, 8)):
        step(torch.ones(batch, 8))
    assert ran.scopes == [0, 1, 0, 0]


class Helped(Model):
    """Whose ``forward`` calls another compiled function."""

    helper: Any

    def relu(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what is positive of the first unit's output."""
        return torch.relu(self.first(inputs))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Run both."""
        outputs: torch.Tensor = self.last(self.helper(inputs))
        return outputs


@pytest.mark.usefixtures("at_exit", "program_scopes")
@pytest.mark.parametrize("dynamic", [True, False, None])
@torch.no_grad()
def test_a_step_may_call_a_compiled_function(dynamic: bool | None) -> None:
    """What sktune puts in its place is not part of the step's graph."""
    ran, module = Ran(), Helped()
    rank = Rank(torch.compile, [task(8, function="Helped.forward")], Reporter(None), "plan.yaml")
    module.helper = rank.compile(module.relu, backend=ran)
    step = rank.compile(module, backend=ran, fullgraph=True, dynamic=dynamic)
    for batch in (8, 3, 5, 8):
        step(torch.ones(batch, 8))
    assert ran.scopes == [1, 0, 0, 1]


@pytest.mark.usefixtures("at_exit")
@torch.no_grad()
def test_other_calls_are_compiled_as_the_program_says() -> None:
    """With any number of sizes, though the decode step must be one graph of one size."""
    ran = Ran()
    alone = RankTask(False, "inductor", decode=DecodeCall("Model.forward", "float32[1,8]"))
    step = Rank(torch.compile, [alone], Reporter(None), "plan.yaml").compile(Model(), backend=ran, dynamic=True)
    for batch in range(2, 14):
        step(torch.ones(batch, 8))
    assert len(ran.scopes) == 12
    step(torch.ones(1, 8))
    assert len(ran.scopes) == 12


@pytest.mark.usefixtures("at_exit", "program_scopes")
@torch.no_grad()
def test_a_step_may_have_many_shapes() -> None:
    """More than the graphs that Dynamo keeps of a function by itself."""
    ran, batches = Ran(), range(2, 14)
    rank = Rank(torch.compile, [task(batch) for batch in batches], Reporter(None), "plan.yaml")
    step = rank.compile(Model(), backend=ran, dynamic=False, fullgraph=True)
    for batch in batches:
        step(torch.ones(batch, 8))
    assert ran.scopes == [1] * len(batches)


@pytest.mark.usefixtures("program_scopes")
@pytest.mark.parametrize(
    ("function", "called"),
    [("Model.decode", "Model.forward(float32[3,8])"), ("Model.forward", "Model.forward(float32[3,8])")],
)
@torch.no_grad()
def test_a_plan_that_never_came_into_force_is_told(
    at_exit: list[Callable[[], None]], capfd: pytest.CaptureFixture[str], function: str, called: str
) -> None:
    """The function or its shapes have another name than when the plan was found."""
    rank = Rank(torch.compile, [task(8, function=function)], Reporter(None), "plan.yaml")
    other = rank.compile(nn.Linear(2, 2), backend=Ran())  # a model without the plan's units may be a draft
    other(torch.ones(1, 2))
    rank.compile(Model(), backend=Ran())(torch.ones(3, 8))
    for each in at_exit:
        each()
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"sktune: plan.yaml was never in force: it is for {function}(float32[8,8])")
    assert f"this program compiled {called};" in line


@pytest.mark.usefixtures("program_scopes")
@torch.no_grad()
def test_a_plan_in_force_is_told_once(at_exit: list[Callable[[], None]], capfd: pytest.CaptureFixture[str]) -> None:
    """With nothing at the end."""
    step = Rank(torch.compile, [task(8)], Reporter(None), "plan.yaml").compile(Model(), backend=Ran())
    for batch in (3, 8, 8):
        step(torch.ones(batch, 8))
    for each in at_exit:
        each()
    assert capfd.readouterr().err == "sktune: plan.yaml is in force: 1 scope on the decode step\n"


@pytest.mark.usefixtures("at_exit", "program_scopes")
@pytest.mark.parametrize("has_signature", [True, False])
@torch.no_grad()
def test_the_decode_step_may_be_called_within_another_compiled_function(has_signature: bool) -> None:
    """Which sktune knows nothing of."""
    ran, module, wanted = Ran(), Model(), task(8)
    if not has_signature:
        wanted = replace(wanted, decode=DecodeCall("Model.forward"))
    rank = Rank(torch.compile, [wanted], Reporter(None), "plan.yaml")
    inner = rank.compile(module.forward, backend=ran)

    def outer(inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = inner(inputs + 1)
        return outputs

    rank.compile(outer, backend=ran)(torch.ones(8, 8))
    assert 1 in ran.scopes


@pytest.mark.usefixtures("at_exit", "program_scopes")
@torch.no_grad()
def test_modules_that_are_replaced_before_the_decode_step_have_its_scopes() -> None:
    """As adapters or quantisation do, once prefill has run."""
    ran, module = Ran(), Model()
    rank = Rank(torch.compile, [task(8, function="Model.forward#2")], Reporter(None), "plan.yaml")
    rank.compile(module.forward, backend=ran, dynamic=True)(torch.ones(3, 8))
    module.first, module.last = nn.Linear(8, 8), nn.Linear(8, 8)
    rank.compile(module.forward, backend=ran, dynamic=True)(torch.ones(8, 8))
    assert ran.scopes == [0, 1]


@pytest.mark.usefixtures("at_exit", "program_scopes")
@torch.no_grad()
def test_scopes_stay_where_they_are_in_force() -> None:
    """Though the tree gets another module for each request, and another shape's plan does not fit it."""
    ran, module = Ran(), Model()
    other = replace(task(4), scopes=(MarkedScope("first", "nowhere", "else", {}),))
    rank = Rank(torch.compile, [task(8), other], Reporter(None), "plan.yaml")
    step = rank.compile(module.forward, backend=ran)
    for _ in range(3):
        module.cache = nn.Module()
        for batch in (3, 8, 8):
            step(torch.ones(batch, 8))
    assert ran.scopes == 3 * [0, 1, 1]
