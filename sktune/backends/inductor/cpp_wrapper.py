"""C++ wrappers that build in a quarter of the time: the same kernels, called in the same order.

Three things make Inductor's C++ wrappers slow to build, and none of them matters to the step: the glue is
compiled like the kernels (-O3, in one file with them), debug line tables, and operators without a C function,
for which the wrapper spells out a call of the boxed dispatcher. Here the glue is a file of its own at -O1,
built beside the kernels on another core, and the reductions that we leave to ATen get their C functions
(``shims.cpp``, built once). One scope over 4 layers of DeepSeek-V3: 10.4 s of g++ before, 4.0 s after.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch._inductor import codecache
from torch._inductor import config as inductor_config
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from torchgen.aoti.fallback_ops import inductor_fallback_ops

SETTINGS = {
    "cpp_wrapper_build_separate": True,
    "aot_inductor.compile_wrapper_opt_level": "O1",
    "aot_inductor.enable_line_tables": False,
}
SHIMS = (
    "aten.sum.default", "aten.sum.dim_IntList", "aten.mean.default", "aten.mean.dim", "aten._softmax.default",
    "aten.native_layer_norm.default",
)  # fmt: skip
"""Operators that ``shims.cpp`` has C functions for."""

_HERE = Path(__file__).parent


class ShimLibrary(codecache.CppCodeCache):
    """Builds ``shims.cpp`` as Inductor builds its own C++, into Inductor's cache."""

    cache: dict[str, Any] = {}
    cache_clear = staticmethod(cache.clear)
    cpp_compile_command_flags = {"include_pytorch": True, "shared": True}


def identity() -> str:
    """Return what the code of a C++ wrapper depends on beyond Inductor's own settings."""
    return "shims-1" if inductor_config.cpp_cache_precompile_headers else "no-shims"


@contextmanager
def quick_wrapper(device: str) -> Iterator[None]:
    """Within the context, Inductor's C++ wrappers for ``device`` build as described above."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(codecache, "_worker_compile_cpp", _build_in_parallel))
        # The shims are declared in the header that is precompiled; without one, wrappers call the dispatcher.
        if device == "cpu" and inductor_config.cpp_cache_precompile_headers:
            _load_shims()
            own: dict[str, Any] = {name: {} for name in SHIMS if name not in inductor_fallback_ops}
            stack.enter_context(patch.dict(inductor_fallback_ops, own))
            stack.enter_context(patch.object(codecache, "_get_cpp_wrapper_header", _header))
        yield


def forget_shims() -> None:
    """Have the next wrapper load the shims anew."""
    _load_shims.cache_clear()
    ShimLibrary.cache.clear()


@cache
def _load_shims() -> None:
    """Build the shims, and let libraries that are loaded later find them."""
    library = ShimLibrary.load((_HERE / "shims.cpp").read_text())
    ctypes.CDLL(library._name, mode=ctypes.RTLD_GLOBAL)  # noqa: SLF001 - ctypes has no public name for its path


_inductors_header: Callable[..., str] = codecache._get_cpp_wrapper_header  # noqa: SLF001
_inductors_build: Callable[..., None] = codecache._worker_compile_cpp  # noqa: SLF001


def _header(device: str, aot_mode: bool = False) -> str:
    own = _inductors_header(device, aot_mode)
    if aot_mode or not device.startswith("cpu"):
        return own
    path = Path(default_cache_dir()) / "sktune_wrapper.h"  # beside the headers that Inductor precompiles
    text = f"#include <{own}>\n{(_HERE / 'shims.h').read_text()}"
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        codecache.write_atomic(str(path), text)
    return str(path)


def _build_in_parallel(lock_path: str, builders: Sequence[Any]) -> None:
    """Build all but the last at once: the last is the linker, which takes them in."""
    files = builders[:-1]
    if len(files) > 1:
        with ThreadPoolExecutor(len(files)) as pool:
            locks = [f"{lock_path}.{index}" for index in range(len(files))]
            list(pool.map(_inductors_build, locks, [(file,) for file in files]))
    _inductors_build(lock_path, builders)
