"""The automatic analysis of the scope guide: one call from a model to a recommendation with its evidence.

It interprets a finished search; searching is in ``tuning``.
"""
