"""npugraph_ex's side of a plan: how a program calls ``torch.compile`` for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import PlanError
from .plan import Option

NPUGRAPH_EX = "npugraph_ex"
"""Its name as a backend of ``torch.compile``."""


def optimize_options(options: Mapping[str, Option]) -> dict[str, Any]:
    """Return ``super_kernel_optimize_options`` for a plan's options of the whole step: what they set, nothing else.

    Texts are lists of patterns.
    """
    return {
        name: value.split(",") if isinstance(value, str) else value for name, value in options.items() if value != ""
    }


def compile_options(options: Mapping[str, Option], own: Mapping[str, Any], *, has_scopes: bool) -> dict[str, Any]:
    """Return the options of ``torch.compile`` for a plan. SuperKernels need static kernels, and so has the baseline.

    Args:
        options: of the plan, for the whole step.
        own: the program's; what it says of SuperKernels is replaced.
        has_scopes: whether the plan has any.
    """
    kept = {name: value for name, value in own.items() if not name.startswith("super_kernel_")}
    compiled = {**kept, "static_kernel_compile": True}
    if has_scopes:
        compiled["super_kernel_optimize"] = True
        compiled["super_kernel_optimize_options"] = optimize_options(options)
    return compiled


def program_keywords(
    options: Mapping[str, Option], keywords: Mapping[str, Any], *, has_scopes: bool
) -> Mapping[str, Any]:
    """Return the keywords of ``torch.compile`` for a plan, instead of the program's.

    Raises:
        PlanError: the program does not use npugraph_ex.
    """
    if keywords.get("backend") != NPUGRAPH_EX:
        raise PlanError(
            f"the plan is for npugraph_ex, but the program compiles its decode step with {keywords.get('backend')!r}; "
            "use the mode that the plan was made in, or search in this one"
        )
    return {**keywords, "options": compile_options(options, keywords.get("options") or {}, has_scopes=has_scopes)}
