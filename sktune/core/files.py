"""Files that anyone may have prepared: read within limits, and replaced as a whole without following links."""

import errno
import hashlib
import os
import re
import secrets
import stat
import tempfile
from io import BufferedReader
from pathlib import Path

from sktune.core.errors import BadInputError

MAX_BYTES = 16 << 20
"""Limit of a file that is read as a whole: source, YAML, JSON. Profiles and logs have their own."""

WRITTEN = ".written-by-sktune"
"""Name of the file that marks a folder whose content sktune and compilers write."""


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading. A pipe or a device is an error: it may never end, or never answer.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as failure:  # a null character in the path
        raise OSError(errno.EINVAL, str(failure), str(path)) from failure
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        what = "it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file"
        raise OSError(errno.EINVAL, what, str(path))
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, error: type[BadInputError], fix: str, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes; ``fix`` ends the message of an error."""
    try:
        with open_regular(path) as file:
            data = file.read(limit + 1)
    except OSError as failure:
        raise error(f"{path} cannot be read ({failure.strerror}); {fix}") from failure
    if len(data) > limit:
        raise error(f"{path} cannot be read (it has more than {limit >> 20} MiB); {fix}")
    return data


def read_text(path: Path, error: type[BadInputError], fix: str, limit: int = MAX_BYTES) -> str:
    """Return a file's text, which must be UTF-8, with its line endings unchanged; see ``read_bytes``."""
    try:
        return read_bytes(path, error, fix, limit).decode("utf-8")
    except UnicodeDecodeError as failure:
        raise error(f"{path} cannot be read (byte {failure.start} is not UTF-8); {fix}") from failure


def source_text(path: Path) -> str:
    """Return the text of a source file that may be anything; empty if it cannot be read."""
    try:
        return read_bytes(path, BadInputError, "skip it").decode("utf-8", errors="replace")
    except BadInputError:
        return ""


def real_path(path: Path) -> Path:
    """Return the absolute path with all links followed. Unlike ``resolve()``, no link is an error, even to itself."""
    return Path(os.path.realpath(path))


def without_spaces(folder: Path) -> Path:
    """Return ``folder``, or a link to it if its path has characters that PyTorch does not quote for its compilers.

    The folder of a link is made, as nothing can be made through a link to nowhere.

    Raises:
        BadInputError: something else has the link's name.
    """
    if not re.search(r"""[\s'"\\]""", str(folder)):
        return folder
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    link = Path(tempfile.gettempdir()) / f"sktune-{os.getuid()}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        link.symlink_to(folder)
    except FileExistsError:
        # Others may write into the folder of temporary files, and what lies in a cache is run.
        if not link.is_symlink() or link.lstat().st_uid != os.getuid() or link.readlink() != folder:
            raise BadInputError(
                f"{link} is not sktune's link to {folder}, whose path compilers cannot take; delete it, or name "
                "another folder with --runs"
            ) from None
    return link


def inside(folder: Path, path: Path, fix: str) -> Path:
    """Return where a file that starts with ``folder`` really is, all links followed.

    Raises:
        BadInputError: links lead out of the folder.
    """
    try:
        real = path.resolve()
    except (OSError, RuntimeError, ValueError) as failure:  # links that lead to each other, a null character
        raise BadInputError(f"{path} cannot be resolved ({failure}); {fix}") from failure
    if not real.is_relative_to(folder.resolve()):
        raise BadInputError(f"{path} is a link to {real}, outside of {folder}; {fix}")
    return real


def write_text(path: Path, text: str) -> None:
    """Write a file as a whole or not at all, keeping the mode of the one that it replaces.

    Raises:
        OSError: it cannot be written, or what is there is not a regular file: links are not followed.
    """
    mode = path.lstat().st_mode if os.path.lexists(path) else None
    if mode is not None and not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a link" if stat.S_ISLNK(mode) else "it is not a regular file", str(path))
    part = path.with_name(f".sktune-{secrets.token_hex(8)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        # Names that are no text, as of a folder, are shown rather than refused.
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(text)
        if mode is not None:
            part.chmod(stat.S_IMODE(mode))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def remove_parts(folder: Path) -> None:
    """Delete what ``write_text`` left in ``folder`` when its process was killed; no process may be writing there.

    Raises:
        OSError: they cannot be deleted.
    """
    for part in folder.glob(".sktune-*.part"):
        part.unlink(missing_ok=True)


def create_text(path: Path, text: str) -> None:
    """Write a new file.

    Raises:
        OSError: it cannot be written, or there is something at ``path``, if only a link to nothing.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
        file.write(text)


def mark_as_written(folder: Path) -> None:
    """Create ``folder`` with the mark that sktune writes it, and that nothing in it is a program's source."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WRITTEN).touch()
