"""The search: the request, the loop of trials, time budgets, the final comparison, and rechecks.

It decides and records; workers run plans, and ``samplers`` propose them. (A package named ``search`` would hide the
function ``sktune.search``.)
"""
