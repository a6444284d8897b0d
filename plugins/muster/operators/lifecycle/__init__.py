"""Tasks that change a node's state between tests: arrival, sweeps, repair, revalidation, and people's decisions."""
