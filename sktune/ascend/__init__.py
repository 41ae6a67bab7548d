"""Readers for what CANN writes (SuperKernel names, GE graphs, logs), and how a plan's scopes were fused.

Only text and files are read here; compiling for Ascend is in ``backends.npu``.
"""

NOT_RESTATED = (
    "streams and order of operators, which GE assigns after TorchAir",
    "splits by libascendsk.so, where streams or a SyncAll on fewer cores would deadlock",
    "views that GE leaves on a stream, where they cut a scope",
    "sub-kernels with dynamic shapes, and operators whose tiling may run on AI CPU",
    "which kernels have hooks for early start",
)
"""What GE and graph-autofusion do with scopes that ``superkernel_pass`` and ``superkernel_code`` do not know."""
