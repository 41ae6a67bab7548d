"""Reads the part of YAML in which sktune writes plan files: exactly as PyYAML's safe loader, or not at all.

That part is block mappings and lists, flow mappings and lists on one line, plain and quoted scalars on one line, and
comments. What PyYAML may read differently, or only a longer program reads, is refused with its line. Source of the
forms of scalars: YAML 1.1, as PyYAML 6 resolves them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import PlanError

MAX_DEPTH = 64
MAX_CHARACTERS = 64
"""Of a number; of a key, see ``MAX_KEY_CHARACTERS``."""
MAX_KEY_CHARACTERS = 1000
_READABLE = re.compile("[\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*")
_WORDS: Mapping[str, Any] = {
    **dict.fromkeys(("~", "null", "Null", "NULL")),
    **{spelled: True for word in ("yes", "true", "on") for spelled in (word, word.capitalize(), word.upper())},
    **{spelled: False for word in ("no", "false", "off") for spelled in (word, word.capitalize(), word.upper())},
    ".inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan"),
}  # fmt: skip
_INTEGER = re.compile("[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?[0-9]+\.[0-9]*([eE][-+][0-9]+)?")
_OTHER = re.compile(
    r"[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?[1-9][0-9_]*|[-+]?0x[0-9a-fA-F_]+|[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+"
    r"|[-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)?|\.[0-9][0-9_]*([eE][-+][0-9]+)?"
    r"|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)|[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt]| +)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(\.[0-9]*)?"
    r"( *(Z|[-+][0-9]{1,2}(:?[0-9]{2})?))?|=|<<"
)
"""Numbers in other notations, dates, and the keys of merges and default values."""
_INDICATOR = re.compile("""[-?:]( |$)|[,\\[\\]{}#&*!|>'"%@`]""")
"""What no plain scalar begins with."""
_FLOW_WORD = re.compile(r"[A-Za-z0-9_./+-]+")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\[0abtnvfre "/\\NLP_]|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8})*)"')
_SINGLE = re.compile("'((?:[^']|'')*)'")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))")
_ESCAPED = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    "N": "\x85", "L": "\u2028", "P": "\u2029", "_": "\xa0",
}  # fmt: skip


@dataclass(frozen=True)
class _Line:
    """A line that is neither empty nor a comment.

    Attributes:
        number: from 1.
        indent: spaces before its text.
        text: without spaces at its ends; a comment may follow.
    """

    number: int
    indent: int
    text: str


def read_yaml(text: str, source: str) -> Any:
    """Return the values of a document; ``source`` names it in messages.

    Raises:
        PlanError: the document is not of this part of YAML; one line with the line and the fix.
    """
    return _Reader(text, source).document()


