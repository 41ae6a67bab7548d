"""Digests of the files that measurements depend on: checkpoints and imported modules. Does not import torch."""

import hashlib
import importlib.machinery
import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sktune.core.codec import decoded
from sktune.core.files import open_regular

WHOLE_BYTES = 4 << 20
"""Files up to this size are read completely."""
BLOCK_BYTES = 4096
MAX_BLOCKS = 512
"""Blocks read from a larger file: at most 2 MiB, so that a checkpoint of hundreds of files takes seconds."""
MAX_HEADER_BYTES = 100 << 20
"""Limit of a safetensors header (https://huggingface.co/docs/safetensors, "Format")."""

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_PACKAGE = Path(__file__).resolve().parents[1]


def content_digest(path: Path) -> str:
    """Return a digest of a file's content alone, so that copying the file does not change it.

    A file over 4 MiB is identified by its size and by blocks of 4 KiB: the header of a safetensors file and the middle
    of each tensor (of 512 tensors, if there are more), or 512 evenly spaced blocks. A tensor that was retrained or
    requantised differs nearly everywhere, its middle included; a few values edited by hand may be missed.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE_BYTES:
            digest.update(file.read())
            return digest.hexdigest()
        digest.update(size.to_bytes(8, "little"))
        header = b""
        if path.suffix == ".safetensors":
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if length <= min(size, MAX_HEADER_BYTES) else b""
            digest.update(header)
        for offset in _spread(_tensor_middles(header) or list(range(0, size, BLOCK_BYTES))):
            file.seek(offset)
            digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()


def checkpoint_files(folder: Path) -> list[Path]:
    """Return the files of a checkpoint that affect its decode step, so without tokenizer and other text files."""
    text_files = ("tokenizer", "vocab", "added_tokens", "special_tokens", "preprocessor", "processor", "chat_template")
    files = (file for file in sorted(folder.iterdir()) if file.suffix in (".json", ".safetensors", ".py"))
    return [file for file in files if not file.name.startswith(text_files) and file.is_file()]


def has_checkpoint(folder: Path) -> bool:
    """Whether transformers finds weights in a folder that it may load: safetensors, in one file or several."""
    return any((folder / f"model.safetensors{suffix}").is_file() for suffix in ("", ".index.json"))


def files_below(path: Path) -> list[Path]:
    """Return all files below a folder; if ``path`` is a file, that file."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _tensor_middles(header: bytes) -> list[int]:
    """Return the offset of a block in the middle of each tensor; empty if ``header`` is not a safetensors header."""
    try:
        entries = decoded(dict[str, dict[str, Any]], json.loads(header))
        spans = [entry.get("data_offsets") for name, entry in entries.items() if name != "__metadata__"]
        middles = {max(begin, (begin + end - BLOCK_BYTES) // 2) for begin, end in decoded(list[tuple[int, int]], spans)}
    except ValueError:
        return []
    return sorted(8 + len(header) + middle for middle in middles)


def _spread(offsets: list[int]) -> list[int]:
    """Return at most ``MAX_BLOCKS`` of ``offsets``, evenly spaced and including the last one."""
    if len(offsets) <= MAX_BLOCKS:
        return offsets
    return [offsets[number * (len(offsets) - 1) // (MAX_BLOCKS - 1)] for number in range(MAX_BLOCKS)]


def module_files(name: str) -> list[Path]:
    """Return the files of module ``name`` and of its parent packages, without importing any of them."""
    files, search_path, parts = [], None, name.split(".")
    for count in range(1, len(parts) + 1):
        spec = _module_spec(".".join(parts[:count]), search_path)
        if spec is None:
            break
        if spec.has_location and spec.origin:
            files.append(Path(spec.origin).resolve())
        if spec.submodule_search_locations is None:
            break
        search_path = list(spec.submodule_search_locations)
    return files


def _module_spec(name: str, search_path: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    # A worker finds modules in its current folder first, as `python -m` does.
    local = None if search_path else importlib.machinery.PathFinder.find_spec(name, [str(Path.cwd())])
    if local is not None:
        return local
    specs = (finder.find_spec(name, search_path) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


def imported_modules(package: str | None, home: Path | None, caches: tuple[Path, ...]) -> dict[str, str]:
    """Return the digests of all modules imported by this process that no version number identifies.

    Modules of Python, ``site-packages`` and sktune, and files in the caches of compilers, are left out.

    Args:
        package: top-level package of the target, which is included even if it is installed.
        home: folder that paths are relative to; paths outside of it are absolute, as are all if it is None.
        caches: cache folders of compilers.
    """
    digests = {}
    for path in sorted(set(_imported_files(package, caches))):
        name = str(path.relative_to(home)) if home and path.is_relative_to(home) else str(path)
        digests[name] = content_digest(path)[:16]
    return digests


def _imported_files(package: str | None, caches: tuple[Path, ...]) -> Iterator[Path]:
    libraries = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    resolved = [path.resolve() for path in (*libraries, *caches)]
    excluded = (*libraries, *resolved, _PACKAGE)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not Path(file).is_file():
            continue
        path, as_imported = Path(file).resolve(), Path(file)  # distributions link parts of their library from elsewhere
        is_installed = _INSTALLED & set(path.parts) or any(
            each.is_relative_to(folder) for each in (path, as_imported) for folder in excluded
        )
        if not is_installed or name.partition(".")[0] == package:
            yield path


def changed_file(modules: Mapping[str, str], home: Path | None) -> Path | None:
    """Return the first file whose content has changed since ``imported_modules`` returned ``modules``."""
    for name, digest in modules.items():
        path = (home or Path()) / name
        try:
            is_same = content_digest(path)[:16] == digest
        except OSError:
            is_same = False
        if not is_same:
            return path
    return None
