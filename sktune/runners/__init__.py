"""What runs a plan and reports its outcome: a worker process, or a program that the user's script starts.

Which plan comes next is decided in ``tuning``.
"""
