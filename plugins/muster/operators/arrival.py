"""New hardware that announces itself: an asset event for one node and delivery becomes one run of its qualification.

The event's partition key is ``NODE__DELIVERY``. Its extra may say ``level``, and ``inventory``: the node's line as in
an inventory, with which it is enrolled; without it the node must be enrolled already. Airflow makes one run of a key
and draws that run's id at random, so what keeps a delivery that is announced again from being tested again is the
deterministic id of the qualification run.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pydantic
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from muster import records
from muster.errors import BadInventory, MusterError, UnknownNode
from muster.integration import runid
from muster.operators import claims
from muster.records import NODE_NAME

log = logging.getLogger(__name__)

ASSET = "muster_new_hardware"

_KEY = "give NODE__DELIVERY, as in gpu-0001__PO-4711"


class Extra(pydantic.BaseModel):
    """What an event may say beside its key. ``from_rest_api`` is Airflow's own remark."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    level: Literal["demo", "short", "standard", "long"] = "standard"
    inventory: dict[str, Any] | None = None
    from_rest_api: bool = False


@dataclasses.dataclass(frozen=True)
class Arrival:
    """One node of one delivery, and what its event said of it."""

    node: str
    delivery: str
    said: Extra

    @property
    def reason(self) -> str:
        """Why the node is tested."""
        return f"delivery {self.delivery}"


def read(partition_key: str | None, extras: Sequence[Mapping[str, Any]]) -> Arrival:
    """What the events of one key announce. Raises MusterError, one sentence, for what cannot be used.

    A run that a person starts has no event, and one may have several, if they came faster than Airflow made runs of
    them; they have to agree.
    """
    if not partition_key:
        raise MusterError(f"nothing says which node has come: the partition key is missing; {_KEY}")
    node, _, delivery = partition_key.partition("__")
    if not NODE_NAME.fullmatch(node) or not delivery.strip():
        raise MusterError(f"the partition key {partition_key!r} does not name a node and its delivery; {_KEY}")
    try:
        said = [Extra.model_validate(extra) for extra in extras] or [Extra()]
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MusterError(
            f"the extra of the event for {partition_key} cannot be used: {where}: {first['msg']}; "
            "it takes level and inventory"
        ) from None
    if any(other != said[0] for other in said):
        raise MusterError(f"{len(said)} events for {partition_key} say different things; send the right one again")
    named = (said[0].inventory or {}).get("name", node)
    if named != node:
        raise MusterError(f"the event for {partition_key} brings the inventory line of {named!r}; correct one of them")
    return Arrival(node, delivery.strip(), said[0])


def receive(
    partition_key: str | None, extras: Sequence[Mapping[str, Any]], exists: Callable[[str], bool]
) -> dict[str, Any]:
    """The qualification run to start, as TriggerDagRunOperator takes it; enrols the node if its event describes it.

    ``exists`` says whether node_qualification has a run of that id: then this skips. Raises AirflowFailException, one
    sentence, where a person has to do something first, and AirflowException while the node does not answer.
    """
    with claims.failing_at_once():
        arrival = read(partition_key, extras)
        run_id = runid.run_id(arrival.node, arrival.reason)
        if exists(run_id):
            raise AirflowSkipException(
                f"{arrival.node} of delivery {arrival.delivery} was received before, as run {run_id} of "
                "node_qualification: clear that run to test the node again, or name another delivery"
            )
        if arrival.said.inventory is not None:
            _enrol(arrival, arrival.said.inventory)
        try:
            node = records.get_node(arrival.node)
        except UnknownNode as error:
            raise MusterError(f"{error}, or send its line under `inventory` in the event's extra") from error
    conf = {"node": node.name, "level": arrival.said.level, "reason": arrival.reason, "pool": node.pool or None}
    return {"trigger_run_id": run_id, "conf": conf}


def _enrol(arrival: Arrival, line: Mapping[str, Any]) -> None:
    from muster.enrolment import inventory
    from muster.enrolment import known as enrolment

    try:
        described = inventory.described({**line, "name": arrival.node}, enrolment.skus())
    except BadInventory as error:
        raise MusterError(f"{arrival.node} cannot be enrolled: {'; '.join(error.problems)}") from error
    try:
        found = enrolment.pinned(described)
    except BadInventory as error:  # tried again: it may not have booted yet
        raise AirflowException(f"{arrival.node} cannot be enrolled yet: {'; '.join(error.problems)}") from error
    for name, outcome in records.add_nodes(found, actor=arrival.reason).items():
        log.info("%s: %s", name, outcome)
