"""Reports for people: on a study, on several studies side by side, and on what a study has learned.

They are written from stored values only; terminal output is in ``cli.views``.
"""
