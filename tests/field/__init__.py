"""Checks on repositories of others: these are fetched, never copied, and only facts about them are kept."""
