"""The options of a plan for npugraph_ex as its programs pass them."""

from typing import Any

from sktune.core.plan import Plan


def optimize_options(plan: Plan) -> dict[str, Any]:
    """Return ``super_kernel_optimize_options`` for a plan: what it sets, nothing else. Texts are lists of patterns."""
    return {name: value.split(",") if isinstance(value, str) else value for name, value in plan.options if value != ""}
