"""What history says of XIDs: errors that restarting does not mend, and what another policy would have done."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from muster.records import XidRecord, by_boot, part_of, recorded_xids
from muster_criteria.measured import StageResult
from muster_criteria.model import Evidence
from muster_criteria.xid.judge import events_of, returned
from muster_criteria.xid.policy import GRAVITY, Ruling, XidEvent, XidPolicy, XidSeverity, returning, rule


def returning_xids(node: str, result: StageResult | None, policy: XidPolicy | None) -> tuple[Evidence, ...]:
    """Evidence for each error of this result that earlier boots of the same machine had too, often enough."""
    if result is None or policy is None:
        return ()
    identity = dict(result.identity)
    now = [dataclasses.replace(event, pci=part_of(event, identity)) for event in events_of(result.measurements)]
    if not now:
        return ()
    boots = by_boot(recorded_xids(node=node))
    boots.setdefault(str(identity.get("boot_id", "")), []).extend(now)
    return returned(list(boots.values()), now, policy)


@dataclasses.dataclass(frozen=True)
class Ruled(Ruling):
    """What a policy asked for in the end. ``boots``: in how many the error had come back, where that is why; else 0."""

    boots: int = 0


@dataclasses.dataclass(frozen=True)
class Replayed:
    """One recorded error under two policies; ``before`` is None where none was in force."""

    record: XidRecord
    before: Ruled | None
    after: Ruled

    @property
    def changed(self) -> bool:
        """Whether the other policy asks for something else."""
        return self.before is None or (self.before.severity, self.before.action) != (
            self.after.severity,
            self.after.action,
        )

    @property
    def graver(self) -> bool:
        """Whether it asks for more."""
        return self.before is not None and GRAVITY[self.after.severity] < GRAVITY[self.before.severity]


def replay(records: Sequence[XidRecord], before: dict[str, XidPolicy | None], after: XidPolicy) -> list[Replayed]:
    """Every recorded error under the policy that its SKU has now (``before``, by SKU) and under ``after``, in order.

    Errors that come back escalate by what their machine had told until then, so ``records`` must be whole histories,
    oldest first (see ``recorded_xids``).
    """
    machines: dict[tuple[str, bool], list[int]] = {}
    for place, record in enumerate(records):
        machines.setdefault((record.node, record.former), []).append(place)
    found: dict[int, Replayed] = {}
    for places in machines.values():
        told = [records[place] for place in places]
        policies = {sku: before.get(sku) for sku in {record.sku for record in told}}
        then = {sku: _ruled(told, policy) for sku, policy in policies.items() if policy is not None}
        for at, (place, now) in enumerate(zip(places, _ruled(told, after), strict=True)):
            sku = records[place].sku
            found[place] = Replayed(records[place], then[sku][at] if sku in then else None, now)
    return [found[place] for place in range(len(records))]


def _ruled(told: Sequence[XidRecord], policy: XidPolicy) -> list[Ruled]:
    """What the policy says of each error of one machine, stage by stage, with what it knew when the stage ended."""
    seen: dict[_Key, dict[str, dict[XidSeverity, XidEvent]]] = {}
    often: dict[_Key, int] = {}
    found: list[Ruled] = []
    for _, group in itertools.groupby(told, lambda record: (record.dag_id, record.run_id, record.stage)):
        stage = [(record, rule(record.event, policy)) for record in group]
        for record, ruling in stage:
            of_boot = seen.setdefault(_key(record), {}).setdefault(record.boot_id, {})
            if ruling.severity not in of_boot:  # one message of a boot is as good as a thousand, and asked about once
                of_boot[ruling.severity] = dataclasses.replace(record.event, pci=record.part)
                often |= returning([events.values() for events in seen[_key(record)].values()], policy)
        found += [_escalated(ruling, often.get(_key(record), 0), policy) for record, ruling in stage]
    return found


_Key = tuple[str, str, int]


def _key(record: XidRecord) -> _Key:
    """The key of ``returning``, where ``pci`` names the part."""
    return record.part, record.event.kind, record.event.code


def _escalated(ruling: Ruling, boots: int, policy: XidPolicy) -> Ruled:
    """The ruling; the policy's escalation instead where the error came back, unless the ruling is graver anyway."""
    said = Ruled(**vars(ruling))
    last = policy.escalation
    if not boots or GRAVITY[last.severity] > GRAVITY[ruling.severity]:
        return said
    cited = policy.citing(last.source)
    return dataclasses.replace(said, severity=last.severity, action=last.action, source=cited, boots=boots)
