"""Reports of finished runs: the page of a run, and the page of several runs."""
