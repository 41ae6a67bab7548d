"""Replaces what differs between runs or machines: times, versions, folders, the last digits of floats.

Digests stay: they identify studies and plans, and must not change unnoticed.
"""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

from sktune.core.events.lines import parse_event

VERSIONS = ("sktune", "torch", "transformers", "python", "torch_npu")
TIMES = ("seconds", "expected_left_s")
DRAWN = ("expected_gain_left", "gain_left")
"""Figures of draws from a posterior, which depend on how a processor rounds."""
_DRAWN = re.compile(
    r"With 95% probability no plan of this space saves more than \S+ of the step \w+ \w+"
    r"|These trials do not tell yet how much is left to gain|(?<=gain left: )\d+\.\d+%"
)
_VERSION = re.compile(rf"^( *(?:- )?(?:{'|'.join(VERSIONS)}): ).+$", re.MULTILINE)
_SECONDS = re.compile(r" *\b\d+(?:\.\d+)? s\b")
_LONG_FLOAT = re.compile(r"\d+\.\d{6,}(?:e-?\d+)?")
_DIGITS = "{:.6g}".format
_WIDTH = 100


def text(printed: str) -> str:
    """Return a text without folder, times and versions."""
    anywhere = printed.replace(str(Path.cwd()), "FOLDER")
    short = _LONG_FLOAT.sub(lambda match: _DIGITS(float(match[0])), anywhere)
    return stripped(_SECONDS.sub(" # s", _VERSION.sub(r"\1VERSION", _DRAWN.sub("WHAT IS LEFT", short))))


def stripped(printed: str) -> str:
    """Return a text without trailing spaces."""
    return "".join(f"{line.rstrip()}\n" for line in printed.splitlines())


def events(lines: str) -> str:
    """Return the events in ``lines``, laid out for a readable diff."""
    parsed = [parse_event(line) for line in lines.splitlines()]
    assert None not in parsed, lines
    return text("\n".join(laid_out(_plain(event)) for event in parsed))


def table(lines: str) -> str:
    """Return a table of comma-separated values without durations."""
    rows = list(csv.DictReader(io.StringIO(lines)))
    written = io.StringIO()
    writer = csv.DictWriter(written, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: "#" if name.endswith("_s") and value else value for name, value in row.items()})
    return text(written.getvalue())


def laid_out(value: Any, indent: int = 0) -> str:
    """Return JSON in which each value is on one line if it fits."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= _WIDTH or not isinstance(value, dict | list):
        return line
    inner = (
        [f"{json.dumps(key, ensure_ascii=False)}: {laid_out(item, indent + 1)}" for key, item in value.items()]
        if isinstance(value, dict)
        else [laid_out(item, indent + 1) for item in value]
    )
    first, last = "{}" if isinstance(value, dict) else "[]"
    space = " " * indent
    return f"{first}\n" + ",\n".join(f"{space} {item}" for item in inner) + f"\n{space}{last}"


def _plain(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _plain(item, "seconds" if key == "seconds" else name) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, key) for item in value]
    if isinstance(value, float):
        return "#" if key in (*TIMES, *DRAWN) else float(_DIGITS(value))
    return "VERSION" if key in VERSIONS and isinstance(value, str) else value
