"""Profiles of decode steps: read from a profiler's files, analysed, compared and drawn.

``reading.read_profile`` gives one kernel table for every format, ``analysis.analyse`` says where a step's time goes
and what scopes can save, ``comparison.compare`` sets a candidate beside its baseline, ``timeline.render`` draws both.
"""
