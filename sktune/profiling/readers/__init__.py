"""Readers of profiles, one for each file format; all return the same kernel table.

The interpretation of the kernels is in ``profiling``.
"""
