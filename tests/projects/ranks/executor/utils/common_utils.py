"""The helper of the recipes: a scope where it is wanted, nothing elsewhere."""

from contextlib import nullcontext

try:
    import torch_npu  # noqa: F401
    import torchair
except ImportError:
    torchair = None


def superkernel_scope(enable: bool, scope: str, options: str = ""):
    """Return TorchAir's scope where ``enable`` holds."""
    return torchair.scope.super_kernel(scope, options) if enable else nullcontext()
