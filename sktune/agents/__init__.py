"""The interface for agents: an MCP server, background jobs, and the skill that explains sktune to them.

Everything here runs the same commands as the command line.
"""
