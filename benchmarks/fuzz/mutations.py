"""Damage: to the bytes of a file, to the values in it, and to what is at its path. Knows formats, but no reader."""

import json
import os
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

BYTES = [
    b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"\x1b[2J\x1b]0;x\x07", "\u202e\u2066\x9b".encode(), b"\\ud800", b"\\u0000",
    b"NaN", b".nan", b".inf", b"-Infinity", b"1e999", b"-0", b"9" * 400, b"1" + b":59" * 2000, b"0x", b"2001-13-45",
    b"!!python/object/apply:os.system [false]", b"!!int x", b"&a [*a]", b"*a", b"<<: *a", b"? [a]\n: b\n", b"---\n",
    b"[" * 3000, b'{"a":' * 3000, b"(" * 3000, b"<" * 3000, b"-" * 3000, b"x" * 200_000, b"\n" * 5000, b" " * 50_000,
    b'"', b"'", b"`", b"{", b"}", b"]", b":", b",", b"|", b">", b"#", b"%", b"\t", b"\r", b"\\", b"../" * 30,
    b"$(false)",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**60, -(10**18), 0.0, -0.5, 1e-300, 1e300, float("inf"), float("nan"),
    "", " ", "\0", "\x1b[2J", "\ud800", "a\nb", "../../etc/passwd", "/dev/zero", "x" * 5000, "{}", "%s",
    [], {}, [[]], [None], {"": None}, {"a": {"b": {"c": 1}}}, ["a"] * 300, "2001-13-45", "=", "all", "*", "?", "(", "[",
]  # fmt: skip
BOMB = "".join(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}' if n else 'x'] * 9)}]\n" for n in range(12)).encode()


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Return ``data`` with one to three damages, to its bytes or its values."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        damages = (*_ON_VALUES, *_ON_VALUES) if rng.random() < 0.5 else _ON_BYTES
        data = rng.choice(damages)(rng, data)[: 4 << 20]
    return data


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    begin = rng.randrange(len(data) + 1)
    return begin, min(len(data), begin + int(rng.paretovariate(0.5)))


def _cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _remove(rng: random.Random, data: bytes) -> bytes:
    begin, end = _span(rng, data)
    return data[:begin] + data[end:]


def _repeat(rng: random.Random, data: bytes) -> bytes:
    begin, end = _span(rng, data)
    return data[:end] + data[begin:end] * rng.choice((1, 2, 50)) + data[end:]


def _double(_: random.Random, data: bytes) -> bytes:
    return data + data


def _flip(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 3, 30)) if data else 0):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _insert(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.choice(BYTES) + data[place:]


def _insert_at_word(rng: random.Random, data: bytes) -> bytes:
    words = data.split(b" ")
    words[rng.randrange(len(words))] = rng.choice(BYTES)
    return b" ".join(words)


def _lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    if rng.random() < 0.5:
        lines[first], lines[second] = lines[second], lines[first]
    else:
        lines.insert(first, lines[second])
    return b"\n".join(lines)


def _encode(rng: random.Random, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    return text.encode(rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7")), "replace")


def _line_ends(rng: random.Random, data: bytes) -> bytes:
    return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"", b"\x0b", b"\xe2\x80\xa8", b"\0")))


def _nothing(rng: random.Random, _: bytes) -> bytes:
    return rng.choice((b"", b"\n", b"\0" * 100, b"null", b"[]", b"{}", b"0", b'""'))


def _bomb(rng: random.Random, data: bytes) -> bytes:
    return BOMB + data if rng.random() < 0.5 else data + b"\n" + BOMB


def _value(rng: random.Random, data: bytes) -> bytes:
    """Replace, remove or nest a value, or rename or repeat a key, of a document of YAML or JSON."""
    is_json = data.lstrip()[:1] in (b"{", b"[")
    if len(data) > 60_000 or b"*b0" in data:  # the bomb would hit us, too
        return _insert(rng, data)
    try:
        document = json.loads(data) if is_json else yaml.safe_load(data)
        places = list(islice(_places(document), 20_000))
        holder, key = rng.choice(places)
        _change(rng, holder, key)
        text = json.dumps(document) if is_json else yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        return text.encode("utf-8", "surrogatepass")
    except Exception:  # noqa: BLE001 - it is damaged already
        return _insert(rng, data)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


def _change(rng: random.Random, holder: Any, key: Any) -> None:
    kind = rng.randrange(5)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[rng.choice((None, 1, True, "x", f"{key}x", str(key).upper(), "", "\x1b"))] = holder.pop(key)
    elif kind == 2:
        for _ in range(rng.choice((1, 20, 80))):
            holder[key] = [holder[key]] if rng.random() < 0.5 else {"a": holder[key]}
    else:
        holder[key] = deepcopy(rng.choice(VALUES))  # the next damage may change it


def _cell(rng: random.Random, data: bytes) -> bytes:
    """Replace a cell, or a whole column, of a table."""
    rows = [line.split(b",") for line in data.split(b"\n")]
    column = rng.randrange(max(map(len, rows)))
    chosen = range(len(rows)) if rng.random() < 0.3 else [rng.randrange(len(rows)) for _ in range(3)]
    with_value = str(rng.choice(VALUES)).encode("utf-8", "replace")
    for number in chosen:
        if column < len(rows[number]):
            rows[number][column] = with_value
    return b"\n".join(b",".join(row) for row in rows)


def _number(rng: random.Random, data: bytes) -> bytes:
    """Replace a number wherever it is."""
    digits = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
    if not digits:
        return _insert(rng, data)
    place = rng.choice(digits)
    number = str(rng.choice((0, -1, 10**9, 10**30, 0.1, "1e400", "nan", "٣", "", "1_0", "0x1"))).encode()
    return data[:place] + number + data[place + 1 :]


Damage = Callable[[random.Random, bytes], bytes]
_ON_VALUES: tuple[Damage, ...] = (_value, _value, _cell, _number)
_ON_BYTES: tuple[Damage, ...] = (
    _cut, _remove, _repeat, _double, _flip, _insert, _insert, _insert_at_word, _lines, _encode, _line_ends, _nothing,
    _bomb,
)  # fmt: skip


def damage_path(rng: random.Random, path: Path) -> None:
    """Put something else in a file's place: nothing, a folder, a pipe, a link, a device, or a file of a terabyte."""
    content = path.read_bytes()
    path.unlink()
    kind = rng.choice(("nothing", "folder", "pipe", "dangling", "loop", "parent", "device", "unreadable", "large"))
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("dangling", "loop", "parent", "device"):
        path.symlink_to({"dangling": "nowhere", "loop": str(path), "parent": "..", "device": "/dev/zero"}[kind])
    elif kind == "unreadable":
        path.write_bytes(content)
        path.chmod(0)
    elif kind == "large":
        with path.open("wb") as file:
            file.truncate(1 << 40)
