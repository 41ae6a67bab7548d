"""Inside a rank: replaces ``torch.compile``, puts a plan's scopes on the decode step, and reports what it does.

Nothing runs but the program's own calls. Scopes are active only during calls of the decode step, never in prefill,
eager calls or other models.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from .calls import Calls, record_calls
from .clock import clock_of
from .errors import PlanError, SktuneError, described, first_line, machine_failure
from .frontends import FRONTENDS
from .marks import HookedScope, MakeScope, MarkedModel, attach
from .module_times import StepTimes, time_modules
from .module_tree import describe, find_tree
from .plan import MarkedScope, Option
from .plan_file import read_plan_file
from .reporter import Reporter
from .task import VERIFIED_STEPS, DecodeCall, RankTask, is_baselines_turn
from .tensors import as_one, digest_of, digests_of, outputs_of, signature_of, state_of
from .torch_private import allow_graphs

logger = logging.getLogger(__name__)

TRACED_CALL, TIMED_CALLS = 2, (3, 6)
"""While inspecting, by the number of each function's call, from 1; the first call may set things up."""
STEPS_PER_LINE = 16
MAX_OTHERS = 4
"""Signatures that are listed if the decode step's never comes."""

Function = Callable[..., Any]


class GatedScope:
    """A scope that does nothing unless its marks are in force."""

    def __init__(self, marks: GatedMarks, label: str, options: Mapping[str, Option]) -> None:
        self._marks, self.label, self.options = marks, label, options
        self.scope: HookedScope | None = None

    def __enter__(self) -> None:
        if self._marks.are_in_force and self.scope is not None:
            self.scope.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._marks.are_in_force and self.scope is not None:
            self.scope.__exit__(*error)


class GatedMarks:
    """A plan's scopes on a module tree, in force only while the decode step is being called.

    They must be attached before any function of the tree is called: Dynamo has no guards on hooks that come later, and
    would run a graph of other sizes that was captured without them.
    """

    def __init__(self, tree: nn.Module, scopes: Sequence[MarkedScope]) -> None:
        self.are_in_force = False
        self._tree, self._marked = tree, scopes
        self._scopes: dict[str, GatedScope] = {}
        self._attached: MarkedModel | None = None
        self._modules: list[weakref.ref[nn.Module]] = []

    def attach(self) -> None:
        """Attach them to the modules that the tree has now; nothing changes if it had the same ones before.

        Raises:
            PlanError: the tree lacks a unit of the plan.
        """
        modules = list(self._tree.modules())
        if self._attached and [known() for known in self._modules] == modules:
            return
        self.detach()
        self._attached = attach(self._tree, self._marked, self._gated)
        self._modules = [weakref.ref(module) for module in modules]

    def make(self, make_scope: MakeScope) -> None:
        """Make the scopes, unless that was done."""
        for scope in self._scopes.values():
            scope.scope = scope.scope or make_scope(scope.label, scope.options)

    def detach(self) -> None:
        """Remove them, if they are attached."""
        if self._attached:
            self._attached.detach()
            self._attached = None

    def _gated(self, label: str, options: Mapping[str, Option]) -> GatedScope:
        return self._scopes.setdefault(label, GatedScope(self, label, options))


