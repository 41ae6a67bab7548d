"""Programs that a script starts, on one rank or many: restarted for each plan, and observed from inside.

It is used for recipes, where sktune does not load the model.
"""
