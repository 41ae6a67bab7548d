"""Measuring and comparing latencies and bits: blocks, confidence sequences, the noise floor, the winning plan.

Works on callables and lists of samples, and knows nothing about models and studies.
"""
