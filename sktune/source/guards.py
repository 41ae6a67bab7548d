"""The condition of a scope: the flag, decode only, no draft layer; made of what the scope's class and function have."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import libcst as cst
import libcst.matchers as m

from sktune.core.errors import PlanError
from sktune.source.classes import (
    LAYER_INDEX,
    SourceClass,
    argument_of,
    code_of,
    constructions,
    last_name,
    parameters_of,
)
from sktune.source.placement import Block, Placed
from sktune.source.places import contains
from sktune.source.values import (
    CARRIED_PREFILL,
    PREFILL,
    UNKNOWN,
    EvaluationPlace,
    Known,
    Reading,
    evaluate,
    reading_of,
)
from sktune.targets.recipe import FLAG

MAX_LISTED = 6
"""Numbers that are listed rather than described by their pattern."""
FLAG_OF = {
    "infer_config": f'infer_config.model_config.custom_params.get("{FLAG}", False)',
    "runner_settings": f'runner_settings.get("model_config").get("{FLAG}", False)',
}
"""How the recipes read the flag, by the parameter of ``__init__`` that provides it."""
IS_DRAFT = "is_draft_layer"
"""The attribute that distinguishes a layer of the draft model, which has the same class, from one of the model."""
SWITCHED = ("enable", "use")
"""Beginnings of the names of flags."""
COUNT = "num_hidden_layers"
"""The configuration's name of the number of decoder layers."""


