"""The history of a node: its moves, what each rests on, and persons' decisions."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from muster.model.runs import RunKey
from muster.model.states import State
from muster_criteria.model import Verdict


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The evidence for a move.

    ``run`` is the run that holds the node's lease; ``run_over``: it has ended without a verdict. ``verdict`` and
    ``full_coverage`` are that run's, looked up by the records. ``budget_spent``: the budget of inconclusive runs is
    used up. ``person`` and ``reason``: who decided, and why. ``adopted`` and ``replaced``: the person took over a
    machine that serves already, or put another one in its place; set by the records' functions of these names alone.
    ``held``: the run's verdict is held by the circuit breaker or for a common cause. ``nothing_new``: the run tests a
    node in service, and gives no reason to end that (``ending.RunFacts.nothing_new``). Both are set by the records
    alone, when they close that run. ``observed``: the observation between tests for which the health policy takes it
    out of service, with its ``check`` and ``device``, since events are kept longer than observations. ``replaces``: the
    node that left production, whose place it takes; set by ``store.replacing`` alone. ``repair``: the attempt that was
    reserved, set by the records' functions of repairs alone.
    """

    run: RunKey | None = None
    run_over: bool = False
    verdict: Verdict | None = None
    full_coverage: bool = False
    budget_spent: bool = False
    person: str | None = None
    reason: str = ""
    adopted: bool = False
    replaced: bool = False
    held: bool = False
    nothing_new: bool = False
    observed: str = ""
    check: str = ""
    device: str = ""
    replaces: str = ""
    repair: str = ""


@dataclasses.dataclass(frozen=True)
class Event:
    """One step of a node's life; ``from_state`` equals ``to_state`` in a remark. ``login``: see ``muster.acting``."""

    node: str
    at: datetime.datetime
    from_state: State
    to_state: State
    actor: str
    reason: str
    evidence: Mapping[str, Any]
    login: str = ""


@dataclasses.dataclass(frozen=True)
class Approval:
    """A person's decision about a node, the reason, a link to the evidence, and the login it was made under."""

    node: str
    at: datetime.datetime
    person: str
    option: str
    reason: str
    link: str
    run: str
    login: str = ""
