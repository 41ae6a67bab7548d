"""Landscapes: search spaces whose every plan has a known latency. See README.md in this folder."""
