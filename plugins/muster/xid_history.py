"""What history says of XIDs: errors that restarting does not mend, and what another policy would have done."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from muster.records.xids import XidRecord, by_boot, part_of, recorded_xids
from muster_criteria.measured import StageResult
from muster_criteria.model import Evidence
from muster_criteria.xid import GRAVITY, Ruling, XidPolicy, rule
from muster_criteria.xid_judge import events_of, returned


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
class Replayed:
    """One recorded error under two policies; ``before`` is None where none was in force."""

    record: XidRecord
    before: Ruling | None
    after: Ruling

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
    """Every recorded error under the policy that its SKU has now (``before``, by SKU) and under ``after``."""
    return [
        Replayed(record, None if policy is None else rule(record.event, policy), rule(record.event, after))
        for record in records
        for policy in (before.get(record.sku),)
    ]
