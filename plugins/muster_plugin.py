"""What Airflow's plugin loader sees of Muster; everything else is the package ``muster`` beside it."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from muster.integration import listeners


class MusterPlugin(AirflowPlugin):
    """Muster's listeners, and its apps, which the API server alone reads: no other component imports them."""

    name = "muster"
    listeners = [listeners]  # noqa: RUF012 - Airflow's own convention

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """What the API server mounts."""
        from muster.api import app

        return [{"app": app.create_app(), "url_prefix": app.PREFIX, "name": "Muster for programs"}]
