"""Backends: each file or folder is the kind of its name in MUSTER_SCHEDULERS; ``BACKEND`` says how it is made."""
