"""What persons, users and faults do to a real API server, as the campaign's evidence and Muster see it."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Iterator

import httpx
import pytest

from muster.admission.backend import Mark
from muster.admission.clusters import backend_of
from muster.errors import LeftAlone, SchedulerDown
from muster_demo.services import ServiceFailed, Supervisor
from tests.chaos import faults
from tests.chaos.link import Links
from tests.chaos.schedulers import OnKubernetes
from tests.chaos.world import World
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.needs_kubernetes]
NODE = "n2"
MARK = Mark("PASS", datetime.date(2026, 11, 27), "c1")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world of nothing but the API server."""
    folder, links = tmp_path_factory.mktemp("world"), Links()
    here = object.__new__(World)
    here.supervisor, here.down, here.ended = Supervisor(folder / "logs"), set(), {}
    try:
        here.schedulers = [OnKubernetes(here.supervisor, folder / "kubernetes", (NODE, "n5"), links)]
        yield here
    finally:
        here.supervisor.stop()
        links.close()


@pytest.fixture
def nodes(world: World, monkeypatch: pytest.MonkeyPatch) -> OnKubernetes:
    """Its nodes, all open, as a scheduler of the settings."""
    (kubernetes,) = world.schedulers
    assert isinstance(kubernetes, OnKubernetes)
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({kubernetes.kind: kubernetes.settings}))
    monkeypatch.setenv("MUSTER_SCHEDULER_TIMEOUT_S", "2")
    for name, text in kubernetes.connection.items():
        monkeypatch.setenv(name, text)
    return kubernetes


def test_a_persons_cordon_is_foreign_to_muster_and_stays(nodes: OnKubernetes) -> None:
    backend = backend_of(nodes.kind)
    nodes.drain(NODE, "bad fan 7")
    assert nodes.shows()[NODE] == (True, "bad fan 7")
    assert backend.look([NODE])[NODE].foreign == "cordoned"
    backend.withdraw(NODE, "FAIL")
    with pytest.raises(LeftAlone):
        backend.admit(NODE, MARK)
    assert nodes.shows()[NODE] == (True, "bad fan 7")
    nodes.resume(NODE)
    assert nodes.shows() == {NODE: (True, "withdrawn: FAIL"), "n5": (False, "")}


def test_musters_withdrawal_is_shown_and_a_persons_cordon_is_kept_with_it(nodes: OnKubernetes) -> None:
    backend = backend_of(nodes.kind)
    backend.withdraw(NODE, "FAIL")
    with pytest.raises(ServiceFailed):
        nodes.submit(NODE, "users-1", 1)
    nodes.drain(NODE, "bad fan 7")
    with pytest.raises(ServiceFailed):
        nodes.drain(NODE, "bad fan 8")
    with pytest.raises(LeftAlone):
        backend.admit(NODE, MARK)
    assert nodes.shows()[NODE] == (True, "bad fan 7")
    nodes.resume(NODE)
    assert nodes.shows()[NODE] == (True, "withdrawn: FAIL")
    backend.admit(NODE, MARK)
    assert nodes.shows()[NODE] == (False, "")


def test_a_users_job_is_on_the_node_until_it_is_ended(nodes: OnKubernetes) -> None:
    nodes.submit(NODE, "users-1", 1)
    assert backend_of(nodes.kind).look([NODE])[NODE].used_by == "pod default/users-1"
    for _ in range(2):  # the answer to the first request may have been lost
        nodes.end("users-1")
    assert backend_of(nodes.kind).look([NODE])[NODE].used_by == ""


@pytest.mark.parametrize("name", ["kubernetes_killed", "kubernetes_frozen", "kubernetes_refusing"])
def test_a_fault_of_the_api_server_passes_and_costs_no_state(world: World, nodes: OnKubernetes, name: str) -> None:
    backend, before = backend_of(nodes.kind), nodes.shows()
    faults.load()
    strike = iter(faults.KINDS[name].strike(world, random.Random(1)))
    next(strike)
    with pytest.raises(SchedulerDown):
        backend.look([NODE])
    next(strike, None)

    def answers() -> bool:
        try:
            return bool(backend.look([NODE])) and nodes.shows() == before
        except (SchedulerDown, httpx.HTTPError):
            return False

    until(answers)
