"""Recipes: programs that sktune does not own, tuned by starting them again and again."""
