"""One suite for each protocol, run on everything that implements it."""
