"""``sktune serve``: pages of studies while their searches run, on this machine alone and read-only."""
