"""What is generated for a SuperKernel, against facts recorded from graph-autofusion's own generator.

``tests/golden/ge/README.md`` says how they were recorded.
"""

import json
from collections import Counter
from typing import Any

from sktune.ascend.superkernel_code import generate
from sktune.ascend.superkernel_parts import GeneratedCode, KernelType, Refusal, SubKernel
from tests.builders import TESTS

CASES = json.loads((TESTS / "golden" / "ge" / "code.json").read_text())["cases"]
CORES = ("cube", "vector", "mix")
"""By the numbers that early-start borders use."""


def kernel(recorded: list[Any]) -> SubKernel:
    """Return a recorded sub-kernel."""
    kind, blocks, stream, sends, receives, calls_sync_all, text_bytes = recorded
    return SubKernel(KernelType(kind), blocks, stream, tuple(sends), tuple(receives), calls_sync_all, text_bytes)


def facts(code: GeneratedCode | Refusal) -> dict[str, Any]:
    """Return what was generated in the form of the recorded facts."""
    if isinstance(code, Refusal):
        return {"refused": code.name}
    borders = Counter(
        {str(CORES.index(one) << 2 | CORES.index(other)): count for (one, other), count in code.borders.items()}
    )
    signals = Counter(code.signals)
    if code.clears_workspace and code.kernel_type.core == "mix":
        signals["vector"] += 1
    return {
        "type": str(code.kernel_type), "blocks": code.blocks, "two_streams": code.is_two_streams,
        "barriers": {core: code.barriers.get(core, 0) for core in ("mix", "cube", "vector")},
        "signals": {core: signals[core] for core in ("cube", "vector")}, "borders": dict(borders),
        "waits": code.waits, "notifies": code.notifies, "lines": code.preloaded_lines, "fed": list(code.fed),
        "copies": code.copies,
    }  # fmt: skip


def test_the_code_is_the_generators() -> None:
    """Kernel type, blocks, barriers by cores, signals, borders, waits, notifications, preloads, feeds and refusals."""
    for number, case in enumerate(CASES):
        generated = generate([kernel(each) for each in case["kernels"]], case["options"])
        assert facts(generated) == case["facts"], number
