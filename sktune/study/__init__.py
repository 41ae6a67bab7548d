"""Studies: the trials of one target in an Optuna storage, who may add to them, and their result.

Nothing here runs trials (``tuning`` does) or writes reports (``reports`` does).
"""
