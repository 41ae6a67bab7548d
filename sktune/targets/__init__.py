"""Targets: presets, model folders, functions and recipes, and how each is named, built and traced.

``spec`` describes a target without importing torch, ``loading`` builds it in a worker, ``tracing`` finds its units, and
``marks`` puts scopes on them. Compiling a step belongs to ``backends``, starting a recipe's program to ``recipes``.
"""

from sktune.targets.spec import (
    Application,
    ConfigSpec,
    Extent,
    FunctionSpec,
    PresetSpec,
    RecipeSpec,
    TargetSpec,
    Usage,
    describe,
)

__all__ = [
    "Application", "ConfigSpec", "Extent", "FunctionSpec", "PresetSpec", "RecipeSpec", "TargetSpec", "Usage",
    "describe",
]  # fmt: skip
