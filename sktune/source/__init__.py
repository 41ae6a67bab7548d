"""Plans in source code: a model's code and configuration, edited so that they carry a plan's scopes.

It reads and writes text; nothing here imports the model or runs it.
"""
