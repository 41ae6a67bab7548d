"""Contracts: one suite for each protocol, run over everything that fulfils it."""
