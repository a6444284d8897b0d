"""What history says of XIDs: errors that restarting does not mend, and what another policy would have done."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from muster import store
from muster.model.statistics import RecordedXid
from muster_criteria.measured import StageResult
from muster_criteria.model import Evidence
from muster_criteria.xid.judge import events_of, returned
from muster_criteria.xid.policy import GRAVITY, Response, XidEvent, XidPolicy, XidSeverity, response_to, returning


def returning_xids(node: str, result: StageResult | None, policy: XidPolicy | None) -> tuple[Evidence, ...]:
    """Evidence for each error of this result that earlier boots of the same machine had too, often enough."""
    if result is None or policy is None:
        return ()
    identity = dict(result.identity)
    now = [
        dataclasses.replace(event, pci=store.xids.part_of(event, identity)) for event in events_of(result.measurements)
    ]
    if not now:
        return ()
    boots = store.xids.by_boot(store.xids.recorded(node=node))
    boots.setdefault(str(identity.get("boot_id", "")), []).extend(now)
    return returned(list(boots.values()), now, policy)


@dataclasses.dataclass(frozen=True)
class FinalResponse(Response):
    """A response after escalation. ``boots``: in how many boots the error returned, if it escalated; else 0."""

    boots: int = 0


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One recorded error under two policies; ``before`` is None if its SKU has no policy."""

    record: RecordedXid
    before: FinalResponse | None
    after: FinalResponse

    @property
    def changed(self) -> bool:
        """Whether the other policy responds differently."""
        return self.before is None or (self.before.severity, self.before.action) != (
            self.after.severity,
            self.after.action,
        )

    @property
    def graver(self) -> bool:
        """Whether the other policy's response is graver."""
        return self.before is not None and GRAVITY[self.after.severity] < GRAVITY[self.before.severity]


def compare(records: Sequence[RecordedXid], before: dict[str, XidPolicy | None], after: XidPolicy) -> list[Comparison]:
    """Every recorded error under the policy that its SKU has now (``before``, by SKU) and under ``after``, in order.

    Errors that come back escalate by their machine's errors until then, so ``records`` must be whole histories,
    oldest first (see ``store.xids.recorded``).
    """
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


def _responses(history: Sequence[RecordedXid], policy: XidPolicy) -> list[FinalResponse]:
    """Returns the response to each error of one machine, as known at the end of its stage."""
    seen: dict[_Key, dict[str, dict[XidSeverity, XidEvent]]] = {}
    often: dict[_Key, int] = {}
    found: list[FinalResponse] = []
    for _, group in itertools.groupby(history, lambda record: (record.dag_id, record.run_id, record.stage)):
        stage = [(record, response_to(record.event, policy)) for record in group]
        for record, response in stage:
            of_boot = seen.setdefault(_key(record), {}).setdefault(record.boot_id, {})
            if response.severity not in of_boot:  # one message per boot and severity is enough
                of_boot[response.severity] = dataclasses.replace(record.event, pci=record.part)
                often |= returning([events.values() for events in seen[_key(record)].values()], policy)
        found += [_escalated(response, often.get(_key(record), 0), policy) for record, response in stage]
    return found


_Key = tuple[str, str, int]


def _key(record: RecordedXid) -> _Key:
    """The key of ``returning``, where ``pci`` names the part."""
    return record.part, record.event.kind, record.event.code


def _escalated(response: Response, boots: int, policy: XidPolicy) -> FinalResponse:
    """Returns the policy's escalation if the error returned in enough ``boots``, unless ``response`` is graver."""
    final = FinalResponse(**vars(response))
    last = policy.escalation
    if not boots or GRAVITY[last.severity] > GRAVITY[response.severity]:
        return final
    cited = policy.citing(last.source)
    return dataclasses.replace(final, severity=last.severity, action=last.action, source=cited, boots=boots)
