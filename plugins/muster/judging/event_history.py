"""What history says of device events: errors that restarting does not mend, and what another policy would have done."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Sequence

from muster import store
from muster.model.statistics import RecordedEvent
from muster_criteria.device_events.judge import events_of, returned
from muster_criteria.device_events.policy import (
    GRAVITY,
    EventPolicy,
    Key,
    Response,
    key_of,
    may_escalate,
    response_to,
)
from muster_criteria.measured import StageResult
from muster_criteria.model import Evidence


def returning_events(node: str, result: StageResult | None, policies: Sequence[EventPolicy]) -> tuple[Evidence, ...]:
    """Evidence for each error of this result that earlier boots of the same machine had too, often enough.

    What was recorded longer ago than the policy counts, or before a person repaired the node, is none.
    """
    if result is None:
        return ()
    identity = store.parts.identity_as_known(node, result.identity)
    found = events_of(result.measurements)
    now = [dataclasses.replace(event, pci=store.device_events.part_of(event, identity)) for event in found]
    evidence: list[Evidence] = []
    for policy in policies:
        if now and policy.escalation is not None:
            boots = store.device_events.by_boot(store.device_events.standing(node, policy.escalation.within))
            boots.setdefault(str(identity.get("boot_id", "")), []).extend(now)
            evidence += returned(list(boots.values()), now, policy)
    return tuple(evidence)


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

    Errors that come back escalate by their machine's errors until then, since a person repaired it last, so
    ``records`` must be whole histories, oldest first (see ``store.device_events.recorded``).
    """
    records = [record for record in records if record.event.kind in after.kinds]
    machines: dict[tuple[str, bool, int], list[int]] = {}
    for place, record in enumerate(records):
        machines.setdefault((record.node, record.former, record.repairs), []).append(place)
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
    """Returns the response to each error of one machine between two repairs, as known at the end of its stage."""
    seen: dict[Key, dict[str, datetime.datetime]] = {}  # in which boots, and when last
    found: list[FinalResponse] = []
    for _, group in itertools.groupby(history, lambda record: (record.dag_id, record.run_id, record.stage)):
        stage = [(record, dataclasses.replace(record.event, pci=record.part)) for record in group]
        for record, known in stage:
            if (key := may_escalate(known, policy)) is not None:
                seen.setdefault(key, {})[record.boot_id] = record.seen_at
        for record, known in stage:
            response = response_to(record.event, policy, record.during)
            at = seen.get(key_of(known, response), {}).values()
            found.append(_escalated(response, [record.seen_at - each for each in at], policy))
    return found


def _escalated(response: Response, ago: Sequence[datetime.timedelta], policy: EventPolicy) -> FinalResponse:
    """Returns the policy's escalation if the error returned in enough boots, unless ``response`` is graver.

    ``ago``: how long ago it was seen last in each boot that had it.
    """
    final = FinalResponse(**vars(response))
    last = policy.escalation
    if last is None or GRAVITY[last.severity] > GRAVITY[response.severity]:
        return final
    boots = sum(each <= last.within for each in ago)
    if boots < last.boots:
        return final
    cited = policy.citing(last.source)
    return dataclasses.replace(final, severity=last.severity, action=last.action, source=cited, boots=boots)
