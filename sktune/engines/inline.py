"""The engine of one worker: its runner is called in the search's own thread."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Self

from sktune.engines.base import Call, Joined, OnEvent, Worker, perform
from sktune.runners.base import DurationEstimates, Opened, Runner


class InlineEngine:
    """Performs calls while its events are awaited, so that Ctrl-C interrupts them; an ``Engine``."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._worker = runner, Worker("this process")
        self._calls: deque[Call] = deque()
        self._has_joined = False

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._runner.__exit__(*failure)

    def submit(self, worker: Worker, call: Call, /) -> None:  # noqa: ARG002 - there is only one
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
