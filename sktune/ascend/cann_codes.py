"""CANN's error codes: what each means, and what to do, as data with its sources (``cann_codes.yaml``)."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

TABLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
CORE_CODES: dict[str, str] = {
    name: str(code) for number, (code, words) in TABLE["scheduler"].items() for name in (f"{number:#x}", words)
}
"""The return code that follows a kernel's failure on a core, by the scheduler's ``retCode`` and by its words."""


@dataclass(frozen=True, slots=True)
class Code:
    """What is known of an error code.

    Attributes:
        name: as in logs: ``E40021``, or a return code of six digits.
        family: the part of CANN that it comes from; empty if that is not documented.
        kind: a ``sktune.ascend.cann_log.Kind``.
        means, action: empty if CANN's documents do not have the code.
        is_internal: whether it stands for an internal error, which is often the consequence of another.
    """

    name: str
    family: str
    kind: str
    means: str = ""
    action: str = ""
    is_internal: bool = False


@cache
def code(name: str) -> Code:
    """Return what is known of a code; CANN documents its families, and that 9000 to 9999 are internal errors."""
    key: str | int = int(name) if name.isdecimal() else name
    families, unknown = TABLE["families"], {"name": "", "kind": "runtime"}
    family = TABLE["return_codes"] if name.isdecimal() else families.get(name[1], unknown)
    is_internal = not name.isdecimal() and (name[2] == "9" or name.endswith("8888"))
    unlisted = ("an internal error", "the lines before it say where it began") if is_internal and family["name"] else ()
    means, action, *kind = family.get("codes", {}).get(key, unlisted) or ("", "")
    return Code(name, family["name"], kind[0] if kind else family["kind"], means, action, is_internal)
