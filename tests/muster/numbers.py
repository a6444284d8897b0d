"""A small fleet with something in each of the numbers that managers ask for."""

from __future__ import annotations

import datetime

from sqlalchemy import update

from muster import store
from muster.admission.entry import move
from muster.model.states import State
from muster.store.database.engine import writing
from muster.store.database.models import NodeRow
from muster_criteria.model import FaultClass
from tests.muster import fleet

DAYS = datetime.timedelta(days=1)


def broken_fleet() -> None:
    """One node serves, one failed in service and is at its vendor, one was never in production, one is simulated."""
    for name, simulated in (("a", False), ("b", False), ("c", False), ("s", True)):
        store.nodes.add(fleet.new_node(name, simulated=simulated, labels={"vendor": "acme"}))
    with writing() as session:
        session.execute(update(NodeRow).values(added_at=store.nodes.get("a").added_at - 10 * DAYS))
    for name in ("a", "b"):
        fleet.qualify(name)
        move(name, State.PRODUCTION, "Ada", "needed now")
    fleet.fail("b", "later", fleet.finding(fault_class=FaultClass.HBM), stage="integrity")
    for state in (State.TRIAGE, State.RMA):
        store.nodes.move("b", state, "Ada", "it goes back")
