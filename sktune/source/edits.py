"""Changes to the user's files: shown as a diff, written together, undone byte for byte."""

import difflib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sktune.core.errors import BadInputError

RECORD = Path(".sktune") / "applied.json"
"""Record in the changed folder: the original text of each file, and the digest of the new one."""
VERSION = 1


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
        lines = difflib.unified_diff(
            change.before.splitlines(keepends=True), change.after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
        parts += [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return "".join(parts)


def originals(folder: Path) -> Mapping[Path, str]:
    """Return the files below ``folder`` that sktune changed, with their original text.

    Raises:
        BadInputError: one of them was edited since, or the record cannot be read.
    """
    record = _read(folder)
    texts = {}
    for name, entry in record.items():
        path = folder / name
        now = read_text(path) if path.is_file() else None
        # An interrupted write leaves some files unchanged: without a plan, or with the previous one.
        known = (_digest(entry["before"]), entry["after_sha256"], entry.get("held_sha256"))
        if now is None or _digest(now) not in known:
            raise BadInputError(
                f"{path} was edited after sktune changed it; revert your edit, "
                f"or delete {folder / RECORD} to keep the file"
            )
        texts[path] = str(entry["before"])
    return texts


def write(changes: Sequence[Change], folder: Path) -> None:
    """Write the files, and the record that ``undo`` needs to restore ``before``.

    Raises:
        BadInputError: a file cannot be written; what was written can be undone, or another plan applied.
    """
    entries = {change.path.relative_to(folder).as_posix(): _entry(change) for change in changes}
    held = {name: {**entry, "held_sha256": _digest(read_text(folder / name))} for name, entry in entries.items()}
    # The record comes first: whatever happens from here on can be undone.
    _write_record(held, folder)
    for change in changes:
        _replace(change.path, change.after)
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
    for path, text in before.items():
        _replace(path, text)
    _write_record({}, folder)
    return sorted(before)


def read_text(path: Path) -> str:
    """Return a file's text with its line endings unchanged.

    Raises:
        BadInputError: it cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as failure:
        raise BadInputError(f"{path} cannot be read: {failure}; give a text file in UTF-8") from failure


def _entry(change: Change) -> dict[str, str]:
    return {"before": change.before, "after_sha256": _digest(change.after)}


def _write_record(entries: Mapping[str, Mapping[str, str]], folder: Path) -> None:
    """Write the record, or delete it if there are no entries."""
    path = folder / RECORD
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
    """Replace a file atomically: it never holds part of a text."""
    target = path.resolve()
    part = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(exist_ok=True)
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError("it is read-only")  # replacing it would succeed nevertheless
        try:
            with part.open("w", encoding="utf-8", newline="") as file:
                file.write(text)
            if target.exists():
                shutil.copymode(target, part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as failure:
        raise BadInputError(
            f"{path} cannot be written ({failure.strerror or failure}); fix that and run the command again"
        ) from failure


def _read(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    path = folder / RECORD
    if not path.exists():
        return {}
    try:
        record = json.loads(read_text(path))
        if record["version"] != VERSION:
            raise BadInputError(
                f"{path} has version {record['version']}, but this sktune reads {VERSION}; "
                "undo with the version that wrote it"
            )
        files: Mapping[str, Mapping[str, Any]] = record["files"]
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
            raise BadInputError(f"{path} names files outside of its folder; delete it")
    except (ValueError, KeyError, TypeError) as failure:
        raise BadInputError(f"{path} is not a record of sktune; delete it to start over") from failure
    return files


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
