"""Benchmarks: ``python -m tests.bench.NAME`` prints a table and, last, one JSON line."""

import os

# NumPy's threads wait in a loop for work, which would count as CPU time; its matrices here are too small to share.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
