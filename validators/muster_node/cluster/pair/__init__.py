"""A test between two nodes, over each of their rails: payload, bandwidth and latency."""
