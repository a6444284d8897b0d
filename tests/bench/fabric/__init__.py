"""``python -m tests.bench.fabric``: planted faults in a real network of namespaces, found by real agents."""
