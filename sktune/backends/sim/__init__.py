"""A simulated Atlas A3: a cost model prices plans, and nothing is run on a device."""
