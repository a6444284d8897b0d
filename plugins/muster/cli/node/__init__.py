"""``muster node``: what is said of one node, or done to it."""
