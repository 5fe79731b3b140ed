"""What every application trains with: configuration, schedules, checkpoints and run folders."""
