"""Training of all applications: configuration, schedules, checkpoints and run folders."""
