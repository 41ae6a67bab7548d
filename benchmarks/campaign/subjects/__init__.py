"""What the campaign searches: a model, and a program of two ranks; both misbehave when asked to."""
