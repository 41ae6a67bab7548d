"""What runs inside a user's program: this folder, alone, goes on the program's ``PYTHONPATH``.

``sitecustomize`` is imported by every Python of the program, ``sktune_program`` by those with a plan or a run. Neither
needs anything but the standard library and the program's own torch; sktune's own side imports ``sktune_program`` from
here for what both sides share.
"""
