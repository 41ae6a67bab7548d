"""What the scope guide calls its automatic analysis: one call from a model to a recommendation with its evidence."""
