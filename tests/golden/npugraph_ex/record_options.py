"""Records how graph-autofusion reads the options of ``super_kernel_optimize``, as facts: defaults and what is ignored.

    python -m tests.golden.npugraph_ex.record_options AOTRUN tests/golden/npugraph_ex/options.json

AOTRUN is the driver, built as ``README.md`` says. Nothing of the sources is recorded.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.golden.npugraph_ex.record_splits import answers

SOURCE = "mirror-cann/graph-autofusion 8d0b4fbc, super_kernel/src/aot/sk_options_manager.cpp"
NUMBERS = (0, 1, 2, 3, 4, 5, 64, 2**32 - 1)
LONGEST_TEXT, TOO_LONG_TEXT = "a=" + "b" * 1022, "a=" + "b" * 1023
LISTS: tuple[list[str], ...] = ([], ["MatMul.*"], ["a", "b"], [" "], ["*"], ["a+b"])
TEXTS = (
    "", " ", "a=b", " a = b ", "a=b:c=d,e", "a=b:", ":a=b", "a", "a=", "=b", "a=b=c", "a=b:a=c", "a=b,,c", "a=/b",
    "/a=b", "a b=c", "a=b+c",
)  # fmt: skip
STRATEGIES = ([0, 0, 0], [1, 1, 1], [7, 3, 2], [2**32 - 1, 4, 2**32 - 1])
STRATEGY_NAMES = ("event_breaker_bypass", "value_breaker_bypass", "task_breaker_bypass")
JOINT = (
    [["preload_code", 2], ["preload_code", 0]], [["preload_code", 7], ["preload_code", 0]],
    [["debug_per_op_max_core_num", 1]], [["debug_per_op_max_core_num", 1], ["debug_cross_core_sync_check", 0]],
    [["debug_cross_core_sync_check", 0], ["debug_per_op_max_core_num", 1]],
)  # fmt: skip
"""Options that are set together, in this order."""
PATTERNS = (
    ".*",
    "MatMul",
    "MatMul.*",
    "Mat.ul",
    ".*V3",
    "*",
    "",
    " MatMul ",
    "Mat+",
    "[M].*",
    "(Mat)Mul",
    "M*atMul",
    "Mat-Mul",
)
NAMES = ("MatMul", "MatMulV3", "Mat-Mul")


def values_of(default: object) -> Iterable[Any]:
    """Return the values to set, by the type of the default."""
    return {int: NUMBERS, list: LISTS, dict: TEXTS}.get(type(default), ())


def strategies(answer: dict[str, Any]) -> dict[str, int]:
    """Return what was read of ``aggressive_opt_strategies``."""
    return dict(zip(STRATEGY_NAMES, answer["bypass"], strict=True))


class Asked:
    """The driver, which reads lists of pairs of an option's name and value."""

    def __init__(self, aotrun: str) -> None:
        self.aotrun = aotrun
        (answer,) = answers(aotrun, [{"set": []}])
        self.types = {name: each["type"] for name, each in answer["read"].items() if "type" in each}
        self.defaults = self.read(answer)

    def read(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the values of all options."""
        values = {name: answer["read"][name]["value"] for name in self.types}
        return values | {"aggressive_opt_strategies": strategies(answer)}

    def after(self, settings: Iterable[list[list[Any]]]) -> Iterator[dict[str, Any]]:
        """Yield the values of all options after each list of settings."""
        questions = [{"set": [{"type": self.types[name], "value": value} for name, value in each]} for each in settings]
        yield from map(self.read, answers(self.aotrun, questions))


def options(asked: Asked) -> Iterator[dict[str, Any]]:
    """Yield each option with its default, and what is read of values."""
    for name, default in asked.defaults.items():
        given = STRATEGIES if name == "aggressive_opt_strategies" else values_of(default)
        found = asked.after([[name, value]] for value in given)
        yield {"name": name, "type": asked.types[name], "default": default,
               "values": [[value, each[name]] for value, each in zip(given, found, strict=True)]}  # fmt: skip


def joint(asked: Asked) -> Iterator[list[Any]]:
    """Yield settings of several options, with all that then differs from its default."""
    for given, found in zip(JOINT, asked.after(JOINT), strict=True):
        yield [given, {name: value for name, value in found.items() if value != asked.defaults[name]}]


def longest_text(asked: Asked) -> list[list[Any]]:
    """Return two lengths of ``opt_extend_option``, and whether it is read then."""
    texts = (LONGEST_TEXT, TOO_LONG_TEXT)
    found = asked.after([["opt_extend_option", text]] for text in texts)
    return [[len(text), bool(each["opt_extend_option"])] for text, each in zip(texts, found, strict=True)]


def main() -> None:
    """Write the facts."""
    asked = Asked(sys.argv[1])
    pairs = [[pattern, name] for pattern in PATTERNS for name in NAMES]
    (matches,) = answers(sys.argv[1], [{"match": pairs}])
    rows: dict[str, list[Any]] = {
        "options": list(options(asked)), "joint": list(joint(asked)), "text_lengths": longest_text(asked),
        "matches": [[*pair, found] for pair, found in zip(pairs, matches, strict=True)],
    }  # fmt: skip
    parts = [f'"{name}": [\n' + ",\n".join(map(json.dumps, part)) + "\n]" for name, part in rows.items()]
    Path(sys.argv[2]).write_text(f'{{"source": {json.dumps(SOURCE)},\n' + ",\n".join(parts) + "}\n")


if __name__ == "__main__":
    main()
