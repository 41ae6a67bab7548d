"""Building code faster than Inductor does by itself, with the same code as the result."""

import gc
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch._inductor import codecache
from torch._inductor import config as inductor_config
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

logger = logging.getLogger(__name__)

HELPER_WAIT_S = 120.0
"""A helper that takes longer than this after our own share is done is given up: we compile its share ourselves."""

WRAPPER_HEADERS = (
    "torch/csrc/inductor/cpp_wrapper/cpu.h",
    "ATen/core/dispatch/Dispatcher.h",
    "ATen/core/ivalue.h",
    "ATen/core/jit_type.h",
    "torch/csrc/inductor/aoti_torch/utils.h",
    "torch/csrc/inductor/cpp_prefix.h",
)
"""What a C++ wrapper with calls of ATen operators includes. Inductor precompiles only the first of them, and the
compiler spends more than half its time on the others (7.2 s against 3.6 s for a region of one attention)."""


def compile_ahead(tasks: Sequence[Callable[[], object]]) -> None:
    """Run a share of the tasks in forked helpers, and the rest here, so that all find their results on disk.

    Each task compiles one region, and Inductor keeps what it compiles in its cache. A helper is an accelerator
    and nothing else: what it fails to do, for whatever reason, the caller's own compile will do, and report.
    """
    helpers = min(len(os.sched_getaffinity(0)), len(tasks)) - 1
    if helpers < 1 or torch.cuda.is_initialized():  # CUDA does not survive a fork
        return
    share = helpers + 1
    children = [_fork(tasks[helper + 1 :: share]) for helper in range(helpers)]
    try:
        for task in tasks[::share]:
            task()
        deadline = time.monotonic() + HELPER_WAIT_S
        for child in children:
            _wait(child, deadline)
    finally:
        for child in children:
            _end(child)


def _fork(tasks: Sequence[Callable[[], object]]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        gc.disable()
        with inductor_config.patch(compile_threads=1):  # the pool of compile workers is not there after a fork
            for task in tasks:
                task()
    except BaseException:  # noqa: BLE001 - the parent meets the same failure, and reports it
        os._exit(1)
    os._exit(0)


def _wait(child: int, deadline: float) -> None:
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.01)
    logger.warning("compile helper %d is still busy; giving it up", child)


def _end(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # it has ended and was waited for


@contextmanager
def one_header() -> Iterator[None]:
    """Have C++ wrappers precompile all headers that they include."""
    if not hasattr(codecache, "_get_cpp_wrapper_header"):
        yield
        return
    own = codecache._get_cpp_wrapper_header  # noqa: SLF001 - no public way

    def header(device: str, aot_mode: bool = False) -> str:
        if aot_mode or device != "cpu":
            return str(own(device, aot_mode))
        return str(_header_file())

    with patch.object(codecache, "_get_cpp_wrapper_header", header):
        yield


def _header_file() -> Path:
    path = Path(default_cache_dir()) / "sktune_wrapper.h"  # beside the headers that Inductor precompiles
    text = "".join(f"#include <{name}>\n" for name in WRAPPER_HEADERS)
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(text)
        partial.replace(path)
    return path
