"""Plugins of pytest: no process outlives a run, no missing service is skipped in silence, SQL is counted."""
