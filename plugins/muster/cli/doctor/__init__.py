"""``muster doctor``: what the controller needs."""
