"""Models in plain PyTorch, the same on every device to the last bit, and their operations."""
