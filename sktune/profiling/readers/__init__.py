"""Readers of profiles, one for each file format; all give the same kernel table.

What the kernels mean belongs to ``profiling``.
"""
