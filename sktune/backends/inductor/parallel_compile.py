"""Compiling several regions at once, on all cores."""

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch._inductor import config as inductor_config

from sktune.backends.base import OnScope

logger = logging.getLogger(__name__)

HELPER_WAIT_S = 120.0
"""A helper that takes longer than this after our own share is done is given up: we compile its share ourselves."""


def compile_ahead(labelled: Mapping[str, Callable[[], object]], on_scope: OnScope) -> None:
    """Run a share of the tasks in forked helpers, and the rest here, so that all find their results on disk.

    Each task compiles one region, and Inductor keeps what it compiles in its cache. ``on_scope`` is called with the
    labels of those that are compiled here. A helper is an accelerator and nothing else: what it fails to do, for
    whatever reason, the caller's own compile will do, and report.
    """
    tasks = list(labelled.items())
    helpers = min(len(os.sched_getaffinity(0)), len(tasks)) - 1
    if helpers < 1 or torch.cuda.is_initialized():  # CUDA does not survive a fork
        return
    share = helpers + 1
    children = [_fork([task for _, task in tasks[helper + 1 :: share]]) for helper in range(helpers)]
    try:
        for label, task in tasks[::share]:
            on_scope(label)
            task()
        deadline = time.monotonic() + HELPER_WAIT_S
        for child in children:
            _wait(child, deadline)
    finally:
        for child in children:
            _end(child)


def _fork(tasks: Sequence[Callable[[], object]]) -> int:
    """Return a child that runs the tasks and ends.

    It does so in a thread that is new: the one that forked has OpenMP's workers on its books, which are not there after
    a fork, and would wait for them for ever.
    """
    with_gradients = torch.is_grad_enabled()
    child = os.fork()
    if child:
        return child
    failures: list[BaseException] = []

    def work() -> None:
        try:
            gc.disable()
            # The pool of compile workers is not there either.
            with torch.set_grad_enabled(with_gradients), inductor_config.patch(compile_threads=1):
                for task in tasks:
                    task()
        except BaseException as failure:  # noqa: BLE001 - the parent meets the same failure, and reports it
            failures.append(failure)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    os._exit(1 if failures else 0)


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
