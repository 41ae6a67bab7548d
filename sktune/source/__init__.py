"""Plans in source code: edits a model's code and configuration so that they contain a plan's scopes.

It reads and writes text; the model is never imported or run here.
"""
