"""What applications share: jobs, experiments, and the runs and studies made of them."""
