"""Tests of ``sktune serve``."""
