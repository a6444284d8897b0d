"""New hardware: an asset event for one node and delivery starts one run of its qualification.

The event's partition key is ``NODE__DELIVERY``. Its extra may hold ``level``, and ``inventory``: the node's inventory
line, to enrol it; without it the node must be enrolled already. An event adds a node and never changes one. Airflow
gives the event's run a random id, so the deterministic id of the qualification run is what prevents a repeated event
from testing the node again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pydantic
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from muster import store
from muster.errors import BadInventory, MusterError, UnknownNode, first_refused
from muster.integration import logins, runid
from muster.model import dags
from muster.model.names import NODE_NAME
from muster.model.runs import RunKey
from muster.model.stages import Level
from muster.model.states import BROKEN
from muster.operators.testing import claims
from muster.reporting import notices
from muster.settings import settings
from muster_criteria.text import one_line

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

log = logging.getLogger(__name__)

ASSET = "muster_new_hardware"

RETRIES: dict[str, Any] = {
    "retries": 28,
    "retry_delay": datetime.timedelta(minutes=1),
    "retry_exponential_backoff": 2,
    "max_retry_delay": datetime.timedelta(minutes=15),
}
"""At least six hours: a node is announced when it is racked, before its operating system is installed. 500 nodes that
are not up cause one attempt every two seconds."""

_KEY = "give NODE__DELIVERY with one '__', as in gpu-0001__PO-4711"


class Extra(pydantic.BaseModel):
    """The optional content of an event. Airflow adds ``from_rest_api``."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    level: Level = "standard"
    inventory: dict[str, Any] | None = None
    from_rest_api: bool = False


@dataclasses.dataclass(frozen=True)
class Arrival:
    """One node of one delivery, with the content of its event."""

    node: str
    delivery: str
    extra: Extra

    @property
    def reason(self) -> str:
        """Why the node is tested."""
        return f"delivery {self.delivery}"


def read(partition_key: str | None, extras: Sequence[Mapping[str, Any]]) -> Arrival:
    """Returns the node and delivery of a partition key. Raises MusterError for an invalid key or extra.

    A run that a person starts has no event; a run has several if they came faster than Airflow made runs. All events
    of a run must have the same content.
    """
    if not partition_key:
        raise MusterError(f"the event has no partition key, which names the node; {_KEY}")
    node, _, delivery = partition_key.partition("__")
    clear = "__" not in delivery and not delivery.startswith("_") and one_line(partition_key) == partition_key
    if not clear or not NODE_NAME.fullmatch(node) or not delivery.strip():
        raise MusterError(f"the partition key {partition_key!r} does not name a node and its delivery; {_KEY}")
    try:
        parsed = [Extra.model_validate(extra) for extra in extras] or [Extra()]
    except pydantic.ValidationError as error:
        why = f"{first_refused(error)}; it takes level and inventory"
        raise MusterError(f"the extra of the event for {partition_key} cannot be used: {why}") from None
    first_extra = parsed[0]
    if any(other != first_extra for other in parsed):
        raise MusterError(f"{len(parsed)} events for {partition_key} differ; send the right one again")
    if "bmc" in (first_extra.inventory or {}):
        # A bmc entry names a secret of the controller and the address to which it is sent.
        raise MusterError(
            f"the event for {partition_key} has a bmc, and an event sets no bmc: leave it out, and give it by "
            f"`muster node add` or `muster node import`"
        )
    named = (first_extra.inventory or {}).get("name", node)
    if named != node:
        raise MusterError(f"the event for {partition_key} has the inventory line of {named!r}; correct one of them")
    return Arrival(node, delivery.strip(), first_extra)


def receive(
    partition_key: str | None, extras: Sequence[Mapping[str, Any]], exists: Callable[[str], bool]
) -> dict[str, Any]:
    """Enrol the node if its event describes it. Returns the arguments of TriggerDagRunOperator for its qualification.

    ``exists(run_id)``: whether Airflow has that run of node_qualification. Raises AirflowSkipException if it has, the
    records have, or the node's tests are paused, which is mailed; AirflowFailException if a person has to resolve
    something first; AirflowException while the node does not respond, or refuses the login.
    """
    with claims.failing_at_once():
        arrival = read(partition_key, extras)
        run_id = runid.of_delivery(arrival.node, arrival.delivery)
        known = exists(run_id)
        if known or store.runs.find(run=RunKey(dags.NODE_QUALIFICATION, run_id)):
            clear = "clear that run to test the same machine again, or " if known else ""
            raise AirflowSkipException(
                f"{arrival.node} of delivery {arrival.delivery} was received before, as run {run_id} of "
                f"{dags.NODE_QUALIFICATION}: {clear}name another delivery"
            )
        if arrival.extra.inventory is not None:
            _enrol(arrival, arrival.extra.inventory)
        try:
            node = store.nodes.get(arrival.node)
        except UnknownNode as error:
            raise MusterError(f"{error}, or send its line under `inventory` in the event's extra") from error
        if node.state in BROKEN:
            raise MusterError(
                f"{node.name} is in {node.state} and is not tested there: if this is another machine, `muster node "
                f"replace {node.name} --reason …`, or if it was repaired, `muster node move {node.name} registered "
                "--reason …`; then clear this run"
            )
        if node.pause:
            sentence = (
                f"{node.name} of delivery {arrival.delivery} is not tested: its tests are {node.pause}; then clear the "
                "run of new_hardware that received it"
            )
            notices.notify(f"paused delivery/{partition_key}", sentence, of=node.name, each=True)
            raise AirflowSkipException(sentence)
    conf = {"node": node.name, "level": arrival.extra.level, "reason": arrival.reason, "pool": node.pool or None}
    return {"trigger_run_id": run_id, "conf": conf}


def lost(context: Context) -> None:
    """Notify people that a delivery was not received; `muster status` shows it where the node is enrolled."""
    key = str(context["dag_run"].partition_key or "")
    sentence = one_line(f"delivery {key or 'without a key'} was not received: {context.get('exception')}")
    node, then = key.partition("__")[0], f"correct it, then announce it again, or clear its run of {dags.NEW_HARDWARE}"
    notices.notify(f"delivery/{key}", f"{sentence}; {then}", of=node, each=True)
    with contextlib.suppress(MusterError):
        store.signs.note_refusal(node, sentence)


def _enrol(arrival: Arrival, line: Mapping[str, Any]) -> None:
    from muster.enrolment import inventory
    from muster.enrolment import known as enrolment

    try:
        described = inventory.described({**line, "name": arrival.node}, enrolment.skus())
    except BadInventory as error:
        raise MusterError(f"{arrival.node} cannot be enrolled: {'; '.join(error.problems)}") from error
    try:
        found = enrolment.pinned(described, lambda: logins.credentials(settings().ssh_conn_id), accepted=True)
    except BadInventory as error:  # retried: it may not have booted yet, or may still be installing
        raise AirflowException(f"{arrival.node} cannot be enrolled yet: {'; '.join(error.problems)}") from error
    for name, outcome in store.nodes.add_all(found, actor=arrival.reason, change=False).items():
        log.info("%s: %s", name, outcome)