class Guards:
    """Builds the conditions of a plan's blocks.

    Attributes:
        additions: statements to add to ``__init__`` of a class, by class.
        readings: where the program reads the flag, for each block; None where that cannot be seen.
        drafts: the classes that make draft layers of a class with scopes.
        users: other files that use such a class, perhaps for draft layers.

    Args:
        classes: of the file.
        placed: the blocks.
        n_layers: of the model.
        known: before the program runs.
        users: by class, other files that use it.
    """

    def __init__(
        self,
        classes: Mapping[str, SourceClass],
        placed: Placed,
        n_layers: int,
        known: Known,
        users: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self._classes, self._placed, self._n_layers, self._users = classes, placed, n_layers, users
        self._known = Known(known.settings, {**known.config, COUNT: n_layers})
        self.additions: dict[str, list[str]] = {}
        self.readings: dict[Reading | None, None] = {}
        self.drafts: dict[str, None] = {}
        self.users: dict[str, None] = {}

    def condition(self, block: Block) -> str:
        """Return the condition for a block, without that on its layers.

        Raises:
            PlanError: the class or the function lacks something that it needs.
        """
        parts = [f"self.{self._flag(block.function.owner)}"]
        if prefill := self._prefill(block):
            parts.append(f"not {prefill}")
        if draft := self._draft(block):
            parts.append(f"not {draft}")
        return " and ".join(parts)

    def index(self, block: Block) -> str:
        """Return the expression for the layer's number."""
        if block.index:
            return block.index
        owner = block.function.owner
        for name in LAYER_INDEX:
            if name in owner.assigned:
                return f"self.{name}"
        parameter = self._number_of(owner)
        if parameter is None:
            raise PlanError(
                f"{owner.name} has no attribute for its layer's number, and labels must differ from layer to layer; "
                f"add one: self.{LAYER_INDEX[0]} = {LAYER_INDEX[0]} in its __init__"
            )
        return f"self.{self._add(owner, parameter, parameter)}"

    def _number_of(self, owner: SourceClass) -> str | None:
        return next((name for name in LAYER_INDEX if name in owner.parameters), None)

    def _flag(self, owner: SourceClass) -> str:
        names = [name for name in owner.assigned if "super" in name and "kernel" in name]
        for name in sorted(names, key=lambda name: (name != FLAG, not name.startswith(SWITCHED))):
            values = owner.assigned[name]
            reading = reading_of(values[0], owner) if len(values) == 1 else None
            if reading or name.startswith(SWITCHED):  # others may be options, or a label
                self.readings[reading] = None
                return name
        for other in self._classes.values():
            for value in other.assigned.get(FLAG, ()):
                if _root(value) in owner.parameters:
                    self.readings[reading_of(value, other)] = None
                    return self._add(owner, FLAG, code_of(value))
        for parameter, read in FLAG_OF.items():
            if parameter in owner.parameters:
                self.readings[reading_of(cst.parse_expression(read), owner)] = None
                return self._add(owner, FLAG, read)
        raise PlanError(
            f"{owner.name} has no flag that enables scopes; add one: self.{FLAG} = config.{FLAG} in its __init__"
        )

    def _add(self, owner: SourceClass, name: str, value: str) -> str:
        if "__init__" not in owner.methods:
            raise PlanError(f"{owner.name} has no __init__ of its own, in which to set self.{name}; add one")
        line = f"self.{name} = {value}"
        if line not in self.additions.setdefault(owner.name, []):
            self.additions[owner.name].append(line)
        return name

    def _prefill(self, block: Block) -> str:
        """Return the expression that the block's function, or else its class or file, has for prefill."""
        function = block.function
        parameters = parameters_of(function.node)
        if PREFILL in parameters or _is_local_before(block):
            return PREFILL
        written = {id(each.target) for each in m.findall(function.node, m.AssignTarget())}  # type: ignore[attr-defined]
        for node in m.findall(function.node.body, CARRIED_PREFILL):
            # A local name may not be bound yet where the scope begins.
            if _root(node) in parameters and id(node) not in written:
                return code_of(node)
        if PREFILL in function.owner.assigned:
            return f"self.{PREFILL}"
        for carriers in (self._carriers([function.owner]), self._carriers(list(self._classes.values()))):
            for name in parameters:
                forms = carriers.get(name, ())
                if len(forms) > 1:
                    raise PlanError(
                        f"{function.name} passes {name!r} on, and the file reads prefill from it as "
                        f"{' and as '.join(forms)}; add the parameter {PREFILL} to it"
                    )
                if forms:
                    return forms[0]
        if "forward_metadata" in parameters:
            return f"forward_metadata.{PREFILL}"
        if "decode" in function.node.name.value:
            return ""
        raise PlanError(
            f"{function.name} cannot distinguish prefill from decode, and prefill must not change; "
            f"add the parameter {PREFILL} to it"
        )

    def _carriers(self, classes: Sequence[SourceClass]) -> Mapping[str, Sequence[str]]:
        """Return the names of objects that have the prefill flag, each with the expressions that read it."""
        found: dict[str, dict[str, None]] = {}
        for node in (node for owner in classes for node in m.findall(owner.node, CARRIED_PREFILL)):
            code = code_of(node).replace("'", '"')
            found.setdefault(_root(node), {})[code] = None
        return {name: list(forms) for name, forms in found.items() if name != "self"}

    def _draft(self, block: Block) -> str:
        """Return the expression that is true in draft layers; empty if they do not share the block's class."""
        owner = block.function.owner
        makers = self._shared.get(owner.name, ())
        users = self._used_elsewhere.get(owner.name, ())
        if not makers and not users:
            return ""
        self.drafts |= dict.fromkeys(makers)
        self.users |= dict.fromkeys(users)
        parameter = self._number_of(owner)
        if parameter is None or not self._is_number(owner, parameter):
            raise PlanError(
                f"{owner.name} {'also runs' if makers else 'may also run'} in draft layers "
                f"({', '.join((*makers, *users))}), which must get no scopes, and cannot tell them from the model's: "
                f"give its __init__ the parameter {LAYER_INDEX[0]}, with the layer's number"
            )
        count = f"config.{COUNT}" if "config" in owner.parameters else str(self._n_layers)
        return f"self.{self._add(owner, IS_DRAFT, f'{parameter} >= {count}')}"

    @cached_property
    def _used_elsewhere(self) -> Mapping[str, Sequence[str]]:
        """Return the classes that also run in layers of other files, each with those files."""
        return self._with_submodules(
            {name: dict.fromkeys(self._users.get(name, ())) for name in self._placed.in_layers}
        )

    @cached_property
    def _shared(self) -> Mapping[str, Sequence[str]]:
        """Return the classes that also run in draft layers, each with the classes that make those."""
        shared: dict[str, dict[str, None]] = {name: {} for name in self._placed.in_layers}
        for name in shared:
            for maker, _, _ in constructions(self._classes, name):
                if maker.name not in self._placed.in_layers and maker.name not in self._placed.layer_lists:
                    shared[name][maker.name] = None
        return self._with_submodules(shared)

    def _with_submodules(self, shared: Mapping[str, dict[str, None]]) -> Mapping[str, Sequence[str]]:
        """Return what else runs each class; it runs those of its submodules, too."""
        pending = [name for name, makers in shared.items() if makers]
        while pending:
            name = pending.pop()
            for child in self._classes[name].children(tuple(self._classes)).values():
                for other in child.classes:
                    if other in shared and not shared[name].keys() <= shared[other].keys():
                        shared[other] |= shared[name]
                        pending.append(other)
        return {name: list(makers) for name, makers in shared.items() if makers}

    def _is_number(self, owner: SourceClass, parameter: str, depth: int = 0) -> bool:
        """Whether all calls of a class pass the layer's number, and draft layers have numbers after the last one."""
        if depth > len(self._classes):
            return False
        for maker, call, made in constructions(self._classes, owner.name):
            value = argument_of(call, made, parameter)
            if value is None:
                return False
            if maker.name in self._placed.in_layers:
                own = self._number_of(maker)
                is_own = m.matches(value, m.Name(own or "") | m.Attribute(m.Name("self"), m.Name(own or "")))
                if own is None or not is_own or not self._is_number(maker, own, depth + 1):
                    return False
            elif maker.name not in self._placed.layer_lists and not self._is_after_the_last(value, maker, depth + 1):
                return False
        return True

    def _is_after_the_last(self, value: cst.BaseExpression, maker: SourceClass, depth: int) -> bool:
        """Whether an argument in ``__init__`` of a class is at least the number of layers."""
        # The names that a comprehension binds count from 0.
        loops = m.findall(maker.node, m.CompFor() | m.For())
        counted = {last_name(node.target): 0 for node in loops if isinstance(node, cst.CompFor | cst.For)}
        number = evaluate(value, EvaluationPlace(self._known, maker, counted))
        if number is not UNKNOWN:
            return isinstance(number, int) and number >= self._n_layers
        name = last_name(value)
        if name not in maker.parameters or depth > len(self._classes):
            return False
        calls = list(constructions(self._classes, maker.name))
        arguments = [(argument_of(call, made, name), of) for of, call, made in calls]
        return bool(calls) and all(
            given is not None and self._is_after_the_last(given, of, depth + 1) for given, of in arguments
        )


def _root(node: cst.CSTNode) -> str:
    """Return ``a`` of ``a.b.get("c")``."""
    while isinstance(node, cst.Attribute | cst.Call | cst.Subscript):
        node = node.func if isinstance(node, cst.Call) else node.value
    return node.value if isinstance(node, cst.Name) else ""


def _is_local_before(block: Block) -> bool:
    """Whether the function has set a local ``is_prefill``, in every case, before the block."""
    for node in block.function.node.body.body:
        if block.suite is block.function.node.body and node is block.suite.body[block.first]:
            return False
        if block.suite is not block.function.node.body and contains(node, block.suite):
            return False
        if m.matches(node, m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(m.Name(PREFILL))])])):
            return True
    return False


