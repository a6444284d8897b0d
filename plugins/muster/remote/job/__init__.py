"""A job on a node: its key, its scripts and its file, what is done with it, and what its end means."""