class MarkedStep:
    """Stands in for a compiled function: runs each call with the plan's scopes, and digests and times it.

    Args:
        compiled: the compiled function.
        baseline: the same function, compiled again for the baseline's turns; None if the run does not alternate.
        tree: the module tree that the function runs.
        function: the function before compilation, as state may be in its closure.
        task: what to compare, and when to alternate.
        attach_scopes: returns the scopes on the tree; called once, before the first call.
        reporter: receives the events; if it is not active, nothing is digested or timed.
        called: called before the first call.
    """

    def __init__(
        self, compiled: Function, baseline: Function | None, tree: nn.Module, function: Function, task: RankTask,
        attach_scopes: Callable[[], GatedMarks], reporter: Reporter, called: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._compiled, self._baseline, self._tree, self._function = compiled, baseline, tree, function
        self._task = task
        self._attach_scopes, self._reporter, self._called = attach_scopes, reporter, called
        self._watched: list[tuple[weakref.ref[Any], str]] = []
        self._marks: GatedMarks | None = None
        self._now_s: Callable[[], float] = time.perf_counter
        self._steps = 0
        self._seconds: list[float] = []
        self._turns: list[bool] = []

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the program's call."""
        if self._marks is None:
            self._begin()
        if not self._reporter.is_active:  # in production nothing waits for the device
            return self._run(self._compiled, arguments, keywords)
        turns = self._task.turns
        is_baselines = turns is not None and self._baseline is not None and is_baselines_turn(self._steps, turns)
        step = self._baseline if is_baselines and self._baseline is not None else self._compiled
        began = self._read_clock()
        output = self._run(step, arguments, keywords)
        seconds = self._read_clock() - began
        if self._steps == 0:
            self._reporter.write("compiled", seconds=seconds)
        else:
            self._seconds.append(seconds)
            self._turns.append(is_baselines)
        self._steps += 1
        if len(self._seconds) == STEPS_PER_LINE:
            self._flush()
        if self._steps <= self._task.steps:
            try:
                self._compare(output, (arguments, keywords))
            except Exception as failure:
                self._fail("run", failure)
                raise
        return output

    def _run(self, step: Function, arguments: Any, keywords: Any) -> Any:
        assert self._marks is not None
        self._marks.are_in_force = step is self._compiled
        try:
            return step(*arguments, **keywords)
        except BaseException as failure:
            self._fail("run" if self._steps else "compile", failure)
            raise
        finally:
            self._marks.are_in_force = False

    def _read_clock(self) -> float:
        """Return the time in seconds, once the device has done its work; that is where an NPU reports its errors."""
        try:
            return self._now_s()
        except BaseException as failure:
            self._fail("run", failure)
            raise

    def _begin(self) -> None:
        try:
            self._marks = self._attach_scopes()
        except SktuneError as failure:
            self._fail("mark", failure)
            raise
        self._now_s = clock_of(self._tree.parameters())
        atexit.register(self._flush)
        self._called()

    def _compare(self, output: Any, arguments: Any) -> None:
        """Report digests of the step's outputs, and of the state after ``VERIFIED_STEPS`` and the last compared one.

        If the state is watched, report whether any tensor of it that exists after the first step has changed by then.
        """
        digests = digests_of(outputs_of(output))
        kind = type(output).__qualname__
        self._reporter.write(
            "outputs", digests=digests if self._steps <= VERIFIED_STEPS else as_one(digests), kind=kind
        )
        if self._task.watches_state and self._steps == 1:
            state = state_of(self._tree, arguments, self._function)
            leaves = [leaf for _, leaf in state if isinstance(leaf, torch.Tensor)]
            self._watched = [(weakref.ref(leaf), digest_of(leaf)) for leaf in leaves]
        elif self._task.watches_state and self._steps == VERIFIED_STEPS:
            now = [(reference(), digest) for reference, digest in self._watched]
            is_written = any(digest_of(leaf) != digest for leaf, digest in now if leaf is not None)
            self._reporter.write("written", is_written=is_written)
        if self._steps in (VERIFIED_STEPS, self._task.steps):
            state = state_of(self._tree, arguments, self._function)
            self._reporter.write("state", after=self._steps, digests=digests_of(state))

    def _flush(self) -> None:
        if self._seconds:
            self._reporter.write("steps", seconds=self._seconds, baselines=self._turns)
            self._seconds, self._turns = [], []

    def _fail(self, stage: str, failure: BaseException) -> None:
        message = first_line(failure) if isinstance(failure, SktuneError) else described(failure)
        if of_machine := machine_failure(failure):
            stage, message = "machine", of_machine
        self._reporter.write("error", stage=stage, message=message)


class StepByShape:
    """Stands in for a compiled function: runs each call with the plan of its shape, others as the program does.

    Args:
        steps: for each shape, by the signature of its call; none if the function is no decode step.
        compiled: the function as the program compiles it.
        prepare: called before each call; attaches all scopes to the tree that the function runs.

    Attributes:
        others: the signatures of other calls, at most ``MAX_OTHERS``.
    """

    def __init__(self, steps: Mapping[str, MarkedStep], compiled: Function, prepare: Callable[[], object]) -> None:
        self._steps, self._compiled, self._prepare = steps, compiled, prepare
        self.others: dict[str, None] = {}

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the program's call."""
        if not self._steps and torch.compiler.is_compiling():  # a part of another function's graph
            return self._compiled(*arguments, **keywords)
        self._prepare()
        signature = signature_of((arguments, keywords))
        step = self._steps.get(signature, self._compiled)
        if step is self._compiled and len(self.others) < MAX_OTHERS:
            self.others[signature] = None
        return step(*arguments, **keywords)


class InspectedStep:
    """Stands in for a function that would be compiled, and runs it eagerly: reports its calls, and what they ran."""

    def __init__(self, function: Function, tree: nn.Module, name: str, reporter: Reporter) -> None:
        self._function, self._tree, self._name, self._reporter = function, tree, name, reporter
        self._calls: dict[str, int] = {}
        self._began_s: dict[str, float] = {}
        self._ended_s: dict[str, float] = {}
        self._traced: dict[str, Calls] = {}
        self._times: dict[str, list[StepTimes]] = {}
        atexit.register(self._report)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the program's call, and record it."""
        signature = signature_of((arguments, keywords))
        number = self._calls[signature] = self._calls.get(signature, 0) + 1
        self._began_s.setdefault(signature, time.monotonic())
        step = functools.partial(self._function, *arguments, **keywords)
        if number == TRACED_CALL:
            output, self._traced[signature] = record_calls(self._tree, step)
        elif TIMED_CALLS[0] <= number <= TIMED_CALLS[1]:
            names = self._traced[signature].once
            output, times = time_modules(self._tree, names, step, clock_of(self._tree.parameters()))
            self._times.setdefault(signature, []).append(times)
        else:
            output = step()
        self._ended_s[signature] = time.monotonic()
        return output

    def _report(self) -> None:
        parameters = sum(parameter.numel() for parameter in self._tree.parameters())
        if self._times:
            self._reporter.write("tree", function=self._name, **describe(self._tree))
        for signature, calls in self._calls.items():
            call = {"function": self._name, "signature": signature}
            times = [[each.total_s, each.modules_s] for each in self._times.get(signature, [])]
            ran = self._traced[signature].to_rows() if times else []
            self._reporter.write("found", call=call, calls=calls, parameters=parameters, ran=ran, times=times)
            if signature in self._ended_s:
                clock_s = [self._began_s[signature], self._ended_s[signature]]
                self._reporter.write("called", call=call, clock_s=clock_s)


class Rank:
    """One process of the user's program, with ``torch.compile`` replaced.

    Args:
        compile_: torch's own.
        tasks: what to do; several for the shapes of one plan file.
        reporter: of a search's run.
        plan: the plan file of which to say that it is in force; empty in a search.
    """

    def __init__(self, compile_: Function, tasks: Sequence[RankTask], reporter: Reporter, plan: str = "") -> None:
        self._compile, self._tasks, self._reporter, self._plan = compile_, tasks, reporter, plan
        self._task = tasks[0]
        self._names: dict[str, int] = {}
        self._others: dict[str, Mapping[str, None]] = {}  # functions with the plan's units, and calls without a plan
        self._marks: dict[nn.Module, list[GatedMarks]] = {}  # of each task
        self._is_in_force = False
        if plan:
            atexit.register(self._warn_if_unused)

    def compile(self, model: Any = None, **keywords: Any) -> Any:
        """Replacement for ``torch.compile``."""
        if model is None:
            return lambda function: self.compile(function, **keywords)
        tree = find_tree(model, self._task.model)
        if tree is None:
            return self._compile(model, **keywords)
        name = f"{type(tree).__name__}.{getattr(model, '__name__', 'forward')}"
        count = self._names[name] = self._names.get(name, 0) + 1
        if count > 1:
            name = f"{name}#{count}"
        self._reporter.begin()
        if self._task.inspects:
            stood_in = [name for name in ("torch_npu", "torchair") if hasattr(sys.modules.get(name), "is_stand_in")]
            self._reporter.write("inspects", function=name, stand_ins=stood_in)
            original = model.__call__ if isinstance(model, nn.Module) else model
            return self._in_place_of(model, keywords, InspectedStep(original, tree, name, self._reporter))
        if not self._is_decode(name, tree):
            compiled = self._compile(model, **keywords)
            if not any(task.scopes and not _misfit(tree, task) for task in self._tasks):
                return compiled
            return self._by_shape(name, tree, model, keywords, compiled, {})
        if self._task.decode is None or not self._task.decode.signature:
            prepared, compiled, step = self._marked(model, tree, keywords, self._task)
            return self._in_place_of(model, prepared, step, compiled)
        without = self._compile(model, **keywords)
        steps = {
            task.decode.signature: self._marked(model, tree, keywords, task)[2]
            for task in self._tasks
            if task.decode is not None and task.decode.function == name
        }
        allow_graphs(len(steps))
        return self._by_shape(name, tree, model, keywords, without, steps)

    def _by_shape(
        self, name: str, tree: nn.Module, model: Any, keywords: Mapping[str, Any], compiled: Any,
        steps: Mapping[str, MarkedStep],
    ) -> Any:  # fmt: skip
        """Return what runs calls with the plans of their shapes, and others as ``compiled`` does."""
        prepare = torch.compiler.disable(functools.partial(self._attach, tree))
        by_shape = StepByShape(steps, _function_of(compiled), prepare)
        self._others[name] = by_shape.others
        return self._in_place_of(model, keywords, by_shape, compiled)

    def _attach(self, tree: nn.Module) -> list[GatedMarks]:
        """Attach the scopes of each task to a tree, unless that was done; those that do not fit stay away.

        The decode step may be compiled after prefill has run: where both are one function, they share its graphs.
        """
        if tree not in self._marks:
            self._marks[tree] = [GatedMarks(tree, task.scopes) for task in self._tasks]
            for marks in self._marks[tree]:
                with suppress(PlanError):  # told when the decode step is called
                    marks.attach()
        return self._marks[tree]

    def _marked(
        self, model: Any, tree: nn.Module, keywords: Mapping[str, Any], task: RankTask
    ) -> tuple[Mapping[str, Any], Any, MarkedStep]:
        """Return how ``torch.compile`` is called for a task, its result, and what runs that with the scopes."""
        try:
            prepared, make_scope = FRONTENDS[task.backend].prepared(task, keywords)
        except PlanError as failure:
            self._reporter.write("error", stage="mark", message=str(failure))
            raise
        prepared, baseline = dict(prepared), None
        if task.turns is not None:
            # With another backend object, Dynamo compiles the same function separately.
            again = {**prepared, "backend": lambda *captured: prepared["backend"](*captured)}
            baseline = _function_of(self._compile(model, **again))
        compiled = self._compile(model, **prepared)
        announce = functools.partial(self._announce, len(task.scopes))

        def attach_scopes() -> GatedMarks:
            marks = self._attach(tree)[self._tasks.index(task)]
            marks.attach()  # modules may have been replaced since prefill
            marks.make(make_scope)
            return marks

        uncompiled = torch.compiler.disable(attach_scopes)  # the step may be called within another compiled function
        step = MarkedStep(_function_of(compiled), baseline, tree, model, task, uncompiled, self._reporter, announce)
        return prepared, compiled, step

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

    def _announce(self, scopes: int) -> None:
        """Say once in a process, in production, that the plan is in force; of several plans, of each."""
        if self._is_in_force and len(self._tasks) == 1:
            return
        self._is_in_force = True
        of_shape = "" if len(self._tasks) == 1 else " of one of its shapes"
        counted = f"{scopes} scope{'' if scopes == 1 else 's'}"
        self._say(f"is in force: {counted} on the decode step{of_shape}")

    def _warn_if_unused(self) -> None:
        """Say at the end that the decode step of the plan never came, where another call might have been meant."""
        if self._is_in_force or not self._others:
            return
        wanted = dict.fromkeys(str(task.decode or "a step with its units") for task in self._tasks)
        made = [str(DecodeCall(name, call)) for name, calls in self._others.items() for call in (*calls,) or ("",)]
        self._say(
            f"was never in force: it is for {' or '.join(wanted)}, and this program compiled {', '.join(made)}; "
            "search again with the program as it is now"
        )

    def _say(self, what: str) -> None:
        if self._plan and sys.stderr:  # a process may have none, or have closed it
            with suppress(OSError, ValueError):
                sys.stderr.write(f"sktune: {self._plan} {what}\n")

    def _is_decode(self, name: str, tree: nn.Module) -> bool:
        if self._task.decode is not None:
            return any(task.decode is not None and name == task.decode.function for task in self._tasks)
        if problem := _misfit(tree, self._task):  # it may belong to another model, such as a draft model
            logger.warning("%s runs without scopes, as the plan does not fit it: %s", name, problem)
        return not problem


def _misfit(tree: nn.Module, task: RankTask) -> str:
    """Return why a tree cannot have the plan's scopes; empty if it can."""
    try:
        marks = GatedMarks(tree, task.scopes)
        marks.attach()
        marks.detach()
    except PlanError as failure:
        return str(failure)
    return ""


def _function_of(compiled: Any) -> Function:
    """Return the function behind ``torch.compile``'s result: a module's ``forward``, which is about to be replaced."""
    function: Function = compiled.forward if isinstance(compiled, nn.Module) else compiled
    return function


def take_over(folder: str | None, plan: str | None) -> None:
    """Replace ``torch.compile`` in this process.

    Args:
        folder: of the run whose task it has; None in production.
        plan: path of the plan file, where there is no run.

    Raises:
        SktuneError: the task or the plan file cannot be read, or has another format.
    """
    if isinstance(getattr(torch.compile, "__self__", None), Rank):
        return
    reporter = Reporter(folder)
    if folder is not None:
        try:
            tasks: Sequence[RankTask] = [RankTask.read(folder)]
        except SktuneError as failure:
            reporter.begin()
            reporter.write("error", stage="run", message=str(failure))
            raise
    else:
        assert plan is not None
        tasks = read_plan_file(plan)
    task = tasks[0]
    if task.stands_in:
        from . import stand_ins  # needs more of torch than other runs do

        stand_ins.install()
    os.environ.update(FRONTENDS[task.backend].environment)
    torch.compile = Rank(torch.compile, tasks, reporter, plan if folder is None and plan else "").compile
