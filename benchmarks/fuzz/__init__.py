"""Damaged inputs for every command: ``python -m benchmarks.fuzz --inputs 10000`` runs as many for each.

``mutations`` damages bytes, values and files without knowing what reads them; ``inputs`` has real files for each
command and its arguments; ``harness`` runs a command in this process and judges how it ends.
"""
