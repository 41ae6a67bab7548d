"""Inductor on CPU and CUDA: scopes become regions that are compiled, the rest keeps eager's kernels."""
