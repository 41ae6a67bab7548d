"""Studies: the trials of one target in an Optuna storage, who may add to them, and what follows from them.

Nothing here runs a trial or writes for a reader; ``tuning`` and ``reports`` do.
"""
