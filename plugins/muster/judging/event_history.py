"""What history says of device events: errors that restarting does not mend, and what another policy would have done."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from muster import store
from muster.model.statistics import RecordedEvent
from muster_criteria.device_events.judge import events_of, returned
from muster_criteria.device_events.policy import (
    GRAVITY,
    DeviceEvent,
    EventPolicy,
    EventSeverity,
    Key,
    Response,
    key_of,
    response_to,
    returning,
)
from muster_criteria.measured import StageResult
from muster_criteria.model import Evidence


def returning_events(node: str, result: StageResult | None, policies: Sequence[EventPolicy]) -> tuple[Evidence, ...]:
    """Evidence for each error of this result that earlier boots of the same machine had too, often enough."""
    if result is None:
        return ()
    identity = dict(result.identity)
    found = events_of(result.measurements)
    now = [dataclasses.replace(event, pci=store.device_events.part_of(event, identity)) for event in found]
    if not now:
        return ()
    boots = store.device_events.by_boot(store.device_events.recorded(node=node))
    boots.setdefault(str(identity.get("boot_id", "")), []).extend(now)
    return returned(list(boots.values()), now, policies)


@dataclasses.dataclass(frozen=True)
class FinalResponse(Response):
    """A response after escalation. ``boots``: in how many boots the error returned, if it escalated; else 0."""

    boots: int = 0

    @property
    def decision(self) -> tuple[str, str, str]:
        """What a policy decides: as which of its entries, how grave, and what is to be done."""
        return self.name, self.severity, self.action


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One recorded error under two policies; ``before`` is None if its SKU has no policy."""

    record: RecordedEvent
    before: FinalResponse | None
    after: FinalResponse

    @property
    def changed(self) -> bool:
        """Whether the other policy responds differently."""
        return self.before is None or self.before.decision != self.after.decision

    @property
    def graver(self) -> bool:
        """Whether the other policy's response is graver."""
        return self.before is not None and GRAVITY[self.after.severity] < GRAVITY[self.before.severity]


def compare(
    records: Sequence[RecordedEvent], before: dict[str, EventPolicy | None], after: EventPolicy
) -> list[Comparison]:
    """Every recorded event of the kinds of ``after``, under the policy that its SKU has now (``before``, by SKU) and
    under ``after``, in order.

    Errors that come back escalate by their machine's errors until then, so ``records`` must be whole histories,
    oldest first (see ``store.device_events.recorded``).
    """
    records = [record for record in records if record.event.kind in after.kinds]
    machines: dict[tuple[str, bool], list[int]] = {}
    for place, record in enumerate(records):
        machines.setdefault((record.node, record.former), []).append(place)
    found: dict[int, Comparison] = {}
    for places in machines.values():
        history = [records[place] for place in places]
        policies = {sku: before.get(sku) for sku in {record.sku for record in history}}
        then = {sku: _responses(history, policy) for sku, policy in policies.items() if policy is not None}
        for at, (place, now) in enumerate(zip(places, _responses(history, after), strict=True)):
            sku = records[place].sku
            found[place] = Comparison(records[place], then[sku][at] if sku in then else None, now)
    return [found[place] for place in range(len(records))]


def _responses(history: Sequence[RecordedEvent], policy: EventPolicy) -> list[FinalResponse]:
    """Returns the response to each error of one machine, as known at the end of its stage."""
    seen: dict[Key, dict[str, dict[EventSeverity, DeviceEvent]]] = {}
    often: dict[Key, int] = {}
    found: list[FinalResponse] = []
    for _, group in itertools.groupby(history, lambda record: (record.dag_id, record.run_id, record.stage)):
        stage = [(record, response_to(record.event, policy, record.during)) for record in group]
        for record, response in stage:
            known = dataclasses.replace(record.event, pci=record.part)
            of_boots = seen.setdefault(key_of(known, response), {})
            of_boot = of_boots.setdefault(record.boot_id, {})
            if response.severity not in of_boot:  # one message per boot and severity is enough
                of_boot[response.severity] = known
                often |= returning([events.values() for events in of_boots.values()], policy)
        for record, response in stage:
            key = key_of(dataclasses.replace(record.event, pci=record.part), response)
            found.append(_escalated(response, often.get(key, 0), policy))
    return found


def _escalated(response: Response, boots: int, policy: EventPolicy) -> FinalResponse:
    """Returns the policy's escalation if the error returned in enough ``boots``, unless ``response`` is graver."""
    final = FinalResponse(**vars(response))
    last = policy.escalation
    if last is None or not boots or GRAVITY[last.severity] > GRAVITY[response.severity]:
        return final
    cited = policy.citing(last.source)
    return dataclasses.replace(final, severity=last.severity, action=last.action, source=cited, boots=boots)
