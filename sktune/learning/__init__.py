"""What trials teach: which scopes save how much, which fail, and which plan is best by that.

Pure functions of stored trials; what proposes the next plan from them is in ``samplers``.
"""
