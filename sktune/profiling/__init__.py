"""Profiles of decode steps: read from a profiler's files, analysed, compared and drawn.

``readers.reading.read_profile`` reads any format into a kernel table, ``analysis.analyse`` finds where a step's time
goes and what scopes can save, ``comparison.compare`` compares a candidate with its baseline, ``report`` draws both.
"""
