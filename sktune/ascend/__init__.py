"""What CANN names and writes: SuperKernels' names, GE graphs, logs, and what became of a plan's scopes in them.

Texts and files are read here; compiling for Ascend is in ``backends.npu``.
"""
