"""Reports, made from finished runs alone: the page of a run, and of several."""
