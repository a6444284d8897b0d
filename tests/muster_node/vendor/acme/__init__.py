"""Acme, a vendor that does not exist: the whole of its folder beside ``hardware/nvidia``."""
