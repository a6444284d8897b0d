"""Ends processes that outlive a killed component of Airflow."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil


def end(home: Path) -> None:
    """End every process that carries this AIRFLOW_HOME."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("AIRFLOW_HOME") == str(home):
                process.kill()
