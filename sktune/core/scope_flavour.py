"""The two kinds of scopes, by the name that plan files have for them."""

from enum import StrEnum


class ScopeFlavour(StrEnum):
    """What a scope becomes. The values are those of ``backend`` in a plan file of version 1."""

    REGION = "inductor"
    """A part of the captured graph that is compiled as one; marked by two operators of sktune."""
    SUPERKERNEL = "npu"
    """One kernel on Ascend; marked by ``torchair.scope.super_kernel``."""
