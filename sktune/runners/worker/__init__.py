"""The worker runner: a process that holds the model and judges plans, and the client that keeps it alive.

It is used where sktune loads the model itself.
"""
