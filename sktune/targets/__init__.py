"""What is tuned: presets, model folders, functions and recipes, how each is named, built and traced.

``spec`` says what a target is, without torch; ``loading`` builds it, in a worker; ``tracing`` finds its units, and
``marks`` puts scopes on them. What compiles a step is in ``backends``; what starts a recipe's program in ``runners``.
"""

from sktune.targets.spec import ConfigSpec, FunctionSpec, PresetSpec, RecipeSpec, TargetSpec, describe
from sktune.targets.usage import Application, Extent, Usage

__all__ = [
    "Application", "ConfigSpec", "Extent", "FunctionSpec", "PresetSpec", "RecipeSpec", "TargetSpec", "Usage",
    "describe",
]  # fmt: skip
