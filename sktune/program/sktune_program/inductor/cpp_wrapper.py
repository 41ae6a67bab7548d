"""C++ wrappers that build faster: the same kernels, called in the same order.

Three things make Inductor's C++ wrappers slow to build, without any benefit to the step: glue code compiled like the
kernels (-O3, in the same file), debug line tables, and operators without a C function, for which the wrapper contains a
call of the boxed dispatcher. Here the glue code is a separate file at -O1, built in parallel with the kernels, and the
reductions that are left to ATen get C functions (``shims.cpp``, built once). One scope over 4 layers of DeepSeek-V3:
10.4 s of g++ before, 4.0 s after.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ..torch_private import CppCodeCache, default_cache_dir, inductor_fallback_ops, replaced, resolve, write_atomic
from ..torch_private import config as inductor_config
from . import build_cache

SETTINGS: dict[str, bool | str] = {
    "cpp_wrapper_build_separate": True,
    "aot_inductor.compile_wrapper_opt_level": "O1",
}
if hasattr(inductor_config.aot_inductor, "enable_line_tables"):  # torch 2.11 writes none
    SETTINGS["aot_inductor.enable_line_tables"] = False
SHIMS = (
    "aten.sum.default", "aten.sum.dim_IntList", "aten.mean.default", "aten.mean.dim", "aten._softmax.default",
    "aten.native_layer_norm.default",
)  # fmt: skip
"""Operators for which ``shims.cpp`` has C functions."""

_HERE = Path(__file__).parent
_FOLDER = Path(default_cache_dir())
"""Beside the headers that Inductor precompiles; it asks when it is imported, too.

A worker has temporary files of its own afterwards. A header there has another path in each worker, with which the code
of all C++ wrappers would change: each worker would precompile 130 MB again, and leave them.
"""


class ShimLibrary(CppCodeCache):
    """Builds ``shims.cpp`` like Inductor's C++ code, into Inductor's cache."""

    cache: dict[str, Any] = {}
    cache_clear = staticmethod(cache.clear)
    cpp_compile_command_flags = {"include_pytorch": True, "shared": True}


def identity() -> str:
    """Return what the code of a C++ wrapper depends on besides Inductor's settings."""
    return "shims-1" if inductor_config.cpp_cache_precompile_headers else "no-shims"


@contextmanager
def quick_wrapper(device: str) -> Iterator[None]:
    """Within the context, Inductor's C++ wrappers for ``device`` build as described above."""
    with ExitStack() as stack:
        stack.enter_context(replaced("_worker_compile_cpp", _build_in_parallel))
        # The shims are declared in the precompiled header; without one, wrappers call the dispatcher.
        if device == "cpu" and inductor_config.cpp_cache_precompile_headers:
            _load_shims()
            missing: dict[str, Any] = {name: {} for name in SHIMS if name not in inductor_fallback_ops}
            stack.enter_context(patch.dict(inductor_fallback_ops, missing))
            stack.enter_context(replaced("_get_cpp_wrapper_header", _header))
        yield


def forget_shims() -> None:
    """Make the next wrapper load the shims again."""
    _load_shims.cache_clear()
    ShimLibrary.cache.clear()


@cache
def _load_shims() -> None:
    """Build the shims and load them globally, so that libraries loaded later find them."""
    library = ShimLibrary.load((_HERE / "shims.cpp").read_text())
    ctypes.CDLL(library._name, mode=ctypes.RTLD_GLOBAL)  # noqa: SLF001 - ctypes has no public name for its path


_original_header: Callable[..., str] = resolve("_get_cpp_wrapper_header")


def _header(device: str, aot_mode: bool = False) -> str:
    header = _original_header(device, aot_mode)
    if aot_mode or not device.startswith("cpu"):
        return header
    text = f"#include <{header}>\n{(_HERE / 'shims.h').read_text()}"
    path = _FOLDER / f"sktune_wrapper_{sha256(text.encode()).hexdigest()[:16]}.h"  # other versions have others
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(str(path), text)
    return str(path)


def _build_in_parallel(lock_path: str, builders: Sequence[Any]) -> None:
    """Build all but the last in parallel: the last is the linker, which needs the others."""
    files = builders[:-1]
    if len(files) > 1 and not build_cache.is_built(builders):
        with ThreadPoolExecutor(len(files)) as pool:
            locks = [f"{lock_path}.{index}" for index in range(len(files))]
            list(pool.map(build_cache.build, locks, [(file,) for file in files]))
    build_cache.build(lock_path, builders)
