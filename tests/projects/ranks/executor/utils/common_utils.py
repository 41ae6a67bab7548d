"""The helper of the recipes: a scope if enabled."""

from contextlib import nullcontext

try:
    import torch_npu  # noqa: F401
    import torchair
except ImportError:
    torchair = None


def superkernel_scope(enable: bool, scope: str, options: str = ""):
    """Return TorchAir's scope if ``enable``, else an empty context."""
    return torchair.scope.super_kernel(scope, options) if enable else nullcontext()
