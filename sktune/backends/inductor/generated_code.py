"""The code that Inductor generates, and its identity: equal for equal code, in every process."""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch._inductor.codecache import PyCodeCache
from torch._inductor.codegen.cpp_template import CppTemplate
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.select_algorithm import TritonTemplate

_PASSING = re.compile(r" at 0x[0-9a-f]+|^# AOT ID: .*$", re.MULTILINE)
"""What holds for one process: addresses of Inductor's own functions, and the number of the graph."""


@contextmanager
def recorded_code() -> Iterator[list[str]]:
    """Collect digests of the code modules that Inductor loads, whether it made them now or earlier."""
    digests: list[str] = []
    load = PyCodeCache.load_by_key_path

    def recorded(key: str, path: str, *arguments: Any, **keywords: Any) -> Any:
        source = _PASSING.sub("", Path(path).read_text(encoding="utf-8"))
        digests.append(hashlib.sha256(source.encode()).hexdigest())
        return load(key, path, *arguments, **keywords)

    with patch.object(PyCodeCache, "load_by_key_path", recorded):
        yield digests


@contextmanager
def lasting_names() -> Iterator[None]:
    """Within the context, generated code does not depend on what the process has compiled before.

    Inductor numbers its templates through the life of a process, and writes into a comment where in memory a constant
    is: no timing and no library would be found again in another process. Constants are handed to the code when it is
    called or loaded, so code that is equal may be shared.
    """

    def without_address(write: Callable[..., None]) -> Callable[..., None]:
        return lambda self, name, described: write(self, name, described.rpartition(" ")[0])

    with ExitStack() as stack:
        for template in (CppTemplate, TritonTemplate):
            stack.enter_context(patch.object(template, "index_counter", itertools.count()))
        for generator in (PythonWrapperCodegen, CppWrapperCpu):
            own = without_address(generator.write_constant)
            stack.enter_context(patch.object(generator, "write_constant", own))
        yield
