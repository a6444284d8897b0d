"""Neighbours of a node that is lost: who of them responds, and a login that cannot be had."""

from __future__ import annotations

import pytest

from muster import store
from muster.errors import ControllerFault
from muster.remote.login import Credentials
from muster.remote.neighbours import reachable_neighbours
from tests.muster import fleet


@pytest.mark.usefixtures("sqlite_db")
def test_a_login_that_is_missing_is_no_neighbour_that_responds_and_no_error() -> None:
    def missing() -> Credentials:
        raise ControllerFault("there is no Airflow connection muster_ssh")

    for name in ("n1", "n2"):
        store.nodes.add(fleet.new_node(name))
    assert reachable_neighbours(store.nodes.get("n1"), missing) == ""
