"""Learning from trials: how much scopes save, which ones fail, and which plan is best according to that.

Pure functions of stored trials; ``samplers`` proposes the next plan from them.
"""
