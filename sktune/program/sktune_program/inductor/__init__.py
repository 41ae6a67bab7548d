"""Scopes that are regions of a captured graph, which Inductor compiles: for programs, and for sktune's own worker.

Where a graph is cut, how its regions are compiled, and which bits they keep is described here once, for both sides.
"""
