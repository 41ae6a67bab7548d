"""Many dies, hosts and studies: Ray, and searches side by side.

A search with one worker needs nothing of it.
"""
