"""The switch in a recipe's YAML: found wherever that repository keeps it, and turned on without touching the rest."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from sktune.core.errors import BadInputError

FLAG = "enable_superkernel"
"""The switch's name, in YAML and in the models' code."""
MODE, NEEDED_MODE = "exe_mode", "ge_graph"
PARENTS = ("custom_params", "model_config")
"""Where the switch belongs if it is nowhere yet, the best place first."""


def turn_on(text: str, path: Path) -> str:
    """Return the YAML ``text`` with scopes switched on; comments, order and form stay.

    Args:
        text: of the file.
        path: its name, for messages.

    Raises:
        BadInputError: no YAML, no place for the switch, or a mode that knows no scopes; one line with the mend.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as failure:
        raise BadInputError(f"{path} is no YAML: {str(failure).partition(chr(10))[0]}; mend it first") from failure
    pairs = list(_pairs(root))
    for key, value in pairs:
        if key.value == MODE and value.value != NEEDED_MODE:
            raise BadInputError(
                f"{path}:{key.start_mark.line + 1}: {MODE} is {value.value!r}, where scopes do nothing; "
                f"set it to {NEEDED_MODE}"
            )
    for key, value in pairs:
        if key.value == FLAG and isinstance(value, yaml.ScalarNode):
            if yaml.safe_load(value.value) is True:
                return text
            return text[: value.start_mark.index] + "True" + text[value.end_mark.index :]
    for parent in PARENTS:
        for key, value in pairs:
            if key.value == parent and isinstance(value, yaml.MappingNode) and value.value:
                return _inserted(text, value)
    raise BadInputError(f"{path} has no {' and no '.join(PARENTS)}, so {FLAG} has no place; add {FLAG}: True yourself")


def has_flag(text: str) -> bool:
    """Return whether a YAML text names the switch, or the settings that it belongs to."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
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
