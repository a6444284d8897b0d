"""Probes that behave, and probes that misbehave in every way that an agent has to survive."""
