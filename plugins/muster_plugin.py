"""What Airflow's plugin loader sees of Muster; everything else is the package ``muster``."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from muster.integration import listeners


class MusterPlugin(AirflowPlugin):
    """Muster's listeners, the Fleet page, and what programs read.

    ``fastapi_apps`` is a property, which only the API server reads: no other component imports the apps.
    """

    name = "muster"
    listeners = [listeners]  # noqa: RUF012 - Airflow's own convention
    external_views = [  # noqa: RUF012
        {"name": "Fleet", "href": "muster/", "url_route": "fleet", "destination": "nav", "nav_top_level": True},
        *(
            {
                "name": name,
                "href": f"muster/{page}?dag_id={{DAG_ID}}&run_id={{RUN_ID}}{more}",
                "url_route": f"muster-{page}-{where}",
                "destination": where,
            }
            for name, page in (("Node", "run"), ("Report", "report"))
            for where, more in (("dag_run", ""), ("task_instance", "&task_id={TASK_ID}&map_index={MAP_INDEX}"))
        ),
    ]

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """What the API server mounts."""
        from muster.api import app as api
        from muster.web import PREFIX as WEB_PREFIX
        from muster.web import app as web

        return [
            {"app": web.create_app(), "url_prefix": WEB_PREFIX, "name": "Fleet"},
            {"app": api.create_app(), "url_prefix": api.PREFIX, "name": "Muster for programs"},
        ]
