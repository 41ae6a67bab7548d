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


def one_line(text: str) -> str:
    """Return ``text`` in one line of characters that are printed."""
    return printable(" ".join(text.split()))


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shortened(text: str, limit: int) -> str:
    """Return ``text`` in at most ``limit`` characters, with an ellipsis in the middle if it is longer.

    It is cut between words where that costs less than half of either end.
    """
    if len(text) <= limit:
        return text
    head = text[: limit // 2]
    tail = text[len(text) - (limit - 1 - len(head)) :]
    before, after = head.rfind(" ") + 1, tail.find(" ")
    if before > len(head) // 2 and text[len(head)] != " ":
        head = head[:before]
    if 0 <= after < len(tail) // 2:
        tail = tail[after:]
    return f"{head}…{tail}"


def natural_order(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts ``host_10`` after ``host_2``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]
