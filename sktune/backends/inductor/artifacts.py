"""Artifacts: Inductor's compiled code in files that come with a plan, so that another process loads the same code.

There are three kinds of files. ``graphs.bin`` has the entries of Inductor's caches, in the format of
``torch.compiler.save_cache_artifacts``. ``timings.json`` has the timings by which kernels for matrix products were
chosen: a graph with packed weights is not in those caches, and is generated again with the same choices. ``*.so`` are
the libraries built by g++.

Loading them means running code: PyTorch's cache entries are pickles, and libraries are native code. Only files whose
sha256 is in the plan file are loaded, so a plan needs the same trust as the source code of a model.
"""

import json
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sktune.core.delivery import Delivery, file_digest
from sktune.core.errors import PlanError
from sktune.core.files import real_path
from sktune.program.sktune_program.inductor import cpp_wrapper
from sktune.program.sktune_program.inductor.processor import processor
from sktune.program.sktune_program.torch_private import (
    CppCodeCache,
    CppPythonBindingsCodeCache,
    CppWrapperCodeCache,
    PersistentCache,
    clear_caches,
    load_library,
    replaced,
    resolve,
)

GRAPHS, TIMINGS = "graphs.bin", "timings.json"
Timings = dict[str, dict[str, dict[str, dict[str, float]]]]
"""Milliseconds by operator, inputs, precision and choice, as in Inductor's file."""

_CACHES: Mapping[str, Any] = {
    cache.__name__: cache
    for cache in (CppCodeCache, CppPythonBindingsCodeCache, CppWrapperCodeCache, cpp_wrapper.ShimLibrary)
}
"""The classes that load libraries, by the kind of library."""


@dataclass
class Record:
    """The code that was compiled or loaded within ``recorded``.

    Attributes:
        graphs: entries of Inductor's caches, serialized.
        timings: by which kernels for matrix products were chosen.
        libraries: paths of the libraries, by kind and key.
    """

    graphs: bytes = b""
    timings: Timings = field(default_factory=dict)
    libraries: dict[tuple[str, str], Path] = field(default_factory=dict)


@contextmanager
def recorded() -> Iterator[Record]:
    """Record what is compiled within the context or loaded from Inductor's caches on disk.

    The caches in memory are cleared first, since what comes from there cannot be recorded.
    """
    record = Record()
    clear_caches()
    cpp_wrapper.forget_shims()
    load_original = resolve("CppCodeCache._load_library").__func__
    look_up = resolve("PersistentCache.lookup")

    def load(cache: Any, path: str, key: str) -> Any:
        record.libraries[cache.__name__, key] = Path(path)
        return load_original(cache, path, key)

    def chosen(self: Any, choices: Any, op: str, inputs: str, benchmark: Any, hint_override: int | None = None) -> Any:
        timings = look_up(self, choices, op, inputs, benchmark, hint_override)
        name = inputs if hint_override is None else f"{inputs}_{hint_override}"  # as the method itself calls it
        by_precision = record.timings.setdefault(op, {}).setdefault(name, {})
        by_choice = by_precision.setdefault(torch.get_float32_matmul_precision(), {})
        by_choice.update({choice.hash_key(): spent_ms for choice, spent_ms in timings.items()})
        return timings

    with (
        resolve("CacheArtifactManager.with_fresh_cache")(),
        replaced("CppCodeCache._load_library", classmethod(load)),
        replaced("PersistentCache.lookup", chosen),
    ):
        yield record
        saved = torch.compiler.save_cache_artifacts()
        record.graphs = saved[0] if saved else b""


def save(record: Record, folder: Path, code: Mapping[str, str], calls: Mapping[str, str]) -> Delivery:
    """Write the recorded code to ``folder``, replacing its content.

    Args:
        record: of a context ``recorded`` that has ended.
        folder: of the artifacts; it is replaced as a whole or not at all.
        code: digest of each scope's code, by label.
        calls: see ``Delivery``.

    Raises:
        OSError: it cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        if record.graphs:
            (temporary / GRAPHS).write_bytes(record.graphs)
        if record.timings:
            (temporary / TIMINGS).write_text(json.dumps(record.timings, indent=1, sort_keys=True))
        for (kind, key), path in record.libraries.items():
            shutil.copyfile(path, temporary / f"{kind}-{key}.so")
        files = {path.name: file_digest(path.read_bytes()) for path in sorted(temporary.iterdir())}
        temporary.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Delivery(dict(code), machine(), files, dict(calls))


def install(folder: Path, delivery: Delivery, *, strict: bool = False) -> str:
    """Load delivered code if this machine is like the one on which it was compiled.

    Returns:
        why the code was not loaded and has to be compiled again; empty if it was loaded.

    Raises:
        PlanError: a file does not match the plan; with ``strict``, also if the code cannot be loaded.
    """
    problem = delivery.differences(machine())
    if problem:
        problem = f"the plan's compiled code was made where {problem}"
    elif not folder.is_dir():
        problem = f"the plan's compiled code is not at {folder}"
    if not problem:
        load(folder, delivery)
    elif strict:
        raise PlanError(f"{problem}; search again on this machine, or omit strict")
    return problem


def load(folder: Path, delivery: Delivery) -> None:
    """Make the code in ``folder`` available to Inductor in this process.

    Raises:
        PlanError: a file is missing or does not match the plan.
    """
    contents = delivery.contents(folder)
    if graphs := contents.pop(GRAPHS, b""):
        torch.compiler.load_cache_artifacts(graphs)
    if timings := contents.pop(TIMINGS, b""):
        # They replace the timings of the same operator and inputs in Inductor's file.
        cache = PersistentCache()
        known, delivered = cache.get_local_cache(), json.loads(timings)
        for op, by_inputs in delivered.items():
            for inputs, by_precision in by_inputs.items():
                for precision, by_choice in by_precision.items():
                    known.setdefault(op, {}).setdefault(inputs, {}).setdefault(precision, {}).update(by_choice)
        cache.update_local_cache(known)
    for name in contents:
        kind, _, key = name.removesuffix(".so").partition("-")
        if kind not in _CACHES:
            raise PlanError(f"{folder / name} is an artifact of an unknown kind; search again with this sktune")
        # Libraries are found by the digest of source and flags: others are built as without a delivery.
        _CACHES[kind].cache[key] = _loader(kind, folder / name, key)


def machine() -> dict[str, str]:
    """Return the properties of this machine on which compiled code depends, by name."""
    properties = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "processor": processor(),
        "threads": str(torch.get_num_threads()),
    }
    if torch.cuda.is_available():
        properties["gpu"] = torch.cuda.get_device_name()
    return properties


def _loader(kind: str, path: Path, key: str) -> Callable[[], Any]:
    loaded: list[Any] = []

    def load_once() -> Any:
        if not loaded:
            loaded.append(load_library(_CACHES[kind], str(real_path(path)), key))
        return loaded[0]

    return load_once
