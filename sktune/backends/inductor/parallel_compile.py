"""Compile several regions in parallel, on all cores."""

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from sktune.backends.base import OnScope
from sktune.measure.machine import allowed_cores
from sktune.program.sktune_program.torch_private import config as inductor_config

logger = logging.getLogger(__name__)

HELPER_WAIT_S = 120.0
"""A helper that takes longer than this after the parent's share is done is killed; the parent compiles its share."""


def compile_ahead(labelled: Mapping[str, Callable[[], object]], on_scope: OnScope) -> None:
    """Run some of the tasks in forked helpers and the others here, so that all results are in the cache on disk.

    Each task compiles one region, and Inductor stores the result in its cache. ``on_scope`` is called with the labels
    of those that are compiled here. Helpers only save time: if one fails, for whatever reason, the caller compiles the
    region later, and reports the failure.
    """
    tasks = list(labelled.items())
    helpers = min(allowed_cores(), len(tasks)) - 1
    if helpers < 1 or torch.cuda.is_initialized():  # CUDA does not support forks
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
    """Start a child process that runs the tasks and exits; return its id.

    It uses a new thread: OpenMP's workers do not exist after a fork, and the thread that forked would wait for them
    forever.
    """
    with_gradients = torch.is_grad_enabled()
    child = os.fork()
    if child:
        return child
    failures: list[BaseException] = []

    def work() -> None:
        try:
            gc.disable()
            # The pool of compile workers does not exist in the child either.
            with torch.set_grad_enabled(with_gradients), inductor_config.patch(compile_threads=1):
                for task in tasks:
                    task()
        except BaseException as failure:  # noqa: BLE001 - the parent reports the failure when it compiles the region
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
    logger.warning("compile helper %d did not finish; compiling its regions here", child)


def _end(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # it has already ended
