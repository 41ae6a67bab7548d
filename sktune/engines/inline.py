"""The engine of one worker: its runner is called in the search's own thread."""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from sktune.engines.base import Joined, OnEvent, RunnerCall, Worker, perform
from sktune.engines.dies import Die
from sktune.worker.jobs import DurationEstimates, Opened, Runner


class InlineEngine:
    """Performs calls while its events are awaited, so that Ctrl-C interrupts them; an ``Engine``.

    Args:
        runner: performs them.
        die: held meanwhile; None if there is nothing to keep others off.
        folder: of the study.
    """

    def __init__(self, runner: Runner, die: Die | None, folder: Path) -> None:
        self._runner, self._worker = runner, Worker("this process")
        self._die, self._folder, self._entered = die, folder, ExitStack()
        self._calls: deque[RunnerCall] = deque()
        self._has_joined = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._die:
                stack.enter_context(self._die.held(self._folder))
            stack.enter_context(self._runner)
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    def submit(self, worker: Worker, call: RunnerCall, /) -> None:  # noqa: ARG002 - there is only one
        """See ``Engine.submit``."""
        self._calls.append(call)

    def wait(self, timeout_s: float, on_event: OnEvent, /) -> None:  # noqa: ARG002 - there is always an event
        """See ``Engine.wait``."""
        if not self._has_joined:
            self._has_joined = True
            on_event(Joined(self._worker))
        elif self._calls:
            perform(self._runner, self._worker, self._calls.popleft(), on_event)

    def discard(self, worker: Worker, /) -> None:  # noqa: ARG002
        """See ``Engine.discard``."""
        self._runner.close()

    def pace(self, opened: Opened, trials: Sequence[Mapping[str, float]], /) -> DurationEstimates:
        """See ``Engine.pace``."""
        return self._runner.pace(opened, trials)
