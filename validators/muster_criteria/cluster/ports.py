"""Ports of a block's members: error rates over all rounds and collectives together, and time without a link.

One round is too short to prove a rate, so counts and minutes are summed over all that a member took part in. The rate
is the lower limit that the sum proves at 95 % (``counts.rate_limits``). If most members of a leaf break a limit on one
rail, it is their switch's fault; where leaves are not known, several members may share a switch: then none of them
fails, and none passes.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from muster_criteria.cluster.fabric.decoding.nodes import MOST, most_of_a_leaf
from muster_criteria.cluster.fabric.topology import LEAF_LABEL, Topology
from muster_criteria.cluster.model import BlockFindings
from muster_criteria.counts import rate_limits
from muster_criteria.measured import Measured
from muster_criteria.model import Action, Extent, FaultClass, Finding, Lack, Severity
from muster_criteria.sku_files.limits import Limit
from muster_criteria.words import against, listed

RATE, DOWN = "ib_error_rate", "port_down"
COUNTED = ("port_watched", "port_errors", DOWN)

COMMON_MIN = 3
"""Fewest members with the same fault of the same port for which a switch may be at fault without a known leaf: chosen
here. If all leaves of a block are known, it must also be most members: three independent bad cables are common in a
large block."""


@dataclasses.dataclass
class _Port:
    """``errors`` by counter over ``minutes`` watched; seconds ``down``; ``odd``: an impossible value; ``unread``:
    {counter that was full or got lost: why}; ``reset``: counters that were reset meanwhile."""

    minutes: float = 0.0
    down: float = 0.0
    errors: dict[str, float] = dataclasses.field(default_factory=lambda: defaultdict(float))
    odd: str = ""
    unread: dict[str, str] = dataclasses.field(default_factory=dict)
    reset: set[str] = dataclasses.field(default_factory=set)

    @property
    def unproved(self) -> str:
        """Why its rates prove nothing, "" if they do."""
        if self.minutes <= 0 and any(self.errors.values()):
            return self.odd or "counted errors, and how long it was watched is not known"
        return self.odd


def port_limits(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """The limits of a SKU on ports under load: ceilings of error rates by counter, and of the time without link."""
    return tuple(each for each in limits if each.metric in (RATE, DOWN) and each.key == "ceiling")


def judge_ports(
    rows: Mapping[str, Sequence[Measured]], limits: Mapping[str, Sequence[Limit]], block: BlockFindings,
    topology: Topology | None = None,
) -> None:  # fmt: skip
    """Adds a finding for each limit that a port breaks. ``rows`` of all its probes, and ``limits``, by member.

    ``topology``: of the block, None where nothing is known of it.
    """
    broken: dict[tuple[object, ...], dict[str, Finding]] = defaultdict(dict)
    having: dict[str, set[str]] = defaultdict(set)
    for member, own in rows.items():
        for device, port in sorted(_ports(own).items()):
            having[device].add(member)
            if port.unproved:
                block.suspect([member], Lack.REFUSED, f"{device} {port.unproved}")
            needed = {each.labels.get("counter", "") for each in limits[member] if each.breach == "fail"}
            unread = {name: why for name, why in port.unread.items() if name in needed or name in COUNTED}
            if unread:
                (counter, why), *_ = sorted(unread.items())
                more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
                block.suspect([member], Lack.UNREADABLE, f"{device} {counter}{more} is not known: {why}")
            if reset := sorted(needed & port.reset):
                block.add(member, _reset(device, reset))
            for limit in limits[member]:
                if finding := _broken(device, port, limit):
                    broken[device, finding.metric, finding.labels][member] = finding
    for found in broken.values():
        (first, *_) = found.values()
        critical = any(each.severity is Severity.CRITICAL for each in found.values())
        common = _behind_switches(found, having[first.device], topology) if critical else []
        for members in common:
            _common(first, members, block, known=topology is not None and topology.known)
        for member, finding in found.items():
            if not any(member in members for members in common):
                block.add(member, finding)


def _behind_switches(
    found: Collection[str], having: Collection[str], topology: Topology | None
) -> list[Collection[str]]:
    """By switch, the members with a fault that may share that switch. ``having``: all members with such a port."""
    if topology is None or not topology.known:
        return [found] if len(found) >= COMMON_MIN else []
    if len(found) >= max(COMMON_MIN, MOST * len(having)):
        return [found]
    leaf = {member: topology.leaf_of[topology.index[member]] for member in having if member in topology.index}
    groups: list[Collection[str]] = []
    for at in sorted(set(leaf.values())):
        members = [member for member in having if leaf.get(member) == at]
        ill = [member for member in members if member in found]
        if most_of_a_leaf(len(ill), len(members)):
            groups.append(ill)
    return groups


def _common(first: Finding, members: Collection[str], block: BlockFindings, *, known: bool) -> None:
    what = " ".join((first.metric, *(value for _, value in first.labels)))
    doubt = "" if known else f", or each port: leaves are not known, so give the nodes the label {LEAF_LABEL}"
    why = (
        f"{what} of {first.device} is above its limit on {listed(sorted(members))}: "
        f"suspect the switch of that rail{doubt}"
    )
    block.suspect(members, Lack.BAD_PATH, why)
    block.note(why)


def _ports(rows: Iterable[Measured]) -> dict[str, _Port]:
    ports: dict[str, _Port] = defaultdict(_Port)
    for row in rows:
        if row.metric not in COUNTED:
            continue
        reset = bool(row.labels.get("reset"))
        if reset:
            ports[row.device].reset.add(row.labels.get("counter", ""))
        if row.value is None and reset:
            continue
        if row.value is None:
            ports[row.device].unread[row.labels.get("counter", row.metric)] = row.note or "the node does not say why"
        elif row.value < 0:  # and it takes nothing from what the other rounds counted
            ports[row.device].odd = f"sent {row.metric} {row.value:g}, which is less than nothing"
        elif row.metric == "port_watched":
            ports[row.device].minutes += row.value
        elif row.metric == "port_errors":
            ports[row.device].errors[row.labels.get("counter", "")] += row.value
        elif row.metric == DOWN:
            ports[row.device].down += row.value
    return ports


def _reset(device: str, counters: list[str]) -> Finding:
    what = f"{listed(counters)} of {device}"
    return Finding(
        rule="ports",
        metric="port_errors",
        device=device,
        severity=Severity.WARNING,
        fault_class=FaultClass.SOFTWARE,
        action=Action.INSPECT,
        observed=f"reset while the block ran: {listed(counters)}",
        expected="counters that are not reset while a block is tested",
        source="a counter that fell was reset, and what it had gained before is not known",
        summary=f"{what} fell while the block ran, which may hide errors: do not reset it meanwhile (perfquery -R).",
    )


def _broken(device: str, port: _Port, limit: Limit) -> Finding | None:
    ceiling, counter, minutes = float(limit.value), limit.labels.get("counter", ""), f"{port.minutes:.3g} min"
    value = counted = port.down if limit.metric == DOWN else port.errors.get(counter, 0.0)
    proved = limit.metric == RATE and ceiling > 0  # else any is too many, however long the port was watched
    if proved:
        value = rate_limits(counted, port.minutes / 60.0)[0] if port.minutes > 0 else 0.0
    if value <= ceiling:
        return None
    shown, most = against(value, ceiling, "")
    if limit.metric == DOWN:
        observed = f"{shown} s without a link in {minutes}"
    else:
        observed = f"{counted:.0f} in {minutes}" + (f", which prove {shown} an hour" if proved else "")
    return Finding(
        rule="ceiling",
        metric=limit.metric,
        device=device,
        severity=Severity.CRITICAL if limit.breach == "fail" else Severity.WARNING,
        fault_class=limit.fault,
        action=limit.action,
        observed=observed,
        expected=f"≤ {most} {limit.unit}",
        source=limit.source,
        summary=f"{device} {limit.meaning}: {observed}.",
        labels=(("counter", counter),) if counter else (),
        extent=Extent(value, limit.unit, "higher"),
    )
