"""Time and memory of the distributions and of training steps.

Run ``python -m benchmarks`` from the root of the repository; ``--help`` lists the options.
"""
