"""Studies: of the bounds, and the sweeps behind the tables and figures of the paper."""
