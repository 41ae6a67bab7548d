"""Measuring and comparing latencies and bits: blocks, confidence sequences, the noise floor, which plan wins.

What is measured is a callable or a list of samples; plans, models and studies are unknown here.
"""
