"""The switches in a recipe's YAML that enable scopes: found at any depth, and turned on without touching the rest."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeGuard

import yaml

from sktune.core.errors import BadInputError
from sktune.core.plain_data import compose_yaml
from sktune.source.values import SETTINGS, Reading
from sktune.targets.recipe import FLAG

MODE, NEEDED_MODE = "exe_mode", "ge_graph"
CAPTURED_MODE = "npugraph_ex"
STATIC_KERNELS = "enable_static_kernel"
"""The switch of static kernels, which SuperKernels need in the captured mode; off unless set."""
PARENTS = ("custom_params", "model_config")
"""Settings that a recipe's YAML has where it has, or may have, the flag."""

Keys = tuple[str, ...]


def turn_on(text: str, path: Path, readings: Sequence[Reading | None]) -> str:
    """Return the YAML ``text`` with scopes enabled; comments, order and formatting are kept.

    Args:
        text: of the file.
        path: its name, for messages.
        readings: where the program reads the flag; None where that cannot be seen.

    Raises:
        BadInputError: not YAML, or no place for the flag; one line with the fix.
    """
    for reading in readings:
        root = compose_yaml(text, str(path), BadInputError)
        keys = _keys(root, reading, path)
        text = _set(text, root, keys, path)
    return text


def turn_on_static_kernels(text: str, path: Path) -> str:
    """Return the YAML ``text`` with static kernels.

    Raises:
        BadInputError: not YAML, or no place for the switch; one line with the fix.
    """
    root = compose_yaml(text, str(path), BadInputError)
    return _set(text, root, static_kernels([keys for keys, _ in _walk(root)]), path)


def static_kernels(paths: Sequence[Keys]) -> Keys:
    """Return where the switch of static kernels is in settings with these paths, or belongs: the recipes' programs
    read it from ``model_config``.
    """
    found = next((keys for keys in paths if keys[-1] == STATIC_KERNELS), None)
    home = next((keys[: keys.index("model_config") + 1] for keys in paths if "model_config" in keys), None)
    beside = next((keys[:-1] for keys in paths if keys[-1] == MODE), ())
    return found or (*(beside if home is None else home), STATIC_KERNELS)


def mode_of(text: str, path: Path) -> str:
    """Return the mode in a YAML text; empty if it names none.

    Raises:
        BadInputError: not YAML.
    """
    nodes = _walk(compose_yaml(text, str(path), BadInputError))
    return next((str(node.value) for keys, node in nodes if keys[-1] == MODE), "")


def check_mode(text: str, path: Path, needed: str = NEEDED_MODE) -> None:
    """Refuse a YAML with another mode than the plan's.

    Raises:
        BadInputError: not YAML, or another mode; one line with the fix.
    """
    for keys, node in _walk(compose_yaml(text, str(path), BadInputError)):
        if keys[-1] == MODE and node.value != needed:
            raise BadInputError(
                f"{path}:{node.start_mark.line + 1}: {MODE} is {node.value!r}, but the plan's scopes are for {needed}; "
                f"set it to {needed}"
            )


def _keys(root: yaml.Node | None, reading: Reading | None, path: Path) -> Keys:
    """Return where the program reads the flag in the YAML."""
    if reading and reading.root in SETTINGS:
        return reading.keys
    nodes = dict(_walk(root))
    if reading:
        parents = [keys for keys, node in nodes.items() if keys[-1] == reading.root and _is_mapping(node)]
        if len(parents) == 1:
            return (*parents[0], *reading.keys)
    places = [keys for keys in nodes if keys[-1] == FLAG]
    if len(places) != 1:
        found = f"{len(places)} places" if places else "no place"
        raise BadInputError(
            f"{path} has {FLAG} in {found}, and the source does not show where the program reads it; "
            f"add {FLAG} where the program reads it, and only there"
        )
    return places[0]


