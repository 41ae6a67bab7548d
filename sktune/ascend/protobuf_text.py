"""Read protobuf's text format without protobuf and without a schema.

TorchAir and GE write their graphs in it; reading them must not require the wheel that wrote them. The grammar is that
of https://protobuf.dev/reference/protobuf/textformat-spec/, as far as printers use it: fields, messages, strings.
"""

import re
from collections.abc import Iterator
from typing import Any

from sktune.core.errors import BadInputError

# A message maps the names of its fields to their values in order: text for scalars, a message for messages.
Message = dict[str, list[Any]]

MAX_DEPTH = 100
"""Messages within each other, as in protobuf's own parsers (SetRecursionLimit)."""

_TOKEN = re.compile(
    r"\s*+(?:#[^\n]*|(?P<close>\})|(?P<name>[\w.\[\]/]++)\s*+"
    r"(?:(?::\s*+)?(?P<open>\{)|:\s*+(?P<value>\"[^\"\\]*(?:\\.[^\"\\]*)*\"|'[^'\\]*(?:\\.[^'\\]*)*'|[^\s{}\"';,]+)[;,]?)"
    r"|(?P<wrong>\S))",
    re.DOTALL,
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_CONTROL = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def parse_message(text: str, source: str) -> Message:
    """Return ``text`` as a message; errors call it ``source``.

    Strings keep their quotes and escapes until ``string`` removes them: most are tensor data that nobody reads.

    Raises:
        BadInputError: the text is not in protobuf's text format, or ends inside a message.
    """
    root: Message = {}
    message, enclosing = root, list[Message]()
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "value":
            message.setdefault(token["name"], []).append(token["value"])
        elif kind == "open":
            enclosing.append(message)
            if len(enclosing) > MAX_DEPTH:
                raise BadInputError(f"{source} has more than {MAX_DEPTH} levels; give a graph dump of TorchAir or GE")
            message.setdefault(token["name"], []).append(inner := Message())
            message = inner
        elif kind == "close" and enclosing:
            message = enclosing.pop()
        elif kind is not None:
            raise BadInputError(_where(text, token.start(kind), source))
    if enclosing:
        raise BadInputError(f"{source} ends inside a message: it is truncated; copy the whole file, or dump it again")
    return root


def _where(text: str, offset: int, source: str) -> str:
    rest = text[offset:].rstrip()
    # Printers write no line breaks inside a field, so an error in the last line means that the text was cut.
    if offset and "\n" not in rest:
        return f"{source} ends at {rest[:40]!r}: it is truncated; copy the whole file, or dump it again"
    line = text.count("\n", 0, offset) + 1
    unexpected = rest.splitlines()[0][:40]
    return f"{source} is protobuf text only up to line {line}, {unexpected!r}; give a graph dump of TorchAir or GE"


def string(value: str) -> str:
    """Return a scalar without its quotes and escapes; a number or word unchanged."""
    if value[:1] not in ("'", '"'):
        return value
    return _ESCAPE.sub(_unescape, value[1:-1].encode()).decode("utf-8", "replace") if "\\" in value else value[1:-1]


def _unescape(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, other = match.groups()
    if other is None:
        return bytes([int(octal, 8) & 0xFF if octal else int(hexadecimal, 16)])
    return _CONTROL.get(other, other)


def scalar(message: Message, name: str) -> str:
    """Return the first value of a field as text, ``""`` if the message does not have the field."""
    values = message.get(name)
    return string(values[0]) if values and isinstance(values[0], str) else ""


def messages(message: Message, name: str) -> Iterator[Message]:
    """Return the messages in a repeated field."""
    return (value for value in message.get(name, ()) if isinstance(value, dict))
