"""The model's own configuration: its ``config.json``, the YAML, or the defaults that the folder's code gives it."""

import ast
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libcst as cst
import libcst.matchers as m

from sktune.core.errors import BadInputError
from sktune.core.plan_file import MAX_LAYERS
from sktune.source.classes import SourceClass, classes_of, code_of, last_name, parsed

FILE = "config.json"
MAX_CHARACTERS = 1 << 20
COUNTS = ("num_hidden_layers", "num_layers")
"""The configurations' names of the number of decoder layers; the first is the one that models read."""


@dataclass(frozen=True, slots=True)
class OwnConfiguration:
    """What the model's configuration says.

    Attributes:
        values: by name; empty if nothing was found.
        source: where they are from, for messages.
        of_yaml: those that the YAML sets.
        is_default: whether the others are defaults, which the ``config.json`` of the weights may change.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    of_yaml: Mapping[str, Any] = field(default_factory=dict)
    is_default: bool = False

    @property
    def certain(self) -> Mapping[str, Any]:
        """The values that hold whatever the weights say."""
        return self.of_yaml if self.is_default else self.values

    @property
    def n_layers(self) -> int | None:
        """The number of decoder layers, if known.

        Raises:
            BadInputError: it is more than any model has.
        """
        count = next((self.values[name] for name in COUNTS if name in self.values), None)
        if not isinstance(count, int) or count <= 0:
            return None
        if count > MAX_LAYERS:
            raise BadInputError(
                f"{self.source}: more than {MAX_LAYERS} decoder layers ({COUNTS[0]}); correct their number"
            )
        return count


def own_configuration(
    folder: Path, source: str, settings: Mapping[str, Any], read: Callable[[Path], str]
) -> OwnConfiguration:
    """Return the configuration of the model in ``folder``.

    Args:
        folder: with ``config.json`` or ``configuration_*.py``, at any depth.
        source: text of the file with the model's classes: which configuration it imports decides.
        settings: the YAML, whose ``model_path`` names the folder of the weights.
        read: returns a file's text.

    Raises:
        BadInputError: a ``config.json`` is there, but cannot be read.
    """
    of_yaml = _from_yaml(folder, settings, read)
    named = [value for key, value in _pairs(settings) if key == "model_path" and isinstance(value, str) and value]
    for path in (*(folder / value / FILE for value in named), folder / FILE):  # an absolute path replaces the folder
        if path.is_file():
            values = _parsed(read(path), path)
            inner = values.get("text_config")
            of_file = _with_count({**values, **inner} if isinstance(inner, dict) else values)
            return OwnConfiguration({**of_file, **of_yaml}, str(path), of_yaml)
    for key, value in _pairs(settings):
        if key in COUNTS and isinstance(value, int):
            return OwnConfiguration({**of_yaml, COUNTS[0]: value}, f"{key} in the YAML", of_yaml)
    for path in sorted(folder.rglob("configuration_*.py")):
        if defaults := _defaults(read(path), source):
            values = {**_with_count(defaults), **of_yaml}
            return OwnConfiguration(values, f"the defaults in {path.name}", of_yaml, is_default=True)
    return OwnConfiguration(of_yaml, of_yaml=of_yaml)


def _pairs(node: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield key, value
            yield from _pairs(value)


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        values = json.loads(text) if len(text) <= MAX_CHARACTERS else None
    except (ValueError, RecursionError) as failure:
        raise BadInputError(f"{path} is not JSON ({failure}); repair it, or remove it") from failure
    if not isinstance(values, dict):
        raise BadInputError(f"{path} is no configuration of a model; repair it, or remove it")
    return values


def _with_count(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the number of layers under the name that models read."""
    count = next((values[name] for name in COUNTS if name in values), None)
    return {**values, COUNTS[0]: count} if count is not None else dict(values)


def _defaults(text: str, source: str) -> dict[str, Any]:
    """Return the defaults of the configuration class that ``source`` imports; empty if that is not one."""
    try:
        classes = classes_of(parsed(text))
    except cst.ParserSyntaxError:
        return {}
    lines = [line for line in parsed(source).body if isinstance(line, cst.SimpleStatementLine)]
    imports = [each for line in lines for each in line.body if isinstance(each, cst.ImportFrom)]
    names = [alias for each in imports if not isinstance(each.names, cst.ImportStar) for alias in each.names]
    imported = {last_name(alias.name) for alias in names}
    found = [defaults for name, each in classes.items() if name in imported and (defaults := _of_class(each))]
    counts = {_with_count(defaults)[COUNTS[0]] for defaults in found}
    return found[0] if len(counts) == 1 else {}


def _from_yaml(folder: Path, settings: Mapping[str, Any], read: Callable[[Path], str]) -> dict[str, Any]:
    """Return what the folder's configuration classes take from the YAML: ``values["a"] = custom_params["a"]``."""
    parts = {key: value for key, value in _pairs(settings) if isinstance(value, Mapping)}
    key = m.Subscript(value=m.Name(), slice=[m.SubscriptElement(m.Index(m.SimpleString()))])
    copied = m.Assign(targets=[m.AssignTarget(key)], value=key)
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("configuration_*.py")):
        try:
            copies = m.findall(parsed(read(path)), copied)
        except cst.ParserSyntaxError:
            continue
        for node in copies:
            assert isinstance(node, cst.Assign)
            name, (part, read_name) = _subscript(node.targets[0].target)[1], _subscript(node.value)
            if name == read_name and name in parts.get(part, {}):
                found[name] = parts[part][name]
    return found


def _subscript(node: cst.BaseExpression) -> tuple[str, str]:
    """Return ``a`` and ``b`` of ``a["b"]``."""
    index = cst.ensure_type(cst.ensure_type(node, cst.Subscript).slice[0].slice, cst.Index)
    text = cst.ensure_type(index.value, cst.SimpleString).evaluated_value
    return last_name(cst.ensure_type(node, cst.Subscript).value), str(text)


def _of_class(owner: SourceClass) -> dict[str, Any]:
    """Return the literal defaults of ``__init__``, if the number of layers is among them."""
    init = owner.methods.get("__init__")
    defaults: dict[str, Any] = {}
    for parameter in (*init.params.params, *init.params.kwonly_params) if init else ():
        if parameter.default is not None:
            try:
                defaults[parameter.name.value] = ast.literal_eval(code_of(parameter.default))
            except (ValueError, SyntaxError):
                continue
    return defaults if any(isinstance(defaults.get(name), int) for name in COUNTS) else {}
