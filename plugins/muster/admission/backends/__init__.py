"""Backends: each module is the ``kind`` of that name in MUSTER_SCHEDULERS; its ``BACKEND`` is (settings, backend)."""
