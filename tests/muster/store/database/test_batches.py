"""However many nodes there are, a query names a bounded number of them."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event

from muster import store
from muster.store.database import engine
from muster.store.database.batches import AT_ONCE, batches
from tests.muster import fleet

NAMES = [f"n{number}" for number in range(3 * AT_ONCE + 1)] + ["gpu-0001"]
THEN = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)


def test_each_value_comes_once_in_its_order() -> None:
    assert [value for some in batches(NAMES) for value in some] == NAMES
    assert max(len(some) for some in batches(NAMES)) == AT_ONCE
    assert list(batches([])) == []


@pytest.mark.parametrize(
    "read",
    [store.bmcs.cursors, store.health.cursors, lambda names: store.users_jobs.since(dict.fromkeys(names, THEN)),
     lambda names: store.passes.of_nodes(names, THEN)],
    ids=["bmcs", "sweeps", "jobs", "passes"],
)  # fmt: skip
@pytest.mark.usefixtures("fleet_db")
def test_no_query_names_more_than_that(read: Callable[[list[str]], Any]) -> None:
    store.nodes.add(fleet.new_node())
    sent: list[int] = []
    with engine.reading() as session:
        bind = session.get_bind()

    def count(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        sent.append(len(parameters))

    event.listen(bind, "before_cursor_execute", count)
    try:
        found = read(NAMES)
    finally:
        event.remove(bind, "before_cursor_execute", count)
    assert len(sent) >= 4
    assert max(sent) <= AT_ONCE + 10
    assert isinstance(found, list) or set(found) <= set(NAMES)
