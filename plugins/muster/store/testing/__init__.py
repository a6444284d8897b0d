"""Tests of nodes: runs and their stages, what their reports show, common causes, re-evaluated verdicts."""
