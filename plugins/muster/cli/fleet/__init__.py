"""Commands about the whole fleet: its state, its figures, its incidents."""
