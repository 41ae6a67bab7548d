"""A cost model of Atlas A3: answers without hardware. Every figure that it gives is simulated."""
