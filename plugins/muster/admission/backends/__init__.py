"""Backends: each file is the kind of its name in MUSTER_SCHEDULERS; its ``BACKEND`` says how it is made."""
