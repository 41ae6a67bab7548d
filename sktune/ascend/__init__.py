"""Readers for what CANN writes (SuperKernel names, GE graphs, logs), and how a plan's scopes were fused.

Only text and files are read here; compiling for Ascend is in ``backends.npu``.
"""
