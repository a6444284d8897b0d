"""What Airflow's plugin loader sees of Muster; everything else is the package ``muster`` beside it."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from muster.integration import listeners


class MusterPlugin(AirflowPlugin):
    """Muster's listeners."""

    name = "muster"
    listeners = [listeners]  # noqa: RUF012 - Airflow's own convention
