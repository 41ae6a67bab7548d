"""Terminal output: tables and progress, drawn from events and results. Nothing here decides anything."""
