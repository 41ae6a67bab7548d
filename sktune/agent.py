"""For programs: one JSON object a line on standard output."""

import json
import math
import sys
from typing import Any


def print_event(event: dict[str, Any]) -> None:
    """Print one event; figures that JSON cannot hold become null."""
    sys.stdout.write(json.dumps(_plain(event), ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
