"""Fleets of idle nodes at one moment, for the tests of selection, worth and forecast."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from hypothesis import strategies as st

from muster.model.failures import Failure
from muster.model.nodes import Node
from muster.model.states import State
from muster.rules.idle.capacity import Limits
from muster.rules.idle.past import risk_of
from muster.rules.idle.selection import Idle, Known
from muster_criteria.stages import STAGES

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)
IDLE = Idle(True)
ALL = Limits(share=1.0)


def node(name: str, state: State = State.PRODUCTION, rack: str = "", domain: str = "") -> Node:
    labels = {"power_domain": domain} if domain else {}
    came = NOW - datetime.timedelta(days=200)
    return Node(name, "h", 22, "", "", "sku", state, {}, "~", rack, "", labels, False, came, machine_since=came)


def passed(hours: float | None) -> dict[str, datetime.datetime]:
    return {} if hours is None else dict.fromkeys(STAGES, NOW - hours * HOUR)


FLEETS = st.lists(
    st.tuples(
        st.sampled_from([State.PRODUCTION, State.PRODUCTION, State.PRODUCTION, *State]),
        st.sampled_from([IDLE, IDLE, Idle(False, "job 7"), Idle(False), None]),
        st.sampled_from([None, 0, 1, 50, 200]),
        st.sampled_from([False, False, False, True]),
        st.sampled_from(["", "", "too hot"]),
    ),
    max_size=40,
)


def failure(name: str, group: str = "memory", days: float = 5.0, *, replaced: bool = False) -> Failure:
    """One that began a day before the node came back, so many days ago."""
    back = NOW - datetime.timedelta(days=days)
    return Failure(name, group, back - datetime.timedelta(days=1), back, replaced)


def served(nodes: Sequence[Node]) -> dict[str, datetime.datetime]:
    """They served since their machines came."""
    return {each.name: each.machine_since for each in nodes if each.machine_since}


def at_risk(nodes: Sequence[Node], *failures: Failure) -> Known:
    """All nodes are idle, and took the whole test 30 hours ago."""
    names = [each.name for each in nodes]
    idle, passes = dict.fromkeys(names, IDLE), dict.fromkeys(names, passed(30))
    return Known(nodes, NOW, idle, passes, ALL, risk=risk_of(nodes, served(nodes), failures, NOW)[0])


LEASED = (State.PRODUCTION, IDLE, None, True, "")
OTHER = (State.RETIRED, IDLE, None, False, "")
CHANGED = (State.PRODUCTION, IDLE, None, False, "too hot")
