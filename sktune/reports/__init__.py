"""What people read of a study: reports, comparisons of studies, and what was learned.

Written from stored values alone; terminal output is in ``cli.views``.
"""
