"""The names that the recipes' models import."""

from executor.utils.common_utils import superkernel_scope

__all__ = ["superkernel_scope"]