def of_layers(layers: Sequence[int], n_layers: int, index: str) -> str:
    """Return the condition that ``index`` is one of ``layers``, which ascend; empty if there are no others."""
    if not layers or len(layers) == n_layers:
        return ""
    if len(layers) == layers[-1] - layers[0] + 1:
        return _between(layers[0], layers[-1], n_layers, index)
    listed = f"{index} in ({', '.join(map(str, layers))})"
    if len(layers) <= MAX_LISTED:
        return listed
    return min(*_patterns(layers, n_layers, index), listed, key=len)


def _between(first: int, last: int, n_layers: int, index: str) -> str:
    """Return the condition of consecutive layers; empty for all layers."""
    if first == last:
        return f"{index} == {first}"
    if first > 0 and last < n_layers - 1:
        return f"{first} <= {index} <= {last}"
    return f"{index} >= {first}" if first > 0 else f"{index} <= {last}" if last < n_layers - 1 else ""


def _patterns(layers: Sequence[int], n_layers: int, index: str) -> Iterator[str]:
    """Yield conditions that say the same as a list of layers: what is missing, ranges, and what repeats."""
    first, last, wanted = layers[0], layers[-1], set(layers)
    missing = [layer for layer in range(first, last + 1) if layer not in wanted]
    without = f"{index} != {missing[0]}" if len(missing) == 1 else f"{index} not in ({', '.join(map(str, missing))})"
    yield " and ".join(filter(None, (_between(first, last, n_layers, index), without)))
    begins = [layer for layer in layers if layer - 1 not in wanted]
    ends = [layer for layer in layers if layer + 1 not in wanted]
    ranges = [_between(begin, end, n_layers, index) for begin, end in zip(begins, ends, strict=True)]
    yield f"({' or '.join(ranges)})"
    for period in range(2, (last - first + 1) // 3 + 1):  # what comes only twice does not repeat
        rests = sorted({layer % period for layer in layers})
        whole = [rest for rest in rests if wanted.issuperset(range(rest, n_layers, period))]
        if len(rests) < period and all((layer % period in rests) == (layer in wanted) for layer in range(first, last)):
            # A bound is needed where the pattern would go on.
            lowest = first if any(layer % period in rests for layer in range(first)) else 0
            highest = last if any(layer % period in rests for layer in range(last + 1, n_layers)) else n_layers - 1
            yield " and ".join(filter(None, (_between(lowest, highest, n_layers, index), _of(rests, period, index))))
        others = [layer for layer in layers if layer % period not in whole]
        for begin, end in zip(begins, ends, strict=True):
            if whole and others and begin <= others[0] and others[-1] <= end:
                yield f"({_between(begin, end, n_layers, index)} or {_of(whole, period, index)})"


def _of(rests: Sequence[int], period: int, index: str) -> str:
    """Return the condition that ``index`` leaves one of some ``rests``, which ascend, when divided by ``period``."""
    if len(rests) == 1:
        return f"{index} % {period} == {rests[0]}"
    if len(rests) == period - 1:
        return f"{index} % {period} != {min(set(range(period)) - set(rests))}"
    return f"{index} % {period} in ({', '.join(map(str, rests))})"
