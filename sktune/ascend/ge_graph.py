"""Read GE graphs, as dumped by TorchAir and GE.

Three formats: GE's own IR as text (TorchAir's ``config.debug.graph_dump`` of type ``txt``, GE's ``ge_proto_*.txt``),
TorchAir's ``pbtxt``, and GE's ``ge_onnx_*.pbtxt`` (field names from ``ge_ir_utils.cc`` in hicann/ge). A dump before GE
shows which operators are marked; ``AfterSkGraph`` and the ``super_kernel_sub_graph<N>`` beside it show what was fused.

They are in protobuf's text format, which is read here without protobuf and without a schema: reading a graph must not
require the wheel that wrote it. The grammar is that of https://protobuf.dev/reference/protobuf/textformat-spec/, as far
as printers use it: fields, messages, strings.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sktune.core.errors import BadInputError
from sktune.core.files import read_bytes

# A message maps the names of its fields to their values in order: text for scalars, a message for messages.
Message = dict[str, list[Any]]

MAX_DEPTH = 100
"""Messages within each other, as in protobuf's own parsers (SetRecursionLimit)."""

_TOKEN = re.compile(
    r"\s*+(?:#[^\n]*|(?P<close>\})|(?P<name>[\w.\[\]/]++)\s*+"
    r"(?:(?::\s*+)?(?P<open>\{)|:\s*+(?P<value>\"[^\"\\]*(?:\\.[^\"\\]*)*\"|'[^'\\]*(?:\\.[^'\\]*)*'|[^\s{}\"';,]+)[;,]?)"
    r"|(?P<wrong>\S))",
    re.DOTALL,
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_CONTROL = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def parse_message(text: str, source: str) -> Message:
    """Return ``text`` as a message; errors call it ``source``.

    Strings keep their quotes and escapes until ``string`` removes them: most are tensor data that nobody reads.

    Raises:
        BadInputError: the text is not in protobuf's text format, or ends inside a message.
    """
    root: Message = {}
    message, enclosing = root, list[Message]()
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "value":
            message.setdefault(token["name"], []).append(token["value"])
        elif kind == "open":
            enclosing.append(message)
            if len(enclosing) > MAX_DEPTH:
                raise BadInputError(f"{source} has more than {MAX_DEPTH} levels; give a graph dump of TorchAir or GE")
            message.setdefault(token["name"], []).append(inner := Message())
            message = inner
        elif kind == "close" and enclosing:
            message = enclosing.pop()
        elif kind is not None:
            offset = token.start(kind)
            rest = text[offset:].rstrip()
            # Printers write no line breaks inside a field, so an error in the last line means that the text was cut.
            if offset and "\n" not in rest:
                raise BadInputError(
                    f"{source} ends at {rest[:40]!r}: it is truncated; copy the whole file, or dump it again"
                )
            line = text.count("\n", 0, offset) + 1
            raise BadInputError(
                f"{source} is protobuf text only up to line {line}, {rest.splitlines()[0][:40]!r}; "
                "give a graph dump of TorchAir or GE"
            )
    if enclosing:
        raise BadInputError(f"{source} ends inside a message: it is truncated; copy the whole file, or dump it again")
    return root


def string(value: str) -> str:
    """Return a scalar without its quotes and escapes; a number or word unchanged."""
    if value[:1] not in ("'", '"'):
        return value
    return _ESCAPE.sub(_unescape, value[1:-1].encode()).decode("utf-8", "replace") if "\\" in value else value[1:-1]


def _unescape(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, other = match.groups()
    if other is None:
        return bytes([int(octal, 8) & 0xFF if octal else int(hexadecimal, 16)])
    return _CONTROL.get(other, other)


def scalar(message: Message, name: str) -> str:
    """Return the first value of a field as text, ``""`` if the message does not have the field."""
    values = message.get(name)
    return string(values[0]) if values and isinstance(values[0], str) else ""


def messages(message: Message, name: str) -> Iterator[Message]:
    """Return the messages in a repeated field."""
    return (value for value in message.get(name, ()) if isinstance(value, dict))


MAX_BYTES = 1 << 30
"""Limit of a dump: constants in it can be large."""
MAX_TENSORS = 10_000
"""Inputs or outputs of one operator."""

# GE deletes these or gives them no task: ge_local_engine's no_op.cc and ge_deleted_op.cc in hicann/ge.
NO_TASK_TYPES = frozenset({
    "Data", "RefData", "Variable", "Const", "Constant", "ConstPlaceHolder", "FileConstant", "UnfedData", "NetOutput",
    "NoOp", "ControlTrigger", "Reshape", "ReFormat", "Bitcast", "Flatten", "FlattenV2", "ExpandDims", "Squeeze",
    "SqueezeV2", "SqueezeV3", "Unsqueeze", "UnsqueezeV2", "UnsqueezeV3", "Identity", "IdentityN", "Empty", "Shape",
    "ShapeN", "Size", "Rank", "PhonyConcat", "PhonySplit", "Send", "Recv", "SendNotify", "RecvNotify", "SendMem",
    "RecvMem", "PlaceHolder", "End",
})  # fmt: skip
_CONSTANT_TYPES = frozenset({"Const", "Constant", "ConstPlaceHolder", "FileConstant"})
_ELEMENTWISE = frozenset({
    "Add", "Cast", "Div", "Exp", "Maximum", "Minimum", "Mul", "Muls", "Neg", "Pow", "RealDiv", "Rsqrt", "Sigmoid",
    "Sqrt", "Sub", "Swish",
})  # fmt: skip

_DTYPES = {"FLOAT": "float32", "DOUBLE": "float64", "BF16": "bfloat16", "UNDEFINED": ""}
# Values of ge::DataType, which attributes such as Cast's dst_type carry.
_DTYPE_CODES = {
    "0": "float32", "1": "float16", "2": "int8", "3": "int32", "4": "uint8", "6": "int16", "9": "int64",
    "11": "float64", "12": "bool", "27": "bfloat16",
}  # fmt: skip

_META = re.compile(r"Tensor\(dtype=torch\.(\w+), shape=torch\.Size\(\[([\d, ]*)\]\)")

_ATTRIBUTES = frozenset({
    "_super_kernel_scope", "_super_kernel_options", "_user_stream_label", "stream_id", "sk_parent_node_name",
    "dst_type",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and element type of a tensor; ``None`` and ``""`` if they are not in the dump."""

    shape: tuple[int, ...] | None
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class GeOperator:
    """One operator of a GE graph.

    ``inputs`` are ``producer:output index``, data edges only, aligned with ``input_specs``. ``stream`` is the label of
    ``npu_stream_switch`` before GE, and GE's stream number after it. ``superkernel`` names the SuperKernel that holds
    the operator, in dumps made after fusion. ``controls`` are the names of operators that it waits for without taking
    their output.
    """

    name: str
    type: str
    inputs: tuple[str, ...] = ()
    input_specs: tuple[TensorSpec, ...] = ()
    output_specs: tuple[TensorSpec, ...] = ()
    scope: str = ""
    options: str = ""
    stream: str = ""
    superkernel: str = ""
    controls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GeGraph:
    """Operators in the order of the dump, which is topological."""

    name: str
    operators: tuple[GeOperator, ...]

    @property
    def device_tasks(self) -> tuple[GeOperator, ...]:
        """The operators that become a task on the device.

        Left out: ``NO_TASK_TYPES``, and what depends only on constants, which GE folds when it compiles.
        """
        constant = set[str]()
        tasks = []
        for operator in self.operators:
            producers = [name.rpartition(":")[0] for name in operator.inputs]
            if operator.type in _CONSTANT_TYPES or (producers and constant.issuperset(producers)):
                constant.add(operator.name)
            elif operator.type not in NO_TASK_TYPES:
                tasks.append(operator)
        return tuple(tasks)

    @property
    def crossings(self) -> tuple[tuple[int, ...], ...]:
        """For each device task, all of other streams that it comes after by their edges, also through views."""
        tasks = self.device_tasks
        place = {task.name: index for index, task in enumerate(tasks)}
        needs: dict[str, set[int]] = {}
        for operator in self.operators:
            producers = [*(name.rpartition(":")[0] for name in operator.inputs), *operator.controls]
            found = [{place[name]} if name in place else needs.get(name, set()) for name in producers]
            needs[operator.name] = set().union(*found)
        return tuple(
            tuple(index for index in sorted(needs[task.name]) if tasks[index].stream != task.stream) for task in tasks
        )

    @property
    def views_before(self) -> tuple[bool, ...]:
        """For each device task, whether a view lies between it and the task before; GE may leave views on a stream."""
        tasks = {task.name for task in self.device_tasks}
        found, has_view = [], False
        for operator in self.operators:
            if operator.name in tasks:
                found.append(has_view)
                has_view = False
            elif operator.type in NO_TASK_TYPES and operator.inputs and operator.type != "NetOutput":
                has_view = True
        return tuple(found)

    @property
    def waits(self) -> tuple[tuple[int, ...], ...]:
        """For each device task, the last one of each other stream out of ``crossings``.

        A stand-in for GE's allocation of streams, which is not restated: it waits with an event for each of these.
        """
        tasks = self.device_tasks
        last = [{tasks[index].stream: index for index in crossing} for crossing in self.crossings]
        return tuple(tuple(sorted(each.values())) for each in last)

    def by_scope(self) -> dict[str, tuple[GeOperator, ...]]:
        """Return the device tasks of each scope, by its label, in order of first appearance."""
        scopes: dict[str, list[GeOperator]] = {}
        for operator in self.device_tasks:
            if operator.scope:
                scopes.setdefault(operator.scope, []).append(operator)
        return {label: tuple(operators) for label, operators in scopes.items()}


def read_ge_graph(path_or_text: Path | str) -> GeGraph:
    """Read a dump: a ``Path``, or the text itself.

    Raises:
        BadInputError: the file cannot be read, is truncated, or is not a graph; TorchAir's ``py`` dumps have no scopes.
    """
    source, text = "the graph dump", path_or_text
    if isinstance(path_or_text, Path):
        source = path_or_text.name
        text = read_bytes(path_or_text, BadInputError, "give a graph dump", MAX_BYTES).decode("utf-8", "replace")
    assert isinstance(text, str)
    if text.startswith("# -*- coding") or "get_default_ge_graph" in text[:1000]:
        raise BadInputError(f"{source} is a dump of type py, which has no scopes; dump with graph_dump.type = 'txt'")
    root = parse_message(text, source)
    graphs = list(messages(root, "graph")) or [root]
    operators = [operator for graph in graphs for operator in _operators(graph)]
    if not operators:
        raise BadInputError(f"{source} has no operators; give a graph dump of TorchAir (txt, pbtxt) or of GE")
    # Where no brace closes the graph, its outputs show that the file is not cut between two operators. Within braces
    # they may be missing: GE's partitions (``*_new_sub_graph<N>_*``) end with an End for each output.
    if "graph" not in root and not any(operator.type == "NetOutput" for operator in operators):
        raise BadInputError(f"{source} has no NetOutput: it is truncated; copy the whole file, or dump it again")
    return GeGraph(scalar(graphs[0], "name") or source, tuple(_with_specs(operators)))


def _operators(graph: Message) -> Iterable[GeOperator]:
    for op in messages(graph, "op"):
        yield _ge_operator(op)
        # After GE has compiled, a SuperKernel has its own graph in an attribute.
        for attribute in messages(op, "attr"):
            for value in messages(attribute, "value"):
                for inner in messages(value, "g"):
                    yield from (replace(each, superkernel=scalar(op, "name")) for each in _operators(inner))
    for node in messages(graph, "node"):
        yield _onnx_operator(node) if "op_type" in node else _pbtxt_operator(node)


def _ge_operator(op: Message) -> GeOperator:
    attributes = {}
    for attribute in messages(op, "attr"):
        value = next(messages(attribute, "value"), {})
        attributes[scalar(attribute, "key")] = scalar(value, "s") or scalar(value, "i")
    if "stream_id" in op:
        attributes["stream_id"] = scalar(op, "stream_id")
    input_specs = [_spec(desc) for desc in messages(op, "input_desc")]
    output_specs = [_spec(desc) for desc in messages(op, "output_desc")]
    return _operator(op, scalar(op, "type"), input_specs, output_specs, attributes)


def _pbtxt_operator(node: Message) -> GeOperator:
    """Read TorchAir's ``pbtxt``: each attribute and descriptor is protobuf text inside a string."""
    specs: dict[str, list[TensorSpec]] = {"[i]": [], "[o]": []}
    attributes = {}
    for attribute in messages(node, "attr"):
        key = scalar(attribute, "key")
        if key[:3] in specs or key in _ATTRIBUTES:
            value = parse_message(scalar(next(messages(attribute, "value"), {}), "s"), key)
            if key in _ATTRIBUTES:
                attributes[key] = scalar(value, "s") or scalar(value, "i")
            else:
                specs[key[:3]].append(_spec(value))
    return _operator(node, scalar(node, "op"), specs["[i]"], specs["[o]"], attributes)


def _onnx_operator(node: Message) -> GeOperator:
    """Read GE's ``ge_onnx_*.pbtxt``: descriptors are attributes ``input_desc_shape:0`` and so on."""
    attributes, shapes = {}, {}
    for attribute in messages(node, "attribute"):
        name = scalar(attribute, "name")
        attributes[name] = scalar(attribute, "s") or scalar(attribute, "i")
        shapes[name] = _dims(attribute.get("ints", ()))

    def specs(side: str) -> list[TensorSpec]:
        # The printer leaves out the shape of a scalar, as it does any empty list.
        return [
            TensorSpec(shapes.get(f"{side}_desc_shape:{i}", ()), _dtype(attributes.get(f"{side}_desc_dtype:{i}", "")))
            for i in range(min(_number(attributes.get(f"{side}_desc_nums") or 0), MAX_TENSORS))
        ]

    return _operator(node, scalar(node, "op_type").removeprefix("ge:"), specs("input"), specs("output"), attributes)


def _operator(
    message: Message,
    kind: str,
    input_specs: list[TensorSpec],
    output_specs: list[TensorSpec],
    attributes: Mapping[str, str],
) -> GeOperator:
    names = [string(value) for value in message.get("input", ()) if isinstance(value, str)]
    # "^a" and "a:-1" are control edges, which come after the data edges; "" is an optional input that is not connected.
    controls = [name for name in names if name.startswith("^") or name.endswith(":-1")]
    names = [name for name in names if name not in controls]
    edges = [(name, spec) for name, spec in zip_longest(names, input_specs, fillvalue=None) if name]
    if kind == "Cast" and output_specs and not output_specs[0].dtype:
        output_specs[0] = replace(output_specs[0], dtype=_DTYPE_CODES.get(attributes.get("dst_type", ""), ""))
    return GeOperator(
        name=scalar(message, "name"),
        type=kind,
        inputs=tuple(name for name, _ in edges),
        input_specs=tuple(spec or TensorSpec(None) for _, spec in edges),
        output_specs=tuple(output_specs),
        scope=attributes.get("_super_kernel_scope", ""),
        options=attributes.get("_super_kernel_options", ""),
        stream=attributes.get("_user_stream_label") or attributes.get("stream_id", ""),
        superkernel=attributes.get("sk_parent_node_name", ""),
        controls=tuple(name.removeprefix("^").removesuffix(":-1") for name in controls),
    )


def _spec(desc: Message) -> TensorSpec:
    dtype = _dtype(scalar(desc, "dtype"))
    for shape in messages(desc, "shape"):
        return TensorSpec(_dims(shape.get("dim", ())), dtype)
    for attribute in messages(desc, "attr"):
        if scalar(attribute, "key") == "_meta":
            meta = _META.match(scalar(next(messages(attribute, "value"), {}), "s"))
            return TensorSpec(_dims(re.findall(r"\d+", meta[2])), dtype or meta[1]) if meta else TensorSpec(None, dtype)
    return TensorSpec(None, dtype)


def _dtype(name: str) -> str:
    name = name.removeprefix("DT_")
    return _DTYPES.get(name, name.lower())


def _dims(values: Iterable[object]) -> tuple[int, ...] | None:
    dims = tuple(map(_number, values))
    return dims if all(dim >= 0 for dim in dims) else None  # GE writes an unknown dimension as -1 or -2


def _number(value: object) -> int:
    try:
        return int(str(value))
    except ValueError as error:
        raise BadInputError(
            f"the graph dump has {value!r} where a number is expected: it is damaged; dump it again"
        ) from error


def _with_specs(operators: Iterable[GeOperator]) -> Iterator[GeOperator]:
    """Infer missing specs from the producers.

    TorchAir describes the tensors of the captured graph, not those between the GE operators that implement one ATen
    operator, such as a product before the cast that ends an addition in float32.
    """
    known: dict[str, TensorSpec] = {}
    for operator in operators:
        inputs = tuple(
            known.get(name, spec) if spec.shape is None else spec
            for name, spec in zip(operator.inputs, operator.input_specs, strict=True)
        )
        outputs = operator.output_specs
        if len(outputs) == 1 and outputs[0].shape is None and operator.type in _ELEMENTWISE and inputs:
            dims: list[int] = []
            for spec in inputs:  # as they are broadcast
                dims = [max(pair) for pair in zip_longest(reversed(spec.shape or ()), dims, fillvalue=1)]
            is_known = all(spec.shape is not None for spec in inputs)
            dtype = outputs[0].dtype or inputs[0].dtype
            outputs = (TensorSpec(tuple(reversed(dims)) if is_known else None, dtype),)
        known.update({f"{operator.name}:{i}": spec for i, spec in enumerate(outputs)})
        yield replace(operator, input_specs=inputs, output_specs=outputs)
