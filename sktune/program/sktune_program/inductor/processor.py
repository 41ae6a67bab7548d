"""The processor for which g++ compiles: code with its instructions may not run on another, or give other bits."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from pathlib import Path


@cache
def processor() -> str:
    """Return the processor's name, and a digest of its instruction sets, all of which g++ uses."""
    facts = {"model name": "", "flags": "", "Features": ""}  # on Arm, the flags are in the last
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in facts and not facts[name.strip()]:
            facts[name.strip()] = value.strip()
    instructions = " ".join(sorted(f"{facts['flags']} {facts['Features']}".split()))
    digest = hashlib.sha256(instructions.encode()).hexdigest()[:12]
    return f"{facts['model name'] or platform.machine()}, instructions {digest}"
