"""The kinds of scopes, by their names in plan files."""

from enum import StrEnum


class ScopeFlavour(StrEnum):
    """What a scope is compiled to. The values are those of ``backend`` in a plan file of version 1."""

    REGION = "inductor"
    """A region of the captured graph that is compiled as a whole; marked by two operators of sktune."""
    SUPERKERNEL = "npu"
    """One kernel of a GE graph on Ascend; marked by ``torchair.scope.super_kernel``."""
    CAPTURED = "npugraph-ex"
    """One kernel of a captured graph on Ascend; marked by ``torch.npu.super_kernel_scope_begin`` and ``_end``."""
