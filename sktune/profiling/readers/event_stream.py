"""Read Chrome traces event by event, even if they are larger than memory, truncated or damaged."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

CHUNK_CHARACTERS = 1 << 22
MAX_EVENT_CHARACTERS = 1 << 24
"""Longer events are treated as damaged."""
MAX_WASTED = 1 << 28
"""Characters of damaged events after which no more is read, as their ends are searched for again and again."""

_START = re.compile(r'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_NEXT_EVENT = re.compile(r"[,\[]\s*(?=\{)")
# Numbers stay text: a float cannot represent epoch microseconds with three decimals.
_TOKEN = 16
"""No token of JSON but numbers and strings is longer."""
_decode = json.JSONDecoder(parse_float=str).raw_decode


@dataclass(slots=True)
class EventStream:
    """The events of one trace, a list at the top level or under ``traceEvents``, read once.

    Attributes:
        is_trace: whether a list of events was found; known after iteration.
        is_complete: whether the end of the list was reached; known after iteration.
        damaged: number of places where no event could be read; reading continues after them.
        wasted: characters read there.
    """

    text: IO[str]
    is_trace: bool = False
    is_complete: bool = False
    damaged: int = 0
    wasted: int = 0
    _buffer: str = ""
    _at_end: bool = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield every complete event, with numbers that have a decimal point as text."""
        position = self._find_list()
        while self.is_trace:
            position = self._skip_blanks(position)
            if position == len(self._buffer):
                return
            if self._buffer[position] == "]":
                self.is_complete = True
                return
            try:
                event, position = _decode(self._buffer, position)
            except RecursionError:
                return  # no profiler nests like this
            except ValueError as failure:  # not JSON, or a number of thousands of digits
                place = len(self._buffer)
                # A string without an end is reported at its beginning.
                if isinstance(failure, json.JSONDecodeError) and not failure.msg.startswith("Unterminated"):
                    place = failure.pos
                is_cut = place > len(self._buffer) - _TOKEN and len(self._buffer) - position < MAX_EVENT_CHARACTERS
                if is_cut and self._extend(position):
                    position = 0
                    continue
                following = _NEXT_EVENT.search(self._buffer, position + 1)
                self.wasted += place - position
                if following is None or self.wasted > MAX_WASTED:
                    return
                self.damaged += 1
                position = following.end()
            else:
                if isinstance(event, dict):
                    yield event
                if position > len(self._buffer) - CHUNK_CHARACTERS // 64 and self._extend(position):
                    position = 0

    def _find_list(self) -> int:
        self._extend(0)
        self._buffer = self._buffer.lstrip("\ufeff \t\r\n")
        if self._buffer.startswith("["):
            self.is_trace = True
            return 1
        while not (match := _START.search(self._buffer)):
            if not self._extend(max(0, len(self._buffer) - 64)):  # the key may span two chunks
                return 0
        self.is_trace = True
        return match.end()

    def _skip_blanks(self, position: int) -> int:
        while True:
            match = _BETWEEN.match(self._buffer, position)
            position = match.end() if match else position
            if position < len(self._buffer) or not self._extend(position):
                return position
            position = 0

    def _extend(self, position: int) -> bool:
        """Drop the buffer before ``position`` and read another chunk; False at the end of the file."""
        if self._at_end:
            return False
        chunk = self.text.read(CHUNK_CHARACTERS)
        self._at_end = not chunk
        if chunk:
            self._buffer = self._buffer[position:] + chunk
        return bool(chunk)
