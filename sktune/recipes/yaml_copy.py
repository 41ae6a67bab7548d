"""The copy of the program's YAML that the command reads during a run, next to the original."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from sktune.core.errors import TargetError
from sktune.core.files import read_text, source_text, write_text
from sktune.core.plain_data import load_yaml
from sktune.targets.recipe import COPY_SUFFIX, FLAG, YamlFile

COPY_HEAD = "# Written by sktune for one run, and deleted after it.\n"
"""Distinguishes a copy that a killed search left behind from a file of the user's."""


def copy_paths(file: Path, group: Sequence[str]) -> list[Path]:
    """Return the path of each host's copy.

    Other groups of hosts have copies of other names in the same folder. Launch scripts name folders of logs after the
    YAML, so no two hosts write to the same one; and no name is contained in another one.

    Args:
        file: the original.
        group: names of the hosts; empty for one that has its folder for itself.
    """
    if not group:
        return [file.with_stem(file.stem + COPY_SUFFIX)]
    texts = [f"{number} {' '.join(group)}".encode() for number in range(len(group))]
    keys = [hashlib.blake2b(text, digest_size=4).hexdigest() for text in texts]
    return [file.with_stem(f"{file.stem}{COPY_SUFFIX}_{key}") for key in keys]


@contextmanager
def written_copies(program: YamlFile, copies: Sequence[Path]) -> Iterator[None]:
    """Write the copies, which exist until the context is left.

    Raises:
        TargetError: the YAML cannot be changed, or a copy would overwrite a file of the user's.
    """
    for copy in copies:
        if is_foreign(copy):
            raise TargetError(
                f"{copy} was not written by sktune, and the copy of {program.file.name} would overwrite it; rename it"
            )
    text = COPY_HEAD + varied_yaml(program.file, program.set)
    with ExitStack() as stack:
        for copy in copies:
            stack.callback(copy.unlink, missing_ok=True)
            write_text(copy, text)
        yield


def varied_yaml(file: Path, values: Mapping[str, Any]) -> str:
    """Return the text of a YAML file with the values at dotted paths replaced and the program's own scopes turned off.

    Raises:
        TargetError: the file is not a mapping, or a path leads through something else.
    """
    data = load_yaml(read_text(file, TargetError, "fix yaml.file"), str(file), TargetError)
    if not isinstance(data, dict):
        raise TargetError(f"{file} is not a mapping of keys; name the program's configuration in yaml.file")
    _turn_scopes_off(data)
    for path, value in values.items():
        inner = data
        *parents, last = path.split(".")
        for key in parents:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise TargetError(
                    f"yaml.set: {path} leads through {key}, which is not a mapping in {file.name}; fix the path"
                )
        inner[last] = value
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _turn_scopes_off(data: dict[str, Any]) -> None:
    for key, value in data.items():
        if key == FLAG:
            data[key] = False
        elif isinstance(value, dict):
            _turn_scopes_off(value)


def is_foreign(path: Path) -> bool:
    """Whether something is at the path of a copy, and is none that a killed search left behind."""
    if not os.path.lexists(path):
        return False
    return path.is_symlink() or not source_text(path).startswith(COPY_HEAD)
