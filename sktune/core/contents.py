"""What figures rest on, by content: checkpoints, and the modules that a target's import brings in. Imports no torch."""

import hashlib
import importlib.machinery
import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

WHOLE_BYTES = 4 << 20
"""Files up to this size are read as a whole."""
BLOCK_BYTES = 4096
MOST_BLOCKS = 512
"""Blocks that are read of a larger file: at most 2 MiB, so that a checkpoint of hundreds of files takes seconds."""
MOST_HEADER_BYTES = 100 << 20
"""A safetensors header is no longer (https://huggingface.co/docs/safetensors, "Format")."""

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_PACKAGE = Path(__file__).resolve().parents[1]


def content_digest(path: Path) -> str:
    """Return a digest of a file's content, and of nothing else: neither reading nor copying it changes that.

    A file over 4 MiB is known by its size and by blocks of 4 KiB: the header of a safetensors file and the middle of
    each of its tensors (512 of them, where it has more), or 512 blocks at equal distances. A tensor that was trained
    or quantised anew differs nearly everywhere, its middle included; a few values changed by hand may go unseen.

    Raises:
        OSError: it cannot be read.
    """
    found = hashlib.sha256()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE_BYTES:
            found.update(file.read())
            return found.hexdigest()
        found.update(size.to_bytes(8, "little"))
        header = b""
        if path.suffix == ".safetensors":
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if length <= min(size, MOST_HEADER_BYTES) else b""
            found.update(header)
        for offset in _spread(_tensor_middles(header) or list(range(0, size, BLOCK_BYTES))):
            file.seek(offset)
            found.update(file.read(BLOCK_BYTES))
    return found.hexdigest()


def checkpoint_files(folder: Path) -> list[Path]:
    """Return the files in a checkpoint's folder that a model is built from: tokenizers and texts change no step."""
    others = ("tokenizer", "vocab", "added_tokens", "special_tokens", "preprocessor", "processor", "chat_template")
    found = (file for file in sorted(folder.iterdir()) if file.suffix in (".json", ".safetensors", ".py"))
    return [file for file in found if not file.name.startswith(others) and file.is_file()]


def files_below(path: Path) -> list[Path]:
    """Return all files in a folder, at any depth; where ``path`` is a file, that file."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _tensor_middles(header: bytes) -> list[int]:
    """Return the offset of a block in the middle of each tensor; none where ``header`` is no safetensors header."""
    try:
        entries = json.loads(header)
        spans = [entry["data_offsets"] for name, entry in entries.items() if name != "__metadata__"]
        middles = {max(begin, (begin + end - BLOCK_BYTES) // 2) for begin, end in spans}
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
    return sorted(8 + len(header) + middle for middle in middles)


def _spread(offsets: list[int]) -> list[int]:
    """Return at most ``MOST_BLOCKS`` of ``offsets``, at equal distances, the last one among them."""
    if len(offsets) <= MOST_BLOCKS:
        return offsets
    return [offsets[number * (len(offsets) - 1) // (MOST_BLOCKS - 1)] for number in range(MOST_BLOCKS)]


def module_files(name: str) -> list[Path]:
    """Return the files of module ``name`` and of the packages that it lies in, found without importing any of them."""
    files, inside, parts = [], None, name.split(".")
    for count in range(1, len(parts) + 1):
        found = _module_spec(".".join(parts[:count]), inside)
        if found is None:
            break
        if found.has_location and found.origin:
            files.append(Path(found.origin).resolve())
        if found.submodule_search_locations is None:
            break
        inside = list(found.submodule_search_locations)
    return files


def _module_spec(name: str, inside: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    # A worker finds modules in its current folder first, as `python -m` does.
    here = None if inside else importlib.machinery.PathFinder.find_spec(name, [str(Path.cwd())])
    if here is not None:
        return here
    finders = (finder.find_spec(name, inside) for finder in sys.meta_path)
    return next((found for found in finders if found is not None), None)


def imported_modules(own: str | None, home: Path | None, caches: tuple[Path, ...]) -> dict[str, str]:
    """Return the digests of all modules that this process has imported and that no version number stands for.

    Left out are those of Python, of ``site-packages``, of sktune itself, and what compilers wrote to their caches.

    Args:
        own: top-level package of the target, which counts even where it is installed.
        home: folder that paths are relative to; None, and for what lies elsewhere: absolute paths.
        caches: folders of compilers.
    """
    found = {}
    for path in sorted(set(_imported_files(own, caches))):
        name = str(path.relative_to(home)) if home and path.is_relative_to(home) else str(path)
        found[name] = content_digest(path)[:16]
    return found


def _imported_files(own: str | None, caches: tuple[Path, ...]) -> Iterator[Path]:
    libraries = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    excluded = (*libraries, _PACKAGE, *(cache.resolve() for cache in caches))
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not Path(file).is_file():
            continue
        path = Path(file).resolve()
        is_installed = _INSTALLED & set(path.parts) or any(map(path.is_relative_to, excluded))
        if not is_installed or name.partition(".")[0] == own:
            yield path


def changed_file(modules: Mapping[str, str], home: Path | None) -> Path | None:
    """Return the first file of ``modules``, as ``imported_modules`` returned them, that has another content now."""
    for name, digest in modules.items():
        path = (home or Path()) / name
        try:
            same = content_digest(path)[:16] == digest
        except OSError:
            same = False
        if not same:
            return path
    return None
