"""What agents use: an MCP server, background jobs, and the skill that explains sktune to them.

Everything here goes through the same functions as the command line.
"""
