"""What users see, kept as files: each change of it is a change of a file below ``files/``, to be read in a diff.

``pytest tests/golden --rewrite-golden`` writes them anew.
"""
