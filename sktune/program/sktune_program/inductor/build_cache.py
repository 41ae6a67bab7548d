"""Inductor's cache on disk, as all processes of a host share it.

Its entries are found by digests of what determines them: PyTorch's version, graph, options, threads, processor. That
makes it the cache of built regions, but leaves three gaps, which are closed here.

* Two processes that need the same region at the same time would both build it: one waits for the other.
* A compiler that is killed leaves half a file that PyTorch takes for a whole one: a file of g++ counts only with its
  seal, a file with its digest that is written after it.
* An entry that a full disk or a lost page has damaged would be loaded: it is built again. The worst is the library with
  which PyTorch tries vector instructions: if it cannot be loaded, regions silently have other code and other bits.

This protects against accidents. Entries are code: whoever can write into the folder can run programs as its reader.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..torch_private import (
    LOCK_TIMEOUT,
    FileLock,
    folder_of_entries,
    get_lock_dir,
    replaced,
    resolve,
    sha256_hash,
    write_atomic,
)
from .processor import processor

logger = logging.getLogger(__name__)

SEALED = ".sealed"
"""What the name of a file's seal ends with."""
LOADED = ".load_ok"
"""The same of the note, since torch 2.14, that a library with vector instructions was loaded, and need not be again."""
MAX_WAIT_S = 900.0
"""A builder that takes longer hangs; the waiting process then builds the region itself, which is safe as well."""
POLL_S = 0.02

_sound: dict[str, tuple[int, int]] = {}
"""Inode and size of files whose seals this process has checked."""


@contextmanager
def shared_build(region: str) -> Iterator[None]:
    """Build a region within the context, or load what another process of this host has built.

    Args:
        region: digest of what is built; as a lock's name it may be coarser or finer than the cache's own keys.
    """
    made: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("_worker_compile_cpp", lambda _: build),
        ("write", _whole),
        ("CompiledFxGraph.write_to_disk", _rewritten),
        ("VecISA.check_build", _tried_anew),
        ("GuardedCache.iterate_over_candidates", lambda method: classmethod(_undamaged(method.__func__))),
    )
    patches = [replaced(name, make(resolve(name))) for name, make in made]
    with _alone(region), ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


def build(lock_path: str, builders: Sequence[Any]) -> None:
    """Run the builders whose targets are not there, or not whole; the last one's is what the others are made for.

    It replaces PyTorch's function of the same arguments, whose targets count as soon as they exist.
    """
    with FileLock(lock_path, timeout=LOCK_TIMEOUT):
        if is_built(builders):
            return
        for builder in builders:
            target = Path(builder.get_target_file_path())
            if not is_sound(target):
                target.unlink(missing_ok=True)
                builder.build()
                _seal(target)


def is_built(builders: Sequence[Any]) -> bool:
    """Whether nothing is to be built."""
    return is_sound(Path(builders[-1].get_target_file_path()))


def is_sound(file: Path) -> bool:
    """Whether a built file is the one that was sealed, by a processor like this one; if so, it counts as used now."""
    try:
        status = file.stat()
        if _sound.get(str(file)) == (status.st_ino, status.st_size):
            return True
        if json.loads(_seal_of(file).read_bytes()) != _content_of_seal(file):
            return False
    except (OSError, ValueError):
        return False
    for path in (file, _seal_of(file)):
        _use(path)
    _sound[str(file)] = status.st_ino, status.st_size
    return True


def _seal(file: Path) -> None:
    write_atomic(str(_seal_of(file)), json.dumps(_content_of_seal(file)))


def _seal_of(file: Path) -> Path:
    return file.with_name(file.name + SEALED)


def _content_of_seal(file: Path) -> dict[str, str]:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while part := content.read(1 << 20):
            digest.update(part)
    return {"sha256": digest.hexdigest(), "processor": processor()}  # g++ uses all instructions of the processor


def _use(path: Path) -> None:
    with suppress(OSError):  # another user's file
        os.utime(path)


def _whole(write: Callable[..., tuple[str, str]]) -> Callable[..., tuple[str, str]]:
    """Return ``codecache.write``, made to replace a file that exists with other content than its name says."""

    def written(content: str | bytes, *arguments: Any, **keywords: Any) -> tuple[str, str]:
        key, path = write(content, *arguments, **keywords)
        _correct(Path(path), content)
        return key, path

    return written


def _rewritten(write: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return ``CompiledFxGraph.write_to_disk``, made to do the same."""

    def written(graph: Any) -> str:
        path = write(graph)
        _correct(Path(path), graph.source_code)
        return path

    return written


def _correct(path: Path, content: str | bytes) -> None:
    expected = content.encode() if isinstance(content, str) else content
    if path.read_bytes().strip() != expected.strip():  # the name's digest ignores space at both ends
        write_atomic(str(path), content)
    _use(path)


def _tried_anew(check: Callable[[Any, str], bool]) -> Callable[[Any, str], bool]:
    """Return ``VecISA.check_build``, made to build again a library that is not sealed; one that loads is sealed."""
    find = resolve("CppBuilder.get_target_file_path")

    def tried(instructions: Any, code: str) -> bool:
        libraries: set[Path] = set()
        thread = threading.get_ident()

        def found(builder: Any) -> str:
            path = Path(find(builder))
            if threading.get_ident() == thread and path not in libraries:
                libraries.add(path)
                if not is_sound(path):
                    path.unlink(missing_ok=True)
                    path.with_name(path.name + LOADED).unlink(missing_ok=True)
            return str(path)

        with replaced("CppBuilder.get_target_file_path", found):
            is_usable = check(instructions, code)
        for library in libraries if is_usable else ():
            if not is_sound(library):
                _seal(library)
        return is_usable

    return tried


def _undamaged(candidates: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Return the method that unpickles entries, made to delete those whose content is not what their name says."""

    def checked(cache: Any, local: bool, remote_cache: Any, key: str) -> Iterator[Any]:
        folder = Path(folder_of_entries(cache, key))
        for entry in folder.iterdir() if local and folder.is_dir() else ():
            if not entry.name.startswith("."):  # else another process is writing it
                with suppress(OSError):
                    if sha256_hash(entry.read_bytes()) == entry.name:
                        _use(entry)
                    else:
                        logger.warning("%s is damaged; building it again", entry)
                        entry.unlink()
        return candidates(cache, local, remote_cache, key)

    return checked


@contextmanager
def _alone(region: str) -> Iterator[None]:
    """Wait until no other process builds the region; the system releases the lock when its process ends."""
    try:
        path = Path(get_lock_dir()) / f"sktune-{region}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError:  # a folder that can only be read
        yield
        return
    try:
        began_s = time.monotonic()
        while _is_held_elsewhere(descriptor) and time.monotonic() < began_s + MAX_WAIT_S:
            time.sleep(POLL_S)
        if (waited_s := time.monotonic() - began_s) > POLL_S:
            logger.info("waited %.1f s for another process that built the region", waited_s)
        yield
    finally:
        os.close(descriptor)


def _is_held_elsewhere(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    return False
