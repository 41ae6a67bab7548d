"""Describes Inductor before it is imported."""

import os
import sys
from collections.abc import Mapping

from sktune.backends.info import BackendInfo
from sktune.backends.options import ListedOptions
from sktune.core.plan import Option
from sktune.program.sktune_program.inductor.options import INDUCTOR

EXACT: Mapping[str, Option] = {name: spec.exact for name, spec in INDUCTOR.items() if spec.exact is not None}
OPTIONS = ListedOptions("inductor", INDUCTOR)


RETAINED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(sys.maxsize)}
"""Makes glibc retain freed memory, except for blocks over 32 MiB (mallopt(3)).

By default it adapts both thresholds, the first up to 32 MiB, to the blocks that a process frees; in one of four or five
processes, each step then returned memory to the system and took it again, page by page, and plans were up to 15% slower
(benchmarks/results/processes-cpu-2-cores.md).
"""


def _worker_environment(device: str) -> Mapping[str, str]:
    """Return a worker's memory settings: on a CPU ``RETAINED_MEMORY``, unless the user has set the variables."""
    defaults = RETAINED_MEMORY if device == "cpu" else {}
    return {name: os.environ.get(name, value) for name, value in defaults.items()}


INFO = BackendInfo(
    name="inductor",
    backend_class="sktune.backends.inductor.backend:InductorBackend",
    devices=("cpu", "cuda"),
    options=OPTIONS,
    compiles_programs=True,
    artifact_installer="sktune.backends.inductor.artifacts:install",
    worker_environment=_worker_environment,
    examine="sktune.backends.inductor.availability:examine",
    examine_program="sktune.backends.inductor.availability:examine_program",
)
