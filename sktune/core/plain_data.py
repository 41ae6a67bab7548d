"""YAML and JSON that anyone may have written: plain values only, limited in size, depth and time."""

import json
import math
import re
from typing import Any

import yaml
from yaml.composer import ComposerError

from sktune.core.errors import BadInputError

MAX_CHARACTERS = 4 << 20
MAX_DEPTH = 64
MAX_VALUES = 100_000
"""Values of a document in which every alias is replaced by what it stands for."""
MAX_NUMBER_CHARACTERS = 64
"""Longer numbers are no settings, and converting them takes time that grows with the square of their length."""
MAX_JSON_CHARACTERS = 16 << 20

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Halves of characters, which no file can be written with; JSON and YAML allow them as escapes."""


class _Loader(yaml.SafeLoader):
    """A safe loader that gives up on documents beyond the limits, before it makes values of them."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._values = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        is_alias = self.check_event(yaml.AliasEvent)
        before = self._values
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ComposerError(None, None, f"more than {MAX_DEPTH} levels", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._sizes:
            raise ComposerError(None, None, "an alias for a value that contains it", mark)
        self._values += self._sizes[id(node)] if is_alias else 1
        self._sizes[id(node)] = self._values - before
        if self._values > MAX_VALUES:
            raise ComposerError(None, None, f"more than {MAX_VALUES:,} values", mark)
        if isinstance(node, yaml.ScalarNode):
            _check_scalar(node)
        return node


def _check_scalar(node: yaml.ScalarNode) -> None:
    if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER_CHARACTERS:
        raise ComposerError(None, None, f"a number of {len(node.value)} characters", node.start_mark)
    if found := _CONTROL.search(node.value):
        raise ComposerError(None, None, f"the control character {found[0]!r} in text", node.start_mark)


def compose_yaml(text: str, source: str, error: type[BadInputError]) -> yaml.Node | None:
    """Return the node of the YAML document ``text``, None if it is empty; ``source`` names it in messages.

    Raises:
        BadInputError: of class ``error``: not one document of YAML, or beyond the limits; one line with file and line.
    """
    if len(text) > MAX_CHARACTERS:
        raise error(f"{source}: more than {MAX_CHARACTERS >> 20} million characters of YAML; give the right file")
    try:
        return _Loader(text).get_single_node()
    except yaml.YAMLError as failure:
        raise error(_yaml_message(failure, source)) from failure


def yaml_values(node: yaml.Node | None, source: str, error: type[BadInputError]) -> Any:
    """Return the plain values of a composed document, in which merge keys are resolved from then on.

    Raises:
        BadInputError: of class ``error``: a value is not what its tag says.
    """
    try:
        return None if node is None else yaml.SafeLoader("").construct_document(node)
    except yaml.YAMLError as failure:
        raise error(_yaml_message(failure, source)) from failure
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as failure:
        # PyYAML lets these through for values such as 2001-13-45 or `!!int x`.
        raise error(f"{source}: a value cannot be read ({failure}); fix it, or write it in quotes") from failure


def load_yaml(text: str, source: str, error: type[BadInputError]) -> Any:
    """Return the plain values of a YAML document; raises as ``compose_yaml`` and ``yaml_values`` do."""
    return yaml_values(compose_yaml(text, source, error), source, error)


def _yaml_message(failure: yaml.YAMLError, source: str) -> str:
    mark = getattr(failure, "problem_mark", None)
    line = f":{mark.line + 1}" if mark else ""
    problem = " ".join((getattr(failure, "problem", None) or "malformed").split())[:200]
    return f"{source}{line}: this is not YAML ({problem}); fix the line"


def load_json(text: str | bytes, source: str, error: type[BadInputError], fix: str) -> Any:
    """Return the plain values of a JSON document.

    Raises:
        BadInputError: of class ``error``: not JSON, or beyond the limits; one line that ends with ``fix``.
    """
    if len(text) > MAX_JSON_CHARACTERS:
        raise error(f"{source} has more than {MAX_JSON_CHARACTERS >> 20} million characters of JSON; {fix}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as failure:
        reason = "it is nested too deeply" if isinstance(failure, RecursionError) else str(failure)
        raise error(f"{source} is not JSON ({reason}); {fix}") from failure
    if problem := _json_problem(value):
        raise error(f"{source} is not JSON ({problem}); {fix}")
    return value


def _json_problem(value: Any) -> str:
    level = [value]
    for _ in range(MAX_DEPTH):
        if any(_SURROGATE.search(text) for text in level if isinstance(text, str)):
            return "it has half characters in its text"
        inner = [item for each in level if isinstance(each, dict) for pair in each.items() for item in pair]
        level = inner + [item for each in level if isinstance(each, list) for item in each]
        if not level:
            return ""
    return f"it has more than {MAX_DEPTH} levels"


def finite(value: Any) -> Any:
    """Return a value of which JSON knows all numbers: infinite and NaN ones become null, and text if they are keys."""
    if isinstance(value, dict):
        return {str(key) if finite(key) is None else key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
