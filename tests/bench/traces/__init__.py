"""Replays of public fault records: how well the planner of idle nodes does on faults that it did not draw itself."""
