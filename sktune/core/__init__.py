"""Values and their file formats: plans, layouts, spaces, outcomes, events, errors. Everything else imports them.

Nothing here runs a model, reads a clock, starts a process or knows about a backend.
"""
