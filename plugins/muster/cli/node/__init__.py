"""``muster node``: commands about nodes."""
