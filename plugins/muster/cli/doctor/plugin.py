"""Muster's plugin in Airflow's API server: the Fleet page, metrics, the read API and reports are part of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from muster.cli.doctor.checks import Check, Mark
from muster.errors import MusterError

if TYPE_CHECKING:
    from muster.integration.airflow_api import AirflowClient

NAME = "muster"
"""As in ``plugins/muster_plugin.py``, which only Airflow imports."""


def loaded(client: AirflowClient) -> Iterator[Check]:
    """Whether the API server has loaded the plugin; silent if so."""
    try:
        absent = NAME not in client.plugins()
    except MusterError as error:
        fix = "try again, or give the login the right to read plugins"
        yield Check(Mark.ADVICE, "plugin", f"which plugins Airflow has loaded cannot be read: {error}", fix)
        return
    if absent:
        seen = "Airflow's API server has not loaded it: the Fleet page and the metrics are missing"
        fix = "put plugins/muster_plugin.py into Airflow's plugins folder, and restart all components"
        yield Check(Mark.MISSING, "plugin", seen, f"{fix}; the API server's log says if it cannot be imported")
