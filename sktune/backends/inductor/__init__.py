"""Inductor on CPU and CUDA: scopes become compiled regions, everything else uses eager's kernels."""
