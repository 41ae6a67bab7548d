"""Plans applied to a checkout of cann-recipes-infer: what is expressed is read and entered, the rest is refused.

``python -m benchmarks.field --repository PATH`` repeats the table in ``benchmarks/results/field-apply.md``. Only facts
about that repository are kept here.
"""
