"""Commands that start tests, and the plan of those that start by themselves."""
