"""Text from files, made harmless for people's eyes: it cannot move a cursor or turn the text around it."""

import re

_NOT_PRINTED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, of which escape starts terminals' commands
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # changes of direction
    "\ud800-\udfff]"  # halves of characters, which cannot be encoded
)


def printable(text: str) -> str:
    """Return ``text`` with U+FFFD for each character that would not be printed but obeyed."""
    return _NOT_PRINTED.sub("\ufffd", text)


def shortened(text: str, limit: int) -> str:
    """Return ``text`` in at most ``limit`` characters, with an ellipsis in the middle if it is longer."""
    if len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"
