"""Benchmarks: scripts to be run from the repository's root, and what they share."""
