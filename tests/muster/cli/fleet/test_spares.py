"""``muster spares``: pools by SKU, and who may replace a node."""

from __future__ import annotations

import json
from collections.abc import Callable

from muster import store
from muster.admission.entry import move
from muster.model.states import State
from tests.muster import fleet

Muster = Callable[..., "tuple[int, str, str]"]


def test_the_pool_is_counted_and_a_qualified_node_of_the_block_is_proposed(muster: Muster, sqlite_db: str) -> None:
    for name, block in (("a", "b1"), ("b", "b2"), ("c", "b1")):
        store.nodes.add(fleet.new_node(name, labels={"block": block}))
        fleet.qualify(name)
    move("a", State.PRODUCTION, "Ada", "needed now")
    assert muster("spares")[0] == 0
    (found,) = json.loads(muster("spares", "--job", "1", "--job", "1000", "--json")[1])[:1]
    assert (found["pool"]["service"], found["pool"]["qualified"], found["job"]) == (1, 2, 1)
    move("a", State.QUARANTINE, "Ada", "it hangs")
    assert [each["node"] for each in json.loads(muster("spares", "--for", "a", "--json")[1])] == ["c", "b"]
    assert json.loads(muster("spares", "--json")[1]) == []


def test_an_unknown_node_is_refused(muster: Muster, sqlite_db: str) -> None:
    assert muster("spares", "--for", "nobody")[0] == 1
