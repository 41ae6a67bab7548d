"""The program runner: restarts the user's program for each plan, on one rank or many, and observes it from inside.

It is used for recipes, where sktune does not load the model.
"""
