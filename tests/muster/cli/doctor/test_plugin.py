"""``muster doctor`` on Muster's plugin in Airflow's API server."""

from __future__ import annotations

import httpx
import pytest

from muster.cli.doctor import plugin
from muster.cli.doctor.checks import Mark
from muster.integration.airflow_api import AirflowClient


@pytest.mark.parametrize(
    ("names", "found"),
    [(["edge", "muster"], []), (["edge"], [Mark.MISSING]), ([], [Mark.MISSING]), (None, [Mark.ADVICE])],
)
def test_a_plugin_that_is_not_loaded_is_missing(names: list[str] | None, found: list[Mark]) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/api/v2/plugins"
        if names is None:
            return httpx.Response(403, json={"detail": "Forbidden"})
        return httpx.Response(200, json={"plugins": [{"name": name} for name in names], "total_entries": len(names)})

    with AirflowClient("http://airflow", token="t", transport=httpx.MockTransport(answer)) as client:
        assert [each.mark for each in plugin.loaded(client)] == found
