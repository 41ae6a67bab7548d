"""The side of sktune that runs inside programs."""
