"""Studies: of the bounds, the sweeps that reproduce the paper, and tables of their results."""
