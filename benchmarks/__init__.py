"""What the laws cost: time and peak memory against n, next to a dense textbook version.

Run ``python -m benchmarks`` from the root of the repository; ``--help`` lists the options.
"""
