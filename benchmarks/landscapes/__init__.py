"""Landscapes: search spaces with a known latency for every plan. See README.md in this folder."""
