"""The path that all nodes share: its rates, and checkpoints through it."""
