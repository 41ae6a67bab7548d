"""Which submodules each statement of a decode step runs, followed through methods, submodules and loops over layers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import libcst as cst
import libcst.matchers as m

from sktune.core.plan_file import MAX_LAYERS
from sktune.source.classes import LAYER_INDEX, SourceClass, argument_of, attribute_of_self, calls_in, last_name
from sktune.source.runs import Function, Statement, StatementCall, SuiteRun, Turn
from sktune.source.values import EvaluationPlace, Known, evaluate, truth_of

MAX_DEPTH = 40

_Methods = tuple[str | None, ...]


@dataclass(frozen=True)
class _Context:
    """What is known where code runs: the module, the layer, and the values of local names.

    Attributes:
        names: local names of modules.
        parts: local names of parts of lists of modules, with the path of the list.
        methods: local names of what the function binds, each with the methods that it may be; None is something else.
        numbers: local names of numbers.
        made_with: arguments of the module's ``__init__``, as far as they are known.
    """

    function: Function
    prefix: str
    layer: int | None = None
    index: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    methods: Mapping[str, "_Methods"] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    made_with: Mapping[str, Any] = field(default_factory=dict)
    turn: Turn | None = None
    is_repeated: bool = False


@dataclass(frozen=True)
class _Iterated:
    """What a loop runs over.

    Attributes:
        path: of the list of modules; None if it is none.
        element: local name of the module.
        counter: local name of its number in the list; None if the loop has only a part of the list.
    """

    path: str | None = None
    element: str | None = None
    counter: str | None = None


class Follower:
    """Follows a step through the classes of a file.

    Args:
        classes: of the file.
        units: names at which scopes begin and end; nothing is followed deeper than these.
        n_layers: length of the list of decoder layers.
        known: what decides which branches a decode step takes.

    Attributes:
        modules: the modules of which a method was called, each with its possible classes.
    """

    def __init__(self, classes: Mapping[str, SourceClass], units: Sequence[str], n_layers: int, known: Known) -> None:
        self._classes, self._n_layers, self._known = classes, n_layers, known
        self._below = _below(units)
        self._children = {name: each.children(tuple(classes)) for name, each in classes.items()}
        self._depth = 0
        self._layer_lists: set[str] = set()
        self._values: dict[tuple[Any, ...], Any] = {}
        self.modules: dict[str, tuple[str, ...]] = {}

    def follow(self, root: SourceClass, method: str) -> SuiteRun | None:
        """Return the run of ``method`` of the model ``root``; None if its class does not define it."""
        if method not in root.methods:
            return None
        return self._method(root, method, _Context(Function(root, root.methods[method]), ""))

    def _method(self, owner: SourceClass, name: str, here: _Context) -> SuiteRun | None:
        if name not in owner.methods or self._depth > MAX_DEPTH:
            return None
        node = owner.methods[name]
        self._depth += 1
        inside = replace(
            here, function=Function(owner, node), index=None, names={}, parts={}, methods={}, numbers={}, turn=None
        )
        run = self._suite(node.body, inside)
        self._depth -= 1
        return run

    def _suite(self, suite: cst.BaseSuite, here: _Context) -> SuiteRun:
        statements = []
        names, parts, methods = dict(here.names), dict(here.parts), dict(here.methods)
        ended = False
        for node in suite.body:
            local = replace(here, names=names, parts=parts, methods=methods)
            if not isinstance(node, cst.BaseStatement):
                continue
            steps = () if ended else tuple(self._steps(node, local))
            statements.append(Statement(node, steps, not ended and self._may_leave(node, local)))
            names |= self._bound(node, self._module_path, local)
            parts |= self._bound(node, self._part_of, local)
            methods |= self._bound_methods(node, local)
            ended = ended or self._ends(node, local)
        return SuiteRun(
            suite, here.function, here.layer, here.index, tuple(statements), here.prefix, here.turn, here.is_repeated
        )

    def _ends(self, node: cst.BaseStatement, here: _Context) -> bool:
        """Whether nothing after a statement runs in decode: it returns, or its only branch in decode does."""
        if isinstance(node, cst.If):
            branches = self._taken(node, here)
            return len(branches) == 1 and branches[0] is not None and _leaves(branches[0])
        return isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[-1], cst.Return | cst.Raise)

    def _may_leave(self, node: cst.CSTNode, here: _Context) -> bool:
        """Whether decode may leave the suite of a statement in it."""
        if isinstance(node, cst.SimpleStatementLine | cst.SimpleStatementSuite):
            return isinstance(node.body[-1], cst.Return | cst.Break | cst.Continue)
        if isinstance(node, cst.If):
            return any(self._may_leave(body, here) for body in self._taken(node, here) if body)
        if isinstance(node, cst.For | cst.While):
            return _has_return(node.body)
        if isinstance(node, cst.With | cst.Try | cst.IndentedBlock):
            inside = node.body.body if not isinstance(node, cst.IndentedBlock) else node.body
            return any(self._may_leave(each, here) for each in inside)
        return False

    def _steps(self, node: cst.BaseStatement, here: _Context) -> Iterator[StatementCall]:
        if isinstance(node, cst.If):
            yield from self._calls(node.test, here)
            taken = self._taken(node, here)
            runs = [self._suite(body, here) for body in taken if body is not None]
            if firsts := frozenset().union(*(run.firsts for run in runs)):
                lasts = frozenset().union(*(run.lasts for run in runs))
                exits = frozenset().union(*(run.lasts if _leaves(run.suite) else run.exits for run in runs))
                yield StatementCall(firsts, lasts, tuple(runs), exits, is_certain=len(taken) == 1)
        elif isinstance(node, cst.For):
            yield from self._calls(node.iter, here)
            yield from self._loop(node, here)
        elif isinstance(node, cst.With):
            for item in node.items:
                yield from self._calls(item, here)
            yield from _inside([self._suite(node.body, here)])
        elif isinstance(node, cst.While):
            yield from _inside([self._suite(node.body, _repeated(here))], is_certain=False)
        elif isinstance(node, cst.Try):
            yield from _inside([self._suite(node.body, here)])
        elif not isinstance(node, cst.FunctionDef | cst.ClassDef):
            yield from self._calls(node, here)

    def _taken(self, node: cst.If, here: _Context) -> list[cst.BaseSuite | None]:
        """Return the branches that a decode step may take; None for "none of them"."""
        taken: list[cst.BaseSuite | None] = []
        other: cst.If | cst.Else | None = node
        while isinstance(other, cst.If):
            holds = self._truth(other.test, here)
            if holds is not False:
                taken.append(other.body)
            if holds:
                return taken
            other = other.orelse
        return [*taken, other.body if other else None]

    def _truth(self, test: cst.BaseExpression, here: _Context, *, in_init: bool = False) -> bool | None:
        """Return whether a condition holds, in the function or in its class's ``__init__``; None if not known."""
        return truth_of(self._value(test, here, in_init=in_init))

    def _value(self, node: cst.BaseExpression, here: _Context, *, in_init: bool = False) -> Any:
        """Return the value of an expression; all modules share it if it depends on none of their arguments."""
        owner, function = here.function.owner, None if in_init else here.function.node
        made_with = _Noted(here.made_with)
        names = made_with if in_init else _Noted(here.numbers)
        key = (node, owner.name, function, *names, *made_with)
        alone = (*key, *names.values(), *made_with.values())
        known = next((each for each in (key, alone) if each in self._values), None)
        if known is None:
            value = evaluate(node, EvaluationPlace(self._known, owner, names, function, made_with))
            known = alone if names.was_read or made_with.was_read else key
            self._values[known] = value
        return self._values[known]

    def _loop(self, node: cst.For, here: _Context) -> Iterator[StatementCall]:
        over = self._list_of(node, here)
        path, counter = over.path, over.counter
        count = self._length(node, path, here) if path else 0
        if path is None or not count:
            yield from _inside([self._suite(node.body, _repeated(here))], is_certain=False)
            return
        index = counter
        if of_layers := here.layer is None:
            classes = self._children[here.function.owner.name][path.removeprefix(here.prefix)].classes
            self._layer_lists.add(path)
            known = [{*self._classes[name].assigned} for name in classes]
            own = (name for name in LAYER_INDEX if known and over.element and all(name in each for each in known))
            index = counter or next((f"{over.element}.{name}" for name in own), None)  # a number that a layer knows
        runs = []
        for number in range(count):
            names = {**here.names, **({over.element: f"{path}.{number}"} if over.element else {})}
            numbers = {**here.numbers, **({counter: number} if counter else {})}
            inside = replace(here, names=names, numbers=numbers)
            if of_layers:
                inside = replace(inside, layer=number, index=index)
            else:
                inside = replace(inside, turn=Turn(counter or "", number, count))
            runs.append(self._suite(node.body, inside))
        yield from _inside(runs)

    def _length(self, node: cst.For, path: str, here: _Context) -> int:
        """Return how often a loop over the list ``path`` runs; 0 if the list has none of the units."""
        if path not in self._below:
            return 0
        if here.layer is None:
            return self._n_layers
        if m.matches(node.iter, m.Call(func=m.Name("range"), args=[m.Arg(m.Integer())])):
            assert isinstance(node.iter, cst.Call)
            count = cst.ensure_type(node.iter.args[0].value, cst.Integer).evaluated_value
            if count <= MAX_LAYERS:
                return int(count)
        return max((int(number) for number in self._below[path] if number.isdigit()), default=-1) + 1

    def _list_of(self, node: cst.For, here: _Context) -> _Iterated:
        """Return the list of modules that a loop iterates over, and the names of its element and its counter."""
        target, iterated = node.target, node.iter
        names = [last_name(item.value) for item in target.elements] if isinstance(target, cst.Tuple) else [""]
        if m.matches(iterated, m.Call(func=m.Name("enumerate"))) and len(names) == 2:
            assert isinstance(iterated, cst.Call)
            listed = iterated.args[0].value
            if part := self._part_of(listed, here):
                return _Iterated(part, names[1])
            return _Iterated(self._list_path(listed, here), names[1], names[0])
        if m.matches(iterated, m.Call(func=m.Name("range"))) and isinstance(target, cst.Name):
            lists = m.findall(node.body, m.Subscript(slice=[m.SubscriptElement(m.Index(m.Name(target.value)))]))
            paths = [self._list_path(indexed.value, here) for indexed in lists if isinstance(indexed, cst.Subscript)]
            of_units = [path for path in paths if path and path in self._below]
            if of_units:
                return _Iterated(of_units[0], None, target.value)
        if isinstance(target, cst.Name):
            return _Iterated(self._part_of(iterated, here) or self._list_path(iterated, here), target.value)
        return _Iterated()

    def _part_of(self, node: cst.BaseExpression, here: _Context) -> str | None:
        """Return the list of which an expression has a part: ``tuple(self.layers[i] for i in range(a, b))``."""
        if isinstance(node, cst.Name):
            return here.parts.get(node.value)
        if m.matches(node, m.Call(func=m.Name("tuple") | m.Name("list"), args=[m.Arg()])):
            assert isinstance(node, cst.Call)
            return self._part_of(node.args[0].value, here)
        if isinstance(node, cst.GeneratorExp | cst.ListComp) and isinstance(node.elt, cst.Subscript):
            return self._list_path(node.elt.value, here)
        from_start = m.SubscriptElement(m.Slice(lower=None))
        if isinstance(node, cst.Subscript) and m.matches(node, m.Subscript(slice=[m.SubscriptElement(m.Slice())])):
            return None if m.matches(node.slice[0], from_start) else self._list_path(node.value, here)
        return None

    def _list_path(self, node: cst.BaseExpression, here: _Context) -> str | None:
        if isinstance(node, cst.Subscript):  # self.layers[: self.n_layers]
            if m.matches(node, m.Subscript(slice=[m.SubscriptElement(m.Slice())])):
                return self._list_path(node.value, here)
            return None
        name = attribute_of_self(node)
        child = self._children[here.function.owner.name].get(name) if name else None
        return here.prefix + name if name and child and child.is_list else None

    def _bound(
        self, node: cst.BaseStatement, path_of: Callable[[cst.BaseExpression, _Context], str | None], here: _Context
    ) -> Mapping[str, str]:
        """Return the local names that a statement binds to paths: ``layer = self.layers[i]``."""
        bound: dict[str, str] = {}
        body = node.body if isinstance(node, cst.SimpleStatementLine) else ()
        for assigned in (each for each in body if isinstance(each, cst.Assign)):
            target = assigned.targets[0].target
            if isinstance(target, cst.Name) and (path := path_of(assigned.value, here)):
                bound[target.value] = path
        return bound

    def _calls(self, node: cst.CSTNode, here: _Context) -> Iterator[StatementCall]:
        for call in calls_in(node):
            if step := self._call(call, here):
                yield step

    def _call(self, call: cst.Call, here: _Context) -> StatementCall | None:
        function = call.func
        name = attribute_of_self(function)
        bound = here.methods.get(last_name(function), ()) if isinstance(function, cst.Name) else ()
        if runs := self._methods(here.function.owner, (name,) if name else bound, here):
            return _of_runs(runs)
        if path := self._module_path(function, here):
            return self._module(path, "forward", here)
        if isinstance(function, cst.Attribute) and (path := self._module_path(function.value, here)):
            return self._module(path, function.attr.value, here)
        return None

    def _bound_methods(self, node: cst.CSTNode, here: _Context) -> Mapping[str, _Methods]:
        """Return the local names that a statement binds, with the methods that they may be: ``fn = self.fast``."""
        bound: dict[str, _Methods] = {}
        if isinstance(node, cst.If):
            taken = self._taken(node, here)
            ways = [self._bound_methods(body, here) if body else {} for body in taken]
            for name in dict.fromkeys(name for way in ways for name in way):
                bound[name] = tuple(each for way in ways for each in way.get(name, here.methods.get(name, (None,))))
        elif isinstance(node, cst.With | cst.For | cst.While | cst.Try):
            bound |= self._bound_methods(node.body, here)
        elif isinstance(node, cst.IndentedBlock | cst.SimpleStatementLine):
            for each in node.body:
                bound |= self._bound_methods(each, here)
        elif isinstance(node, cst.Assign) and isinstance(target := node.targets[0].target, cst.Name):
            bound[target.value] = (attribute_of_self(node.value),)
        return bound

    def _methods(self, owner: SourceClass, names: _Methods, here: _Context) -> list[SuiteRun | None]:
        """Return the runs of methods, or of those that ``__init__`` assigns to their names; none if any is unknown."""
        known: dict[str | None, None] = {}
        for name in names:
            made = replace(here, function=Function(owner, here.function.node))
            assigned = [value for value in owner.assigned.get(name or "", ()) if self._is_made(value, made)]
            chosen = [attribute_of_self(value) for each in assigned for value in self._chosen(each, made)]
            known |= dict.fromkeys([name] if name in owner.methods else chosen or [None])
        return [self._method(owner, each or "", here) for each in known] if owner.methods.keys() >= known.keys() else []

    def _module_path(self, node: cst.BaseExpression, here: _Context) -> str | None:
        if isinstance(node, cst.Name):
            return here.names.get(node.value)
        if isinstance(node, cst.Subscript) and (path := self._list_path(node.value, here)):
            number = _number(node.slice[0].slice, here.numbers)
            return None if number is None else f"{path}.{number}"
        name = attribute_of_self(node)
        if name and name in self._children[here.function.owner.name]:
            return here.prefix + name
        return None

    def _module(self, path: str, method: str, here: _Context) -> StatementCall | None:
        """Return the step of a submodule: followed if scopes begin or end inside it, else as one unit."""
        makers = self._makers(path, here)
        if makers is None:
            return None
        self.modules[path] = tuple(makers)
        if path not in self._below:
            return StatementCall(frozenset({path}), frozenset({path}))
        runs: list[SuiteRun | None] = []
        for name, calls in makers.items():
            owner = self._classes[name]
            inside = replace(here, prefix=path + ".", made_with=self._arguments(owner, calls, path, here))
            runs += self._methods(owner, (method,), inside) or [None]
        return _of_runs(runs) or StatementCall(frozenset({path}), frozenset({path}))

    def _makers(self, path: str, here: _Context) -> Mapping[str, Sequence[cst.Call]] | None:
        """Return the possible classes of a submodule, or of an element of its lists, each with the calls that make it.

        None if ``__init__`` does not make it in this layer.
        """
        owner, name = here.function.owner, path.removeprefix(here.prefix).partition(".")[0]
        child = self._children[owner.name][name]
        if child.is_list:
            return {each: owner.made.get(each, ()) for each in child.classes}
        assigned = [value for value in owner.assigned[name] if self._is_made(value, here)]
        made = [value for each in assigned for value in self._chosen(each, here)]
        calls = [call for value in made for call in calls_in(value)]
        makers = {each: [call for call in calls if last_name(call.func) == each] for each in child.classes}
        exists = any(not m.matches(value, m.Name("None")) for value in made)
        return {each: called for each, called in makers.items() if called} if exists else None

    def _arguments(self, made: SourceClass, calls: Sequence[cst.Call], path: str, here: _Context) -> dict[str, Any]:
        """Return the arguments of a submodule's ``__init__``, as far as they are known."""
        given = {name: argument_of(calls[0], made, name) for name in made.parameters} if len(calls) == 1 else {}
        values = {name: self._value(node, here, in_init=True) for name, node in given.items() if node is not None}
        known = {name: value for name, value in values.items() if isinstance(value, bool | int | float | str | None)}
        of_layers = path.rpartition(".")[0] in self._layer_lists
        return known | ({name: here.layer for name in LAYER_INDEX if name in made.parameters} if of_layers else {})

    def _is_made(self, value: cst.BaseExpression, here: _Context) -> bool:
        tests = here.function.owner.conditions.get(value, ())
        return all(self._truth(test, here, in_init=True) in (None, wanted) for test, wanted in tests)

    def _chosen(self, value: cst.BaseExpression, here: _Context) -> Iterator[cst.BaseExpression]:
        """Yield what ``a if test else b`` may be."""
        if not isinstance(value, cst.IfExp):
            yield value
            return
        holds = self._truth(value.test, here, in_init=True)
        yield from self._chosen(value.body, here) if holds is not False else ()
        yield from self._chosen(value.orelse, here) if not holds else ()