def _set(text: str, root: yaml.Node | None, keys: Keys, path: Path) -> str:
    """Return the text with the value at ``keys`` set, and no other."""
    edited = _edited(text, root, keys, path)
    before, after = _scalars(root), dict[Keys, str]()
    with suppress(BadInputError):  # not YAML any more
        after = _scalars(compose_yaml(edited, str(path), BadInputError))
    changed = [each for each in before.keys() | after.keys() if before.get(each) != after.get(each)]
    if not _is_on(after.get(keys, "")) or any(keys[: len(each)] != each for each in changed):
        raise BadInputError(
            f"{path}: {'.'.join(keys)} cannot be set without changing more; set it to True there by hand"
        )
    return edited


def _scalars(root: yaml.Node | None) -> dict[Keys, str]:
    return {keys: str(node.value) for keys, node in _walk(root) if isinstance(node, yaml.ScalarNode)}


def _is_on(value: str) -> bool:
    return yaml.SafeLoader.bool_values.get(value.lower()) is True


def _edited(text: str, root: yaml.Node | None, keys: Keys, path: Path) -> str:
    """Return the text with the value at ``keys`` set, and the mappings on the way added if they are missing."""
    node, column = root, 0
    for depth, key in enumerate(keys):
        if not _is_mapping(node):
            if isinstance(node, yaml.ScalarNode) and node.value == "" and depth:  # custom_params without a value
                inside = _lines(keys[depth:], column + 2)
                return text[: node.start_mark.index] + inside + text[node.end_mark.index :]
            raise BadInputError(
                f"{path} has no mapping {'.'.join(keys[:depth]) or 'of settings'} to hold {FLAG}; add one"
            )
        found = next(((each, value) for each, value in node.value if each.value == key), None)
        if found is None:
            return _added(text, node, keys[depth:])
        column, node = found[0].start_mark.column, found[1]
    if not isinstance(node, yaml.ScalarNode):
        raise BadInputError(f"{path}: {'.'.join(keys)} is not a single value; set it to True or False")
    if _is_on(node.value):
        return text
    return text[: node.start_mark.index] + "True" + text[node.end_mark.index :]


def _added(text: str, mapping: yaml.MappingNode, keys: Keys) -> str:
    """Return the text with a new last entry of ``mapping``, or the first if others are of the same depth."""
    if mapping.flow_style:
        chain = "".join(f"{key}: {{" for key in keys[:-1]) + f"{keys[-1]}: True" + "}" * (len(keys) - 1)
        at = mapping.start_mark.index + 1
        return f"{text[:at]}{chain}{', ' if mapping.value else ''}{text[at:]}"
    first = mapping.value[0][0].start_mark
    if len(keys) == 1:
        return f"{text[: first.index]}{keys[0]}: True\n{' ' * first.column}{text[first.index :]}"
    lines = text.splitlines(keepends=True)
    after = _last_line(mapping)
    end = "" if lines[after].endswith("\n") else "\n"
    new = end + _lines(keys, first.column).lstrip("\n") + ("" if end else "\n")
    return "".join([*lines[: after + 1], new, *lines[after + 1 :]])


def _lines(keys: Keys, column: int) -> str:
    """Return nested keys as lines of block style, each after a line end."""
    lines = [f"\n{' ' * (column + 2 * depth)}{key}:" for depth, key in enumerate(keys)]
    return "".join(lines) + " True"


def _last_line(node: yaml.Node) -> int:
    """Return the number of the last line of a node's values, from 0."""
    if isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _last_line(last[1] if isinstance(last, tuple) else last)
    mark = node.end_mark
    return int(mark.line - 1 if mark.column == 0 and mark.line > node.start_mark.line else mark.line)


def has_flag(text: str) -> bool:
    """Return whether a YAML text has the flag, or the settings that it belongs to."""
    try:
        root = compose_yaml(text, "", BadInputError)
    except BadInputError:
        return False
    return any(keys[-1] in (FLAG, *PARENTS) for keys, _ in _walk(root))


def _is_mapping(node: yaml.Node | None) -> TypeGuard[yaml.MappingNode]:
    return isinstance(node, yaml.MappingNode)


def _walk(node: yaml.Node | None, above: Keys = ()) -> Iterator[tuple[Keys, yaml.Node]]:
    """Yield all values of nested mappings with their keys."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            keys = (*above, str(key.value))
            yield keys, value
            yield from _walk(value, keys)
