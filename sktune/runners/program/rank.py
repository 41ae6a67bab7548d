"""Inside a rank: takes ``torch.compile`` over, puts a plan's scopes on the decode step, and reports what it does.

The program's own calls are all that ever runs. Scopes are open only while the decode step is being called: prefill,
eager calls and other models never see them.
"""

import atexit
import functools
import gc
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
from sktune.runners.program.rank_reports import (
    PLAN_VARIABLE,
    RUN_VARIABLE,
    VERIFIED_STEPS,
    DecodeCall,
    Task,
    is_baselines_turn,
)
from sktune.runners.program.tensors import as_one, digest_of, digests_of, outputs_of, signature_of, state_of
from sktune.targets.marks import MakeScope, MarkedModel, Scope, attach, scope_maker
from sktune.targets.object_graph import Leaf
from sktune.targets.tracing import Calls, layout_of, median_shares, record_calls, time_units

logger = logging.getLogger(__name__)

RANK_VARIABLES = ("RANK", "RANK_ID", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK")
TRACED_CALL, TIMED_CALLS = 2, (3, 6)
"""Of each compiled function, counted from 1, while inspecting; the first may set things up."""
STEPS_A_LINE = 16

Function = Callable[..., Any]


def rank_of_this_process() -> int:
    """Return the rank, from torch.distributed or the launch script's environment; 0 for a process alone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return next((int(os.environ[name]) for name in RANK_VARIABLES if os.environ.get(name, "").isdigit()), 0)


class Reporter:
    """Appends events to this rank's report; does nothing where nobody asked for one."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._file: Any = None

    @property
    def is_heard(self) -> bool:
        """Whether somebody asked for a report: a search, and not a program in production."""
        return self._folder is not None

    def begin(self) -> None:
        """Open the report; its ``end`` is written at the process's exit, after what was registered later."""
        if self._folder is None or self._file is not None:
            return
        path = self._folder / f"rank-{rank_of_this_process()}.jsonl"
        self._file = path.open("a", encoding="utf-8")
        self.tell("start", pid=os.getpid())
        atexit.register(self.tell, "end")

    def tell(self, event: str, **values: Any) -> None:
        """Write one event."""
        if self._file is not None:
            self._file.write(json.dumps({"event": event, **values}) + "\n")
            self._file.flush()


class Gate:
    """Lets scopes through only while the decode step is called."""

    def __init__(self) -> None:
        self.is_open = False


class GatedScope:
    """A scope that is entered and left only while its gate is open."""

    def __init__(self, scope: Scope, gate: Gate) -> None:
        self._scope, self._gate = scope, gate

    def __enter__(self) -> None:
        if self._gate.is_open:
            self._scope.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._gate.is_open:
            self._scope.__exit__(*error)


class MarkedStep:
    """A compiled function whose decode calls run a plan's scopes; a search has them verified and timed, too.

    Args:
        inner: the compiled function.
        plain: the same, compiled once more for the baseline's turns; None where the run does not alternate.
        source: what was compiled: state may lie in its closure.
    """

    def __init__(
        self, inner: Function, plain: Function | None, tree: nn.Module, source: Function, task: Task, plan: Plan,
        make: MakeScope, to: Reporter,
    ) -> None:  # fmt: skip
        self._inner, self._plain, self._tree, self._source = inner, plain, tree, source
        self._task, self._signature = task, task.decode.signature if task.decode else ""
        self._plan, self._make, self._reporter = plan, make, to
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
            return self._inner(*arguments, **keywords)
        device = self._prepared()
        if not self._reporter.is_heard:  # in production nothing waits for the device
            return self._run(self._inner, arguments, keywords)
        turns = self._task.turns
        is_baselines = turns is not None and self._plain is not None and is_baselines_turn(self._steps, turns)
        step = self._plain if is_baselines and self._plain is not None else self._inner
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
        self._gate.is_open = step is self._inner
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
        return GatedScope(self._make(label, options), self._gate)

    def _count(self, seconds: float, is_baselines: bool) -> None:
        if self._steps == 0:
            self._reporter.tell("compiled", seconds=seconds)
        else:
            self._seconds.append(seconds)
            self._turns.append(is_baselines)
        self._steps += 1
        if len(self._seconds) == STEPS_A_LINE:
            self._flush()

    def _compare(self, output: Any, arguments: Any) -> None:
        """Digest what the step has left behind; after the last that is verified, and before, the state, too."""
        digests = digests_of(outputs_of(output))
        kind = type(output).__qualname__
        self._reporter.tell("outputs", digests=digests if self._steps <= VERIFIED_STEPS else as_one(digests), kind=kind)
        if self._task.watches_state and self._steps in (1, VERIFIED_STEPS):
            self._watch(arguments)
        if self._steps in (VERIFIED_STEPS, self._task.steps):
            self._reporter.tell("state", after=self._steps, digests=digests_of(self._state(arguments)))

    def _watch(self, arguments: Any) -> None:
        """Tell whether any tensor of the state that is there after the first step has other bits later."""
        if self._steps == 1:
            leaves = [leaf for _, leaf in self._state(arguments) if isinstance(leaf, torch.Tensor)]
            self._watched = [(weakref.ref(leaf), digest_of(leaf)) for leaf in leaves]
            return
        still = ((leaf, digest) for refer, digest in self._watched if (leaf := refer()) is not None)
        self._reporter.tell("written", is_written=any(digest_of(leaf) != digest for leaf, digest in still))

    def _state(self, arguments: Any) -> Iterator[tuple[str, Leaf]]:
        return state_of(self._tree, arguments, self._source)

    def _flush(self) -> None:
        if self._seconds:
            self._reporter.tell("steps", seconds=self._seconds, baselines=self._turns)
            self._seconds, self._turns = [], []

    def _fail(self, stage: str, failure: BaseException) -> None:
        says = first_line if isinstance(failure, SktuneError) else described
        self._reporter.tell("error", stage=stage, message=says(failure))


class InspectedStep:
    """A function that would be compiled, run eagerly instead: tells what is called how, and the layout of each."""

    def __init__(self, inner: Function, tree: nn.Module, name: str, spec: SpaceSpec, reporter: Reporter) -> None:
        self._inner, self._tree, self._name, self._spec, self._reporter = inner, tree, name, spec, reporter
        self._calls: dict[str, int] = {}
        self._traced: dict[str, Calls] = {}
        self._shares: dict[str, list[dict[str, float]]] = {}
        atexit.register(self._tell)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the program's call, and look on."""
        signature = signature_of((arguments, keywords))
        number = self._calls[signature] = self._calls.get(signature, 0) + 1
        step = functools.partial(self._inner, *arguments, **keywords)
        if number == TRACED_CALL:
            output, self._traced[signature] = record_calls(self._tree, step)
            return output
        if TIMED_CALLS[0] <= number <= TIMED_CALLS[1]:
            traced = self._traced[signature]
            clock = device_of(self._tree.parameters()).now_s
            output, shares = time_units(self._tree, traced.names, step, clock)
            self._shares.setdefault(signature, []).append(shares)
            return output
        return step()

    def _tell(self) -> None:
        parameters = sum(parameter.numel() for parameter in self._tree.parameters())
        for signature, calls in self._calls.items():
            layout, problem = None, f"it is called {calls} times, which is too seldom for a decode step"
            if signature in self._shares:
                try:
                    layout, problem = self._layout(signature), ""
                except SktuneError as failure:
                    problem = str(failure)
            call = {"function": self._name, "signature": signature}
            self._reporter.tell("found", call=call, calls=calls, parameters=parameters, layout=layout, problem=problem)

    def _layout(self, signature: str) -> dict[str, Any]:
        traced = self._traced[signature]
        layout = layout_of(self._tree, traced, self._spec)
        return layout.with_time_shares(median_shares(self._shares[signature])).to_dict()


class Rank:
    """One process of a program that sktune has taken over."""

    def __init__(self, compile_: Function, task: Task, plan: Plan, reporter: Reporter) -> None:
        self._compile, self._task, self._plan, self._reporter = compile_, task, plan, reporter
        self._names: dict[str, int] = {}

    def compile(self, model: Any = None, **keywords: Any) -> Any:
        """Stand in for ``torch.compile``."""
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
            return self._in_place(model, keywords, InspectedStep(original, tree, name, spec, self._reporter))
        if not self._is_decode(name, tree):
            return self._compile(model, **keywords)
        plain = None
        backend = backend_info(self._task.backend)
        if backend.program_compiler:
            compile_marked = attribute_at(backend.program_compiler)
            keywords = {"backend": compile_marked, "fullgraph": True, "dynamic": False}
            if self._task.turns is not None:
                # Dynamo keeps apart what different backends have compiled of the same function.
                again = {**keywords, "backend": lambda *captured: compile_marked(*captured)}
                plain = _function_of(self._compile(model, **again))
        compiled = self._compile(model, **keywords)
        make = scope_maker(backend.scope_flavour)
        step = MarkedStep(_function_of(compiled), plain, tree, model, self._task, self._plan, make, self._reporter)
        return self._in_place(model, keywords, step, compiled)

    def _in_place(self, model: Any, keywords: Mapping[str, Any], step: Function, compiled: Any = None) -> Any:
        """Return what the program gets instead of ``torch.compile``'s result: it looks the same, and calls ``step``."""
        if isinstance(model, nn.Module):
            module = self._compile(model, **keywords) if compiled is None else compiled
            module.forward = step
            return module

        @functools.wraps(model)
        def called(*arguments: Any, **keywords: Any) -> Any:
            return step(*arguments, **keywords)

        return called

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
        except PlanError:
            return False  # another model's, a draft's for instance
        return True


def _function_of(compiled: Any) -> Function:
    """Return what a call of ``torch.compile``'s result runs; a module's ``forward`` is going to be replaced."""
    function: Function = compiled.forward if isinstance(compiled, nn.Module) else compiled
    return function


def find_tree(function: Any, class_name: str | None = None) -> nn.Module | None:
    """Return the module tree that ``function`` runs: its own, or the largest that it can reach; None without one.

    Args:
        function: a module, a method, or any function.
        class_name: where given, the tree is the object of that class.
    """
    if class_name is not None:
        named = [each for each in gc.get_objects() if isinstance(each, nn.Module) and type(each).__name__ == class_name]
        return max(named, key=_size, default=None)
    if isinstance(function, nn.Module):
        return function
    found = list(_reached(function))
    return max(found, key=_size, default=None)


def _reached(function: Any) -> list[nn.Module]:
    if isinstance(function, functools.partial):
        inside = [function.func, *function.args, *function.keywords.values()]
        return [tree for each in inside if (tree := find_tree(each)) is not None]
    owner = getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        return [owner]
    values = list(getattr(owner, "__dict__", {}).values())
    values += [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _is_filled(cell)]
    code = getattr(function, "__code__", None)
    values += [function.__globals__.get(name) for name in code.co_names] if code else []
    return [value for value in values if isinstance(value, nn.Module)]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def take_over() -> None:
    """Replace ``torch.compile`` in this process, as ``SKTUNE_RUN`` and ``SKTUNE_PLAN`` ask for."""
    if isinstance(getattr(torch.compile, "__self__", None), Rank):
        return
    folder = Path(os.environ[RUN_VARIABLE]) if RUN_VARIABLE in os.environ else None
    plan, backend, decode = Plan(), "npu", None
    if PLAN_VARIABLE in os.environ:
        file = read_plan_file(Path(os.environ[PLAN_VARIABLE]))
        plan, backend = file.to_plan(), file.backend
        decode = DecodeCall(file.decode.function, file.decode.signature) if file.decode else None
    task = Task.read(folder) if folder else Task(inspects=False, backend=backend, decode=decode)
    torch.compile = Rank(torch.compile, task, plan, Reporter(folder)).compile
