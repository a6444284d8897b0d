"""Benchmarks: ``python -m tests.bench.NAME`` prints a table and, last, one JSON line."""
