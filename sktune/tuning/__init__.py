"""The search: the request, the loop of trials, budgets, the final comparison, and checking a plan again.

It decides and records; running plans is left to ``runners``, proposing them to ``samplers``. (A package named
``search`` would hide the function ``sktune.search``.)
"""
