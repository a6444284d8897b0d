"""Places of the fabric: one block at a time loads them, and they are free when its nodes are."""

from __future__ import annotations

import threading

import pytest

from muster import store
from muster.errors import PlaceLoaded
from muster.model.runs import RunKey
from tests.muster import fleet

ONE, OTHER = RunKey("cluster_qualification", "one"), RunKey("cluster_qualification", "other")
SHARED = "the uplinks of leaf l1"

pytestmark = [pytest.mark.usefixtures("fleet_db"), pytest.mark.both_dialects]


@pytest.fixture(autouse=True)
def _nodes(fleet_db: str) -> None:
    for name, key in (("n1", ONE), ("n2", OTHER)):
        store.nodes.add(fleet.new_node(name))
        store.leases.acquire(name, key)


def test_a_place_is_loaded_by_one_run_and_none_of_the_others_is_taken() -> None:
    store.places.load(ONE, [SHARED])
    with pytest.raises(PlaceLoaded):
        store.places.load(OTHER, ["the uplinks of leaf l2", SHARED])
    assert fleet.loaded_places() == {SHARED: ONE}


def test_a_claim_that_is_made_again_keeps_its_places_alone() -> None:
    store.places.load(ONE, [SHARED, "the uplinks of leaf l2"])
    store.places.load(ONE, [SHARED])
    assert fleet.loaded_places() == {SHARED: ONE}


def test_places_are_free_when_the_nodes_are() -> None:
    store.places.load(ONE, [SHARED])
    store.leases.release(ONE, "over")
    store.places.load(OTHER, [SHARED])
    assert fleet.loaded_places() == {SHARED: OTHER}


def test_of_two_at_once_one_is_refused() -> None:
    refused, begin = [], threading.Barrier(2)

    def take(key: RunKey) -> None:
        begin.wait()
        try:
            store.places.load(key, [SHARED, "the uplinks of leaf l2"])
        except PlaceLoaded:
            refused.append(key)

    threads = [threading.Thread(target=take, args=(key,)) for key in (ONE, OTHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1
    assert set(fleet.loaded_places().values()) == {ONE, OTHER} - set(refused)
