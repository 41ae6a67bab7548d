"""Changes to the user's files: shown as a diff, written together, undone byte for byte."""

import difflib
import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from sktune.core import files
from sktune.core.documents import Document
from sktune.core.errors import BadInputError
from sktune.core.plain_data import load_json

RECORD = Path(".sktune") / "applied.json"
"""Record in the changed folder: the original text of each file, and the digest of the new one."""
VERSION = 1
MAX_NAME_BYTES, MAX_PATH = 255, 1024
"""Longest name of a file on Linux; characters of a longer path than any repository has."""
OUTSIDE = "give --to a folder that contains the file itself"


class _Entry(Document):
    before: str
    after_sha256: str
    held_sha256: str | None = None
    """Of the content while it is being replaced: an interrupted write leaves some files unchanged."""


class _Record(Document):
    version: Literal[1]
    files: dict[str, _Entry]


@dataclass(frozen=True, slots=True)
class Change:
    """One file, before and after."""

    path: Path
    before: str
    after: str


def unified_diff(changes: Sequence[Change], folder: Path) -> str:
    """Return the changes as a patch, with paths below ``folder``."""
    parts = []
    for change in changes:
        name = change.path.relative_to(folder).as_posix()
        # Lines end as git's do, not also at a form feed.
        before, after = (list(io.StringIO(text, newline="\n")) for text in (change.before, change.after))
        lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
        parts += [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return "".join(parts)


def originals(folder: Path) -> Mapping[Path, str]:
    """Return the files below ``folder`` that sktune changed, with their original text.

    Raises:
        BadInputError: one of them was edited since, or the record cannot be read.
    """
    texts = {}
    for name, entry in _read(folder).items():
        path = folder / name
        real = files.inside(folder, path, f"delete {folder / RECORD}")
        now = read_text(path) if real.is_file() else None
        # An interrupted write leaves some files unchanged: without a plan, or with the previous one.
        known = (_digest(entry.before), entry.after_sha256, entry.held_sha256)
        if now is None or _digest(now) not in known:
            raise BadInputError(
                f"{path} was edited after sktune changed it; revert your edit, "
                f"or delete {folder / RECORD} to keep the file"
            )
        texts[path] = entry.before
    return texts


def write(changes: Sequence[Change], folder: Path) -> None:
    """Write the files, and the record that ``undo`` needs to restore ``before``.

    Raises:
        BadInputError: a file cannot be written; what was written can be undone, or another plan applied. If links lead
            out of the folder, nothing is written.
    """
    real = {change.path: files.inside(folder, change.path, OUTSIDE) for change in changes}
    entries = {
        change.path.relative_to(folder).as_posix(): {"before": change.before, "after_sha256": _digest(change.after)}
        for change in changes
    }
    held = {name: {**entry, "held_sha256": _digest(read_text(folder / name))} for name, entry in entries.items()}
    # The record comes first: whatever happens from here on can be undone.
    _write_record(held, folder)
    for change in changes:
        _replace(real[change.path], change.after)
    changed = {name: entry for name, entry in entries.items() if _digest(entry["before"]) != entry["after_sha256"]}
    _write_record(changed, folder)


def undo(folder: Path) -> list[Path]:
    """Restore the original files and return their paths.

    Raises:
        BadInputError: nothing was applied here, a file was edited since, or cannot be written.
    """
    before = originals(folder)
    if not before:
        raise BadInputError(f"no plan was applied in {folder}; name the folder that was given to --to")
    real = {path: files.inside(folder, path, OUTSIDE) for path in before}
    for path, text in before.items():
        _replace(real[path], text)
    _write_record({}, folder)
    return sorted(before)


def read_text(path: Path) -> str:
    """Return a file's text with its line endings unchanged.

    Raises:
        BadInputError: it cannot be read.
    """
    return files.read_text(path, BadInputError, "give a text file in UTF-8")


def _write_record(entries: Mapping[str, Mapping[str, str]], folder: Path) -> None:
    """Write the record, or delete it if there are no entries."""
    path = folder / RECORD
    if path.parent.is_symlink():
        raise BadInputError(f"{path.parent} is a link; delete it")
    if entries:
        _write_text(path, json.dumps({"version": VERSION, "files": entries}, indent=1))
        return
    path.unlink(missing_ok=True)
    if path.parent.is_dir() and not any(path.parent.iterdir()):
        path.parent.rmdir()


def _replace(path: Path, text: str) -> None:
    if read_text(path) != text:
        _write_text(path, text)


def _write_text(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError("it is read-only")  # replacing it would succeed nevertheless
        files.write_text(path, text)
    except OSError as failure:
        raise BadInputError(
            f"{path} cannot be written ({failure.strerror or failure}); fix that and run the command again"
        ) from failure


def _read(folder: Path) -> Mapping[str, _Entry]:
    path = folder / RECORD
    if not path.exists():
        return {}
    data: Any = load_json(read_text(path), str(path), BadInputError, "delete it to start over")
    if isinstance(data, dict) and data.get("version", VERSION) != VERSION:
        raise BadInputError(
            f"{path} has version {data['version']!r}, but this sktune reads {VERSION}; "
            "undo with the version that wrote it"
        )
    try:
        entries = _Record.model_validate(data).files
    except ValidationError as failure:
        raise BadInputError(f"{path} is not a record of sktune; delete it to start over") from failure
    if any(Path(name).is_absolute() or ".." in Path(name).parts for name in entries):
        raise BadInputError(f"{path} names files outside of its folder; delete it")
    longest = max((len(part.encode()) for name in entries for part in Path(name).parts), default=0)
    if longest > MAX_NAME_BYTES or max(map(len, entries), default=0) > MAX_PATH:
        raise BadInputError(f"{path} names files that cannot exist; delete it to start over")
    return entries


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
