"""Commands that show a policy, and replay another one on the records."""
