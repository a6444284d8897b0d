"""The fabric between nodes: which pairs to test in each round, and which part a set of results points to."""