class _Noted(dict[str, Any]):
    """Values of names, and whether one of them was read."""

    was_read = False

    def __contains__(self, name: object) -> bool:
        found = super().__contains__(name)
        self.was_read = self.was_read or found
        return found


def _below(units: Sequence[str]) -> Mapping[str, set[str]]:
    """Return the modules around units, each with the names of what leads to these in it."""
    below: dict[str, set[str]] = {}
    for unit in units:
        parts = unit.split(".")
        for count in range(1, len(parts)):
            below.setdefault(".".join(parts[:count]), set()).add(parts[count])
    return below


def _repeated(here: _Context) -> _Context:
    """Return the context in a loop of which a single pass is followed; within a layer all passes are the layer's."""
    return replace(here, is_repeated=here.is_repeated or here.layer is None)


def _leaves(body: cst.BaseSuite) -> bool:
    """Whether a branch ends with ``return`` or ``raise``."""
    last = body.body[-1] if body.body else None
    return isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Return | cst.Raise)


@lru_cache(maxsize=1 << 12)
def _has_return(body: cst.BaseSuite) -> bool:
    return bool(m.findall(body, m.Return()))


def _number(index: cst.BaseSlice, numbers: Mapping[str, int]) -> int | None:
    if not isinstance(index, cst.Index):
        return None
    return int(index.value.value) if isinstance(index.value, cst.Integer) else numbers.get(last_name(index.value))


def _of_runs(runs: Sequence[SuiteRun | None]) -> StatementCall | None:
    """Return one step for functions of which one runs; None if none of them runs a module."""
    running = tuple(run for run in runs if run and run.firsts)
    firsts = frozenset().union(*(run.firsts for run in running))
    lasts = frozenset().union(*(run.lasts for run in running))
    return StatementCall(firsts, lasts, running, is_certain=len(runs) == 1) if running else None


def _inside(runs: Sequence[SuiteRun], *, is_certain: bool = True) -> Iterator[StatementCall]:
    """Yield one step for consecutive runs, if any of them runs a module."""
    running = [run for run in runs if run.firsts]
    if running:
        exits = frozenset().union(*(run.exits for run in running))
        yield StatementCall(running[0].firsts, running[-1].lasts, tuple(runs), exits, is_certain=is_certain)
