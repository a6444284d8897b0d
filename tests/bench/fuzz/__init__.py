"""Fuzzing of every edge at which data from outside enters; ``python -m tests.bench.fuzz`` runs it."""
