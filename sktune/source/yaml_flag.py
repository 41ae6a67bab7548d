"""The flag in a recipe's YAML that enables scopes: found at any depth, and turned on without touching the rest."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from sktune.core.errors import BadInputError
from sktune.core.plain_data import compose_yaml

FLAG = "enable_superkernel"
"""The flag's name, in YAML and in the models' code."""
MODE, NEEDED_MODE = "exe_mode", "ge_graph"
PARENTS = ("custom_params", "model_config")
"""Where to add the flag if it is missing, in order of preference."""


def turn_on(text: str, path: Path) -> str:
    """Return the YAML ``text`` with scopes enabled; comments, order and formatting are kept.

    Args:
        text: of the file.
        path: its name, for messages.

    Raises:
        BadInputError: not YAML, no place for the flag, or a mode without scopes; one line with the fix.
    """
    pairs = list(_pairs(compose_yaml(text, str(path), BadInputError)))
    for key, value in pairs:
        if key.value == MODE and value.value != NEEDED_MODE:
            raise BadInputError(
                f"{path}:{key.start_mark.line + 1}: {MODE} is {value.value!r}, in which scopes have no effect; "
                f"set it to {NEEDED_MODE}"
            )
    for key, value in pairs:
        if key.value == FLAG and isinstance(value, yaml.ScalarNode):
            if yaml.SafeLoader.bool_values.get(value.value.lower()) is True:
                return text
            return text[: value.start_mark.index] + "True" + text[value.end_mark.index :]
    for parent in PARENTS:
        for key, value in pairs:
            if key.value == parent and isinstance(value, yaml.MappingNode) and value.value:
                return _inserted(text, value)
    raise BadInputError(f"{path} has no {' and no '.join(PARENTS)} to hold {FLAG}; add {FLAG}: True yourself")


def has_flag(text: str) -> bool:
    """Return whether a YAML text has the flag, or the settings that it belongs to."""
    try:
        root = compose_yaml(text, "", BadInputError)
    except BadInputError:
        return False
    return any(key.value in (FLAG, *PARENTS) for key, _ in _pairs(root))


def _pairs(node: yaml.Node | None) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key, value
            yield from _pairs(value)


def _inserted(text: str, mapping: yaml.MappingNode) -> str:
    first = mapping.value[0][0].start_mark
    if mapping.flow_style:
        return f"{text[: first.index]}{FLAG}: True, {text[first.index :]}"
    return f"{text[: first.index]}{FLAG}: True\n{' ' * first.column}{text[first.index :]}"
