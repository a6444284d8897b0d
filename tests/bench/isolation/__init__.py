"""``python -m tests.bench.isolation``: how many rounds it takes to name the bad parts of a simulated fabric."""