class _Reader:
    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._lines: list[_Line] = []
        for number, line in enumerate(text.split("\n"), 1):
            content = line.strip(" ")
            if not _READABLE.fullmatch(line):
                raise self._refused(number, "a tab or another character that is not printed")
            if line.startswith(("---", "...", "%")):
                raise self._refused(number, "a marker of documents")
            if content and not content.startswith("#"):
                self._lines.append(_Line(number, len(line) - len(line.lstrip(" ")), content))
        self._next = 0

    def document(self) -> Any:
        if not self._lines:
            return None
        value = self._block(self._lines[0].indent, 0)
        if self._next < len(self._lines):
            raise self._refused(self._lines[self._next].number, "a line that is indented otherwise than those before")
        return value

    def _refused(self, number: int, what: str) -> PlanError:
        return PlanError(
            f"{self._source}:{number}: {what} cannot be read in programs, which may lack PyYAML; write the line as "
            "sktune writes plan files, or save the plan as JSON, under a name that ends with .json"
        )

    def _line(self) -> _Line | None:
        return self._lines[self._next] if self._next < len(self._lines) else None

    def _block(self, indent: int, depth: int) -> Any:
        """Return the mapping or list whose lines begin at ``indent``, from the next line on."""
        line: _Line | None = self._lines[self._next]
        assert line is not None
        if depth > MAX_DEPTH:
            raise self._refused(line.number, f"what is nested more than {MAX_DEPTH} times")
        is_list = _is_item(line.text)
        items: list[Any] = []
        mapping: dict[Any, Any] = {}
        while line is not None and line.indent == indent and _is_item(line.text) == is_list:
            if is_list:
                rest = line.text[1:].lstrip(" ")
                inner = _Line(line.number, indent + len(line.text) - len(rest), rest)
                if rest and not rest.startswith("#") and (_is_item(rest) or self._key(inner) is not None):
                    self._lines[self._next] = inner
                    items.append(self._block(inner.indent, depth + 1))
                else:
                    items.append(self._rest(line, rest, indent, depth, lists_too=False))
            else:
                found = self._key(line)
                if found is None:
                    raise self._refused(line.number, "a line without `key: `")
                key, rest = found
                if key in mapping:
                    raise self._refused(line.number, f"the key {key!r}, for the second time,")
                mapping[key] = self._rest(line, rest, indent, depth, lists_too=True)
            line = self._line()
        if line is not None and line.indent > indent:
            raise self._refused(line.number, "a value that goes on in another line")
        return items if is_list else mapping

    def _rest(self, line: _Line, text: str, indent: int, depth: int, *, lists_too: bool) -> Any:
        """Leave a line; return the value ``text`` that it ends with, or else the block after it, or else None."""
        self._next += 1
        following = self._line()
        is_nested = following is not None and following.indent > indent
        if not text or text.startswith("#"):
            is_list = following is not None and following.indent == indent and _is_item(following.text)
            if following is None or not (is_nested or (lists_too and is_list)):
                return None
            return self._block(following.indent, depth + 1)
        if following is not None and is_nested:
            raise self._refused(following.number, "a value that goes on in another line")
        value, end = self._value(line, text, 0, depth)
        rest = text[end:]
        if rest.strip(" ") and not re.match(" +#", rest):
            raise self._refused(line.number, f"{rest.strip(' ')[:20]!r} after a value")
        return value

    def _key(self, line: _Line) -> tuple[Any, str] | None:
        """Return a line's key, and what follows its colon; None if there is no key."""
        text = line.text
        if text[0] in "'\"":
            key, end = self._quoted(line, text, 0)
            after = text[end:].lstrip(" ")
            if not after.startswith(":"):
                return None
            rest = after[1:]
        elif text[0] in "[{":
            return None
        else:
            match = re.search(r":(?= |$)", text)
            comment = text.find(" #")
            if match is None or 0 <= comment < match.start():
                return None
            end = match.start()
            key, rest = self._plain(line, text[:end].rstrip(" ")), text[match.end() :]
        if rest and not rest.startswith(" "):
            raise self._refused(line.number, "a key without a space after its colon")
        if end > MAX_KEY_CHARACTERS:
            raise self._refused(line.number, f"a key of more than {MAX_KEY_CHARACTERS} characters")
        return key, rest.lstrip(" ")

    def _value(self, line: _Line, text: str, start: int, depth: int) -> tuple[Any, int]:
        """Return the value at ``start``, and where it ends."""
        if text[start] in "'\"":
            return self._quoted(line, text, start)
        if text[start] in "[{":
            return self._flow(line, text, start, depth + 1)
        comment = text.find(" #", start)
        end = len(text) if comment < 0 else comment
        plain = text[start:end].rstrip(" ")
        if ": " in plain or plain.endswith(":"):
            raise self._refused(line.number, "a second colon")
        return self._plain(line, plain), end

    def _flow(self, line: _Line, text: str, start: int, depth: int) -> tuple[Any, int]:
        """Return the flow mapping or list that begins at ``start``, and where it ends."""
        if depth > MAX_DEPTH:
            raise self._refused(line.number, f"what is nested more than {MAX_DEPTH} times")
        is_mapping, closing = text[start] == "{", "}" if text[start] == "{" else "]"
        mapping: dict[Any, Any] = {}
        items: list[Any] = []
        at = _skip(text, start + 1)
        while text[at : at + 1] != closing or mapping or items:
            value, at = self._flow_value(line, text, at, depth, allows_flow=not is_mapping)
            if is_mapping:
                if text[at : at + 2] != ": ":
                    raise self._refused(line.number, "a part of {} without `key: value`")
                if value in mapping:
                    raise self._refused(line.number, f"the key {value!r}, for the second time,")
                mapping[value], at = self._flow_value(line, text, _skip(text, at + 1), depth, allows_flow=True)
            else:
                items.append(value)
            at = _skip(text, at)
            if text[at : at + 1] == closing:
                break
            if text[at : at + 1] != ",":
                raise self._refused(line.number, f"{text[at:][:20]!r} inside of {{}} or []")
            at = _skip(text, at + 1)
        return (mapping if is_mapping else items), at + 1

    def _flow_value(self, line: _Line, text: str, at: int, depth: int, *, allows_flow: bool) -> tuple[Any, int]:
        if text[at : at + 1] in ("'", '"'):
            return self._quoted(line, text, at)
        if allows_flow and text[at : at + 1] in ("[", "{"):
            return self._flow(line, text, at, depth + 1)
        word = _FLOW_WORD.match(text, at)
        if word is None:
            raise self._refused(line.number, f"{text[at:][:20]!r} inside of {{}} or []")
        return self._plain(line, word[0]), word.end()

    def _quoted(self, line: _Line, text: str, start: int) -> tuple[str, int]:
        match = (_SINGLE if text[start] == "'" else _DOUBLE).match(text, start)
        if match is None:
            raise self._refused(line.number, "text whose quotes are not closed in its line, or another escape,")
        if text[start] == "'":
            return match[1].replace("''", "'"), match.end()
        value = _ESCAPE.sub(_unescaped, match[1])
        if re.search("[\ud800-\udfff]", value):
            raise self._refused(line.number, "half of a character")
        return value, match.end()

    def _plain(self, line: _Line, text: str) -> Any:
        """Return the value of a plain scalar."""
        if text in _WORDS:
            return _WORDS[text]
        is_number = len(text) <= MAX_CHARACTERS
        if is_number and _INTEGER.fullmatch(text):
            return int(text)
        if is_number and _FLOAT.fullmatch(text):
            return float(text)
        if not text or _INDICATOR.match(text) or _OTHER.fullmatch(text):
            raise self._refused(line.number, f"{text[:40]!r} without quotes")
        return text


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _skip(text: str, at: int) -> int:
    """Return the place of the next character that is no space."""
    while text[at : at + 1] == " ":
        at += 1
    return at


def _unescaped(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    if digits is None:
        return _ESCAPED.get(match[4], match[4])
    number = int(digits, 16)
    return chr(number) if number <= 0x10FFFF else "\ud800"
