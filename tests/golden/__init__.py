"""Output that users see, stored as files below ``files/``: the diff of a golden file shows each change.

``pytest tests/golden --rewrite-golden`` writes them again.
"""
