"""The campaign: searches are disturbed at random, and must lose nothing.

``python -m benchmarks.campaign --faults 1000`` runs it in full. A ``Fault`` says what happens to whom and when, all
drawn from one seed; ``injections`` makes it happen; ``violations`` compares what is left with what must hold.
"""
