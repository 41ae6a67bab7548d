"""Inside a rank: replaces ``torch.compile``, puts a plan's scopes on the decode step, and reports what it does.

Nothing runs but the program's own calls. Scopes are active only during calls of the decode step, never in prefill,
eager calls or other models.
"""

import atexit
import functools
import json
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sktune.backends import backend_info
from sktune.backends.info import attribute_at
from sktune.core.errors import PlanError, SktuneError, described, first_line
from sktune.core.plan import Option, Plan
from sktune.core.plan_file import read_plan_file
from sktune.core.space import SpaceSpec
from sktune.measure.devices import device_of
from sktune.measure.latency import Device
from sktune.runners.program.module_tree import find_tree
from sktune.runners.program.rank_reports import (
    PLAN_VARIABLE,
    RUN_VARIABLE,
    VERIFIED_STEPS,
    DecodeCall,
    Task,
    is_baselines_turn,
    report_file,
)
from sktune.runners.program.tensors import as_one, digest_of, digests_of, outputs_of, signature_of, state_of
from sktune.targets.calls import Calls, record_calls
from sktune.targets.marks import MakeScope, MarkedModel, Scope, attach, scope_maker
from sktune.targets.object_graph import Leaf
from sktune.targets.tracing import StepTimes, time_modules, time_shares
from sktune.targets.units import layout_of

logger = logging.getLogger(__name__)

