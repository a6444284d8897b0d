"""Nodes and their parts: enrolled, adopted, moved, leased by a run, paused."""
