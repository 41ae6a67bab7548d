"""The part of sktune that runs inside a user's program, with the program's own Python and torch.

It knows neither search spaces nor units: it follows the instructions of a task or a plan file, and reports what it
sees. Only relative imports and the standard library, and torch once the program has imported it; Python 3.9 and later.
"""