RANK_VARIABLES = ("RANK", "RANK_ID", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK")
TRACED_CALL, TIMED_CALLS = 2, (3, 6)
"""While inspecting, by the number of each function's call, from 1; the first call may set things up."""
STEPS_PER_LINE = 16

Function = Callable[..., Any]


def rank_of_this_process() -> int:
    """Return the rank, from torch.distributed or the launch script's environment; 0 for a single process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return next((int(os.environ[name]) for name in RANK_VARIABLES if os.environ.get(name, "").isdigit()), 0)


class Reporter:
    """Appends events to this rank's report; does nothing if ``folder`` is None."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._file: Any = None

    @property
    def is_active(self) -> bool:
        """Whether a report is wanted: in a search, not in production."""
        return self._folder is not None

    def begin(self) -> None:
        """Open the report; ``end`` is written when the process exits, after exit handlers that are registered later."""
        if self._folder is None or self._file is not None:
            return
        path, host = report_file(self._folder, rank_of_this_process())
        self._file = path.open("a", encoding="utf-8")
        self.write("start", pid=os.getpid(), host=host)
        atexit.register(self.write, "end")

    def write(self, event: str, **values: Any) -> None:
        """Write one event."""
        if self._file is not None:
            self._file.write(json.dumps({"event": event, **values}) + "\n")
            self._file.flush()


class Gate:
    """Open only while the decode step is being called."""

    def __init__(self) -> None:
        self.is_open = False


class GatedScope:
    """A scope that does nothing unless its gate is open."""

    def __init__(self, scope: Scope, gate: Gate) -> None:
        self._scope, self._gate = scope, gate

    def __enter__(self) -> None:
        if self._gate.is_open:
            self._scope.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._gate.is_open:
            self._scope.__exit__(*error)


class MarkedStep:
    """Stands in for a compiled function: runs its decode calls with the plan's scopes, and digests and times them.

    Args:
        compiled: the compiled function.
        baseline: the same function, compiled again for the baseline's turns; None if the run does not alternate.
        tree: the module tree that the function runs.
        function: the function before compilation, as state may be in its closure.
        task: what to compare, and when to alternate.
        plan: has the scopes.
        make_scope: makes a scope of the backend.
        reporter: receives the events; if it is not active, nothing is digested or timed.
    """

    def __init__(
        self, compiled: Function, baseline: Function | None, tree: nn.Module, function: Function, task: Task,
        plan: Plan, make_scope: MakeScope, reporter: Reporter,
    ) -> None:  # fmt: skip
        self._compiled, self._baseline, self._tree, self._function = compiled, baseline, tree, function
        self._task, self._signature = task, task.decode.signature if task.decode else ""
        self._plan, self._make_scope, self._reporter = plan, make_scope, reporter
        self._watched: list[tuple[weakref.ref[Any], str]] = []
        self._gate = Gate()
        self._marks: MarkedModel | None = None
        self._device: Device | None = None
        self._steps = 0
        self._seconds: list[float] = []
        self._turns: list[bool] = []

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the program's call."""
        if self._signature and signature_of((arguments, keywords)) != self._signature:
            return self._compiled(*arguments, **keywords)
        device = self._prepared()
        if not self._reporter.is_active:  # in production nothing waits for the device
            return self._run(self._compiled, arguments, keywords)
        turns = self._task.turns
        is_baselines = turns is not None and self._baseline is not None and is_baselines_turn(self._steps, turns)
        step = self._baseline if is_baselines and self._baseline is not None else self._compiled
        began = device.now_s()
        output = self._run(step, arguments, keywords)
        self._count(device.now_s() - began, is_baselines)
        if self._steps <= self._task.steps:
            try:
                self._compare(output, (arguments, keywords))
            except Exception as failure:
                self._fail("run", failure)
                raise
        return output

    def _run(self, step: Function, arguments: Any, keywords: Any) -> Any:
        self._gate.is_open = step is self._compiled
        try:
            return step(*arguments, **keywords)
        except BaseException as failure:
            self._fail("run" if self._steps else "compile", failure)
            raise
        finally:
            self._gate.is_open = False

    def _prepared(self) -> Device:
        if self._device is None:
            try:
                self._marks = attach(self._tree, self._plan, self._gated)
            except SktuneError as failure:
                self._fail("mark", failure)
                raise
            self._device = device_of(self._tree.parameters())
            atexit.register(self._flush)
        return self._device

    def _gated(self, label: str, options: Mapping[str, Option]) -> Scope:
        return GatedScope(self._make_scope(label, options), self._gate)

    def _count(self, seconds: float, is_baselines: bool) -> None:
        if self._steps == 0:
            self._reporter.write("compiled", seconds=seconds)
        else:
            self._seconds.append(seconds)
            self._turns.append(is_baselines)
        self._steps += 1
        if len(self._seconds) == STEPS_PER_LINE:
            self._flush()

    def _compare(self, output: Any, arguments: Any) -> None:
        """Report digests of the step's outputs, and of the state after ``VERIFIED_STEPS`` and the last compared one."""
        digests = digests_of(outputs_of(output))
        kind = type(output).__qualname__
        self._reporter.write(
            "outputs", digests=digests if self._steps <= VERIFIED_STEPS else as_one(digests), kind=kind
        )
        if self._task.watches_state and self._steps in (1, VERIFIED_STEPS):
            self._watch(arguments)
        if self._steps in (VERIFIED_STEPS, self._task.steps):
            self._reporter.write("state", after=self._steps, digests=digests_of(self._state(arguments)))

    def _watch(self, arguments: Any) -> None:
        """Report whether any state tensor that exists after the first step has changed by the later call."""
        if self._steps == 1:
            leaves = [leaf for _, leaf in self._state(arguments) if isinstance(leaf, torch.Tensor)]
            self._watched = [(weakref.ref(leaf), digest_of(leaf)) for leaf in leaves]
            return
        alive = ((leaf, digest) for reference, digest in self._watched if (leaf := reference()) is not None)
        self._reporter.write("written", is_written=any(digest_of(leaf) != digest for leaf, digest in alive))

    def _state(self, arguments: Any) -> Iterator[tuple[str, Leaf]]:
        return state_of(self._tree, arguments, self._function)

    def _flush(self) -> None:
        if self._seconds:
            self._reporter.write("steps", seconds=self._seconds, baselines=self._turns)
            self._seconds, self._turns = [], []

    def _fail(self, stage: str, failure: BaseException) -> None:
        text = first_line if isinstance(failure, SktuneError) else described
        self._reporter.write("error", stage=stage, message=text(failure))


class InspectedStep:
    """Stands in for a function that would be compiled, and runs it eagerly: reports its calls and their layouts."""

    def __init__(self, function: Function, tree: nn.Module, name: str, spec: SpaceSpec, reporter: Reporter) -> None:
        self._function, self._tree, self._name, self._spec, self._reporter = function, tree, name, spec, reporter
        self._calls: dict[str, int] = {}
        self._traced: dict[str, Calls] = {}
        self._times: dict[str, list[StepTimes]] = {}
        atexit.register(self._report)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the program's call, and record it."""
        signature = signature_of((arguments, keywords))
        number = self._calls[signature] = self._calls.get(signature, 0) + 1
        step = functools.partial(self._function, *arguments, **keywords)
        if number == TRACED_CALL:
            output, self._traced[signature] = record_calls(self._tree, step)
            return output
        if TIMED_CALLS[0] <= number <= TIMED_CALLS[1]:
            traced = self._traced[signature]
            clock = device_of(self._tree.parameters()).now_s
            output, times = time_modules(self._tree, traced.names, step, clock)
            self._times.setdefault(signature, []).append(times)
            return output
        return step()

    def _report(self) -> None:
        parameters = sum(parameter.numel() for parameter in self._tree.parameters())
        for signature, calls in self._calls.items():
            layout, problem = None, f"it is called {calls} times, too few for a decode step"
            if signature in self._times:
                try:
                    layout, problem = self._layout(signature), ""
                except SktuneError as failure:
                    problem = str(failure)
            call = {"function": self._name, "signature": signature}
            self._reporter.write("found", call=call, calls=calls, parameters=parameters, layout=layout, problem=problem)

    def _layout(self, signature: str) -> dict[str, Any]:
        traced = self._traced[signature]
        layout = layout_of(self._tree, traced, self._spec)
        shares = time_shares(self._times[signature], [unit.name for unit in layout.units])
        return layout.with_time_shares(shares).to_dict()


class Rank:
    """One process of the user's program, with ``torch.compile`` replaced."""

    def __init__(self, compile_: Function, task: Task, plan: Plan, reporter: Reporter) -> None:
        self._compile, self._task, self._plan, self._reporter = compile_, task, plan, reporter
        self._names: dict[str, int] = {}

    def compile(self, model: Any = None, **keywords: Any) -> Any:
        """Replacement for ``torch.compile``."""
        if model is None:
            return lambda function: self.compile(function, **keywords)
        tree = find_tree(model, self._task.model)
        if tree is None:
            return self._compile(model, **keywords)
        name = self._name(model, tree)
        self._reporter.begin()
        if self._task.inspects:
            spec = SpaceSpec.model_validate(dict(self._task.space))
            original = model.__call__ if isinstance(model, nn.Module) else model
            return self._in_place_of(model, keywords, InspectedStep(original, tree, name, spec, self._reporter))
        if not self._is_decode(name, tree):
            return self._compile(model, **keywords)
        baseline = None
        backend = backend_info(self._task.backend)
        if backend.program_compiler:
            compile_marked = attribute_at(backend.program_compiler)
            keywords = {"backend": compile_marked, "fullgraph": True, "dynamic": False}
            if self._task.turns is not None:
                # With another backend object, Dynamo compiles the same function separately.
                again = {**keywords, "backend": lambda *captured: compile_marked(*captured)}
                baseline = _function_of(self._compile(model, **again))
        try:
            keywords = dict(backend.program_keywords(self._plan, keywords))
            backend.prepare_program(self._plan, keywords)
        except PlanError as failure:
            self._reporter.write("error", stage="mark", message=str(failure))
            raise
        compiled = self._compile(model, **keywords)
        make_scope = scope_maker(backend.scope_flavour)
        step = MarkedStep(
            _function_of(compiled), baseline, tree, model, self._task, self._plan, make_scope, self._reporter
        )
        return self._in_place_of(model, keywords, step, compiled)

    def _in_place_of(self, model: Any, keywords: Mapping[str, Any], step: Function, compiled: Any = None) -> Any:
        """Return a replacement for ``torch.compile``'s result that looks the same and calls ``step``."""
        if isinstance(model, nn.Module):
            module = self._compile(model, **keywords) if compiled is None else compiled
            module.forward = step
            return module

        @functools.wraps(model)
        def call(*arguments: Any, **keywords: Any) -> Any:
            return step(*arguments, **keywords)

        return call

    def _name(self, model: Any, tree: nn.Module) -> str:
        function = getattr(model, "__name__", "forward")
        name = f"{type(tree).__name__}.{function}"
        count = self._names[name] = self._names.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    def _is_decode(self, name: str, tree: nn.Module) -> bool:
        if self._task.decode is not None:
            return name == self._task.decode.function
        try:
            attach(tree, self._plan, lambda label, options: GatedScope(None, Gate())).detach()  # type: ignore[arg-type]
        except PlanError as failure:  # it may belong to another model, such as a draft model
            logger.warning("%s runs without scopes, as the plan does not fit it: %s", name, failure)
            return False
        return True


def _function_of(compiled: Any) -> Function:
    """Return the function behind ``torch.compile``'s result: a module's ``forward``, which is about to be replaced."""
    function: Function = compiled.forward if isinstance(compiled, nn.Module) else compiled
    return function


def take_over() -> None:
    """Replace ``torch.compile`` in this process, as ``SKTUNE_RUN`` and ``SKTUNE_PLAN`` demand."""
    if isinstance(getattr(torch.compile, "__self__", None), Rank):
        return
    folder = Path(os.environ[RUN_VARIABLE]) if RUN_VARIABLE in os.environ else None
    plan, backend, decode = Plan(), "npu", None
    if PLAN_VARIABLE in os.environ:
        file = read_plan_file(Path(os.environ[PLAN_VARIABLE]))
        plan, backend = file.to_plan(), file.backend
        decode = DecodeCall(file.decode.function, file.decode.signature) if file.decode else None
        os.environ.update(backend_info(backend).program_environment)
    task = Task.read(folder) if folder else Task(inspects=False, backend=backend, decode=decode)
    torch.compile = Rank(torch.compile, task, plan, Reporter(folder)).compile
