"""Room on the controller's disks: a full one stops every component, and logs are many small files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from muster.cli.doctor import connections
from muster.cli.doctor.checks import Check, Mark, existing
from muster.settings import Settings

LOW = 0.1
"""A disk with a smaller share of free bytes or inodes counts as nearly full."""


def low(current: Settings) -> Iterator[Check]:
    """Where Airflow logs and where Muster writes, a tenth of bytes and inodes is free; silent if so."""
    with connections.airflow_libraries():
        from airflow.configuration import conf

        logs = Path(conf.get("logging", "base_log_folder"))
    known: set[int] = set()
    for folder in (logs, current.home, current.archive_folder):
        made = existing(folder)
        try:
            device, disk = os.stat(made).st_dev, os.statvfs(made)
        except OSError:  # reported by ``home``
            continue
        if device in known:
            continue
        known.add(device)
        counted = {"bytes": (disk.f_bavail, disk.f_blocks), "inodes": (disk.f_favail, disk.f_files)}
        # Some file systems count no inodes.
        shares = {what: free / whole for what, (free, whole) in counted.items() if whole}
        if scarce := [f"{share:.1%} of the {what}" for what, share in shares.items() if share < LOW]:
            seen = f"of the disk of {folder}, {' and '.join(scarce)} are free"
            yield Check(Mark.ADVICE, "disk", seen, "delete old logs by a timer: see docs/deploying.md")
