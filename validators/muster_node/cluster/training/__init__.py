"""Training as the acceptance test of a block: its ranks, its steps, and the run with faults."""
