"""Time and memory of the distributions and of training steps: ``python -m benchmarks``."""
