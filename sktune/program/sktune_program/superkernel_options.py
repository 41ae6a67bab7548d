"""The options of a SuperKernel scope: their values, effects and roles; reading and writing them as TorchAir's string.

``torchair.scope.super_kernel(label, options)`` takes one string, ``name=value:name=value``. GE passes it on unread, and
graph-autofusion rejects a mistake with EB0500 after minutes of compiling. This module rejects the same mistakes up
front. Source, for the GE path: super_kernel_option_parse.py of graph-autofusion and of asc_op_compile_base, CANN 8.5 to
9.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from .errors import SpaceError, nearest
from .plan import Option

Role = Literal["searched", "rescue", "probe", "diagnosis"]
"""Tried by the search; set once after a hang; to find out whether a scope can be fused at all; for debugging."""

MAX_AIC, MAX_AIV = 24, 48  # cube and vector cores of one Atlas A3 die: cann-recipes-infer, LongCat-Flash

# The compiler's code reads these, but its option parser rejects them (graph-autofusion, super_kernel_option_parse.py).
_NOT_PARSED = frozenset({"link-mode", "preload-data"})


@dataclass(frozen=True)
class _Values:
    """The values that an option may have. ``read`` returns ``None`` for text that the parser rejects."""

    description: str
    read: Callable[[str], Option | None]


def _one_of(*values: str) -> _Values:
    return _Values(f"one of {', '.join(values)}", lambda text: text if text in values else None)


def _integers(low: int, high: int) -> _Values:
    def read(text: str) -> int | None:
        return int(text) if re.fullmatch("[0-9]{1,9}", text) and low <= int(text) <= high else None

    return _Values(f"{low} to {high}", read)


def _power_of_two(text: str) -> int | None:
    number = int(text) if re.fullmatch("[0-9]{1,9}", text) else 1
    return number if number != 1 and number & (number - 1) == 0 else None


def _list(description: str, item: str) -> _Values:
    return _Values(description, lambda text: text if re.fullmatch(f"{item}(,{item})*", text) else None)


def _choice(*numbers: int) -> _Values:
    # The parser compares these as text: "01" is not 1.
    description = f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"
    return _Values(description, lambda text: int(text) if text in map(str, numbers) else None)


_FLAG = _choice(0, 1)
TYPES = _list("operator types, joined by commas", "[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class SuperKernelOption:
    """One option.

    Attributes:
        default: the value of an option that is not given; ``""`` for one that then has no effect at all.
        choices: values worth a trial, the default first; operator types come from the model.
        since: first version of torchair's documentation or of CANN that is known to have it.
    """

    name: str
    values: _Values
    default: Option
    role: Role
    effect: str
    choices: tuple[Option, ...] = ()
    documented: bool = False
    since: str = ""


TABLE = (
    SuperKernelOption(
        "stream-fusion", _FLAG, 0, "searched",
        "cube and vector cores run operators of two streams concurrently; no hooks for early start", (0, 1), True,
        "torchair 7.1.0",
    ),
    SuperKernelOption(
        "early-start", _choice(0, 1, 2), 1, "searched",
        "0: full barrier between operators; 1: the next operator's prologue overlaps; 2: barriers of 1, without hooks",
        (1, 0, 2),
    ),
    SuperKernelOption(
        "preload-code", _one_of("per-func", "max", "none"), "per-func", "searched",
        "code preloaded into the instruction cache: the next sub-kernel, all code, nothing",
        ("per-func", "max", "none"),
    ),
    SuperKernelOption(
        "split-mode", _integers(1, 64), 4, "searched",
        "copies of each sub-kernel, so that cores fetch from different addresses; more compile time", (4, 1, 2, 8),
    ),
    SuperKernelOption(
        "func-align", _Values("0 or a power of two from 2 up", _power_of_two), 512, "searched",
        "alignment of a sub-kernel's code, bytes", (512, 256, 1024),
    ),
    SuperKernelOption(
        "dcci-before-kernel-start", TYPES, "", "searched",
        "clean the data cache before these operators instead of refreshing single lines", (), True,
        "CANN 8.5.0, torchair 26.0.0",
    ),
    SuperKernelOption(
        "dcci-after-kernel-end", TYPES, "", "searched",
        "clean the data cache after these operators instead of refreshing single lines", (), True,
        "CANN 8.5.0, torchair 26.0.0",
    ),
    SuperKernelOption(
        "dcci-disable-on-kernel", TYPES, "", "searched",
        "no cache refresh for these operators: can give wrong results", (), True, "CANN 8.5.0, torchair 26.0.0",
    ),
    SuperKernelOption(
        "feed-sync-all", _FLAG, 0, "rescue",
        "idle cores join a smaller operator's SyncAll, to prevent hangs", (0, 1), True, "torchair docs of 2026-03",
    ),
    SuperKernelOption(
        "strict-scope-check", _one_of("bypass", "abort"), "", "probe",
        "on the first operator that cannot be fused: drop the whole scope, or fail; collectives are not checked",
        (), True,
    ),
    SuperKernelOption(
        "debug-aic-num", _integers(1, MAX_AIC), "", "diagnosis", "cube cores that the SuperKernel is launched on",
        (), True, "CANN 8.5.0, torchair 26.0.0",
    ),
    SuperKernelOption(
        "debug-aiv-num", _integers(1, MAX_AIV), "", "diagnosis", "vector cores that the SuperKernel is launched on",
        (), True, "CANN 8.5.0, torchair 26.0.0",
    ),
    SuperKernelOption("profiling", _FLAG, 0, "diagnosis", "record a time stamp for each operator; changes the timing"),
    SuperKernelOption("debug-sync-all", _FLAG, 0, "diagnosis", "synchronise all cores after each operator; slow"),
    SuperKernelOption("debug-dcci-all", _FLAG, 0, "diagnosis", "clean the data cache after each operator; slow"),
    SuperKernelOption(
        "compile-options", _list("compiler flags, joined by commas", r"[^\s:,]+"), "", "diagnosis",
        "appended to the compiler's command line; can break the build",
    ),
)  # fmt: skip

SUPERKERNEL_OPTIONS: Mapping[str, SuperKernelOption] = {option.name: option for option in TABLE}


def check_option(name: str, value: Option) -> None:
    """Raise ``SpaceError`` unless the compiler accepts ``name=value``."""
    if not name:
        raise SpaceError(f"an option has no name before {f'={value}'!r}; write name=value")
    if name in _NOT_PARSED:
        raise SpaceError(f"option {name!r} exists in the compiler's code, but its parser rejects it; leave it out")
    if name not in SUPERKERNEL_OPTIONS:
        raise SpaceError(f"SuperKernel has no option {name!r}{nearest(name, SUPERKERNEL_OPTIONS)}")
    if value == "":
        raise SpaceError(f"option {name} has no value; give one, or leave the option out")
    if isinstance(value, str) and ":" in value:
        raise SpaceError(f"option {name} cannot contain ':', which ends an option, got {value!r}; remove it")
    values = SUPERKERNEL_OPTIONS[name].values
    # True == 1 in Python, but the compiler's parser reads neither "True" nor 1.0.
    read = values.read(str(value))
    if read is None or type(read) is not type(value):
        raise SpaceError(f"option {name} must be {values.description}, got {value!r}")


def check_options(options: Mapping[str, Option]) -> None:
    """Raise ``SpaceError`` for anything that the compiler rejects with EB0500, and for contradictory options."""
    for name, value in options.items():
        check_option(name, value)
    disabled = types_in(options, "dcci-disable-on-kernel")
    for name in ("dcci-before-kernel-start", "dcci-after-kernel-end"):
        both = disabled & types_in(options, name)
        if both:
            raise SpaceError(f"dcci-disable-on-kernel overrides {name} for {min(both)}; name it in one of them")
    aic, aiv = options.get("debug-aic-num"), options.get("debug-aiv-num")
    if isinstance(aic, int) and isinstance(aiv, int) and aiv not in (aic, 2 * aic):
        raise SpaceError(
            f"debug-aiv-num must be debug-aic-num or twice that, got {aiv} for {aic}; "
            f"use {aic} or {2 * aic}, or leave one out"
        )


def parse(text: str) -> dict[str, Option]:
    """Parse the option string of ``super_kernel(label, options)``.

    Raises:
        SpaceError: the compiler would reject the string, or GE would skip a part of it with a warning.
    """
    if not isinstance(text, str):
        raise SpaceError(f"options of a scope must be text, got {text!r}; write '' for none")
    options: dict[str, Option] = {}
    for token in filter(None, (part.strip() for part in text.strip().strip('"').split(":"))):
        name, separator, value = (part.strip() for part in token.partition("="))
        if not separator:
            raise SpaceError(f"{token!r} is not an option, and GE would skip it; write name=value, or leave it out")
        if name in options:
            raise SpaceError(f"option {name} is given twice; leave one out")
        known = SUPERKERNEL_OPTIONS.get(name)
        read = known.values.read(value) if known else None
        options[name] = value if read is None else read
        check_option(name, options[name])
    check_options(options)
    return options


def render(options: Mapping[str, Option]) -> str:
    """Return the option string for ``super_kernel(label, options)``; it is the same for equal options.

    Raises:
        SpaceError: as ``check_options``.
    """
    check_options(options)
    return ":".join(f"{name}={options[name]}" for name in SUPERKERNEL_OPTIONS if name in options)


def types_in(options: Mapping[str, Option], name: str) -> frozenset[str]:
    return frozenset(filter(None, str(options.get(name, "")).split(",")))
