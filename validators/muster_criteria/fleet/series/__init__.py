"""What nodes measured, laid out for comparison: readings, their series as integers, their visits in time."""
