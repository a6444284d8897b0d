"""Ports of a block's members: error rates over all rounds and collectives together, and time without a link.

One round is too short to prove a rate: counts and minutes of all that a member took part in are summed, and the rate is
the lower limit of what the sum proves, at 95 % (``counts.rate_limits``).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from muster_criteria.cluster.model import BlockFindings
from muster_criteria.counts import rate_limits
from muster_criteria.measured import Measured
from muster_criteria.model import Finding, Severity
from muster_criteria.sku_files.limits import Limit

RATE, DOWN = "ib_error_rate", "port_down"


@dataclasses.dataclass
class _Port:
    """``errors`` by counter, while it was watched so long (min); seconds ``down``."""

    minutes: float = 0.0
    down: float = 0.0
    errors: dict[str, float] = dataclasses.field(default_factory=lambda: defaultdict(float))


def port_limits(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """Those of a SKU that are on ports under load: ceilings of error rates by counter, and of the time without link."""
    return tuple(each for each in limits if each.metric in (RATE, DOWN) and each.key == "ceiling")


def judge_ports(
    rows: Mapping[str, Sequence[Measured]], limits: Mapping[str, Sequence[Limit]], block: BlockFindings
) -> None:
    """Adds a finding for each limit that a port breaks. ``rows`` of all its probes, and ``limits``, by member."""
    for member, own in rows.items():
        for device, port in sorted(_ports(own).items()):
            for limit in limits[member]:
                _judge(member, device, port, limit, block)


def _ports(rows: Iterable[Measured]) -> dict[str, _Port]:
    ports: dict[str, _Port] = defaultdict(_Port)
    for row in rows:
        if row.value is None:
            continue
        if row.metric == "port_watched":
            ports[row.device].minutes += row.value
        elif row.metric == "port_errors":
            ports[row.device].errors[row.labels.get("counter", "")] += row.value
        elif row.metric == DOWN:
            ports[row.device].down += row.value
    return ports


def _judge(member: str, device: str, port: _Port, limit: Limit, block: BlockFindings) -> None:
    ceiling, counter = float(limit.value), limit.labels.get("counter", "")
    if limit.metric == DOWN:
        value, observed = port.down, f"{port.down:.0f} s without a link in {port.minutes:.3g} min"
    else:
        count = port.errors.get(counter, 0.0)
        value = rate_limits(count, port.minutes / 60.0)[0] if port.minutes > 0 else 0.0
        observed = f"{count:.0f} in {port.minutes:.3g} min, which prove {value:.3g} an hour"
    if value <= ceiling:
        return
    critical = limit.breach == "fail"
    block.add(
        member,
        Finding(
            rule="ceiling",
            metric=limit.metric,
            device=device,
            severity=Severity.CRITICAL if critical else Severity.WARNING,
            fault_class=limit.fault,
            action=limit.action,
            observed=observed,
            expected=f"≤ {ceiling:g} {limit.unit}",
            source=limit.source,
            summary=f"{device} {limit.meaning}: {observed}.",
            labels=(("counter", counter),) if counter else (),
        ),
    )
