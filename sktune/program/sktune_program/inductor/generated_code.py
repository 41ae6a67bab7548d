"""The identity of the code that Inductor generates: equal for equal code, in every process."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..torch_private import replaced, resolve

_PROCESS_SPECIFIC = re.compile(r" at 0x[0-9a-f]+|^# AOT ID: .*$", re.MULTILINE)
"""Text that differs between processes: addresses of Inductor's functions, and the number of the graph."""


@contextmanager
def recorded_code() -> Iterator[list[str]]:
    """Collect digests of the code modules that Inductor loads, whether generated now or earlier."""
    digests: list[str] = []
    load = resolve("PyCodeCache.load_by_key_path")

    def recorded(key: str, path: str, *arguments: Any, **keywords: Any) -> Any:
        source = _PROCESS_SPECIFIC.sub("", Path(path).read_text(encoding="utf-8"))
        digests.append(hashlib.sha256(source.encode()).hexdigest())
        return load(key, path, *arguments, **keywords)

    with replaced("PyCodeCache.load_by_key_path", recorded):
        yield digests


@contextmanager
def stable_names() -> Iterator[None]:
    """Within the context, generated code does not depend on what the process has compiled before.

    Inductor numbers its templates per process, and writes the address of a constant into a comment: another process
    would not find timings and libraries. Constants are passed to the code when it is called or loaded, so equal code
    can be shared.
    """

    def without_address(write: Callable[..., None]) -> Callable[..., None]:
        return lambda self, name, described: write(self, name, described.rpartition(" ")[0])

    with ExitStack() as stack:
        for numbers in ("CppTemplate.index_counter", "TritonTemplate.index_counter"):
            stack.enter_context(replaced(numbers, itertools.count()))
        for writer in ("PythonWrapperCodegen.write_constant", "CppWrapperCpu.write_constant"):
            stack.enter_context(replaced(writer, without_address(resolve(writer))))
        yield
