"""Benchmarks: scripts to run from the repository's root, and their shared modules."""
