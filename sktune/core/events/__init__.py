"""Events: what a command or a search reports to programs while it runs, one class for each kind.

Not here: how an event is shown to people (``sktune.cli.views``), and the JSON Schema (written from these classes by
``docs/generate.py``).
"""
