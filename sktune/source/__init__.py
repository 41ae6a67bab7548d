"""Plans in source: a model's code and configuration changed so that they carry a plan's scopes."""
