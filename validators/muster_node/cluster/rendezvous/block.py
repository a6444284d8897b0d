"""A block: the nodes tested together, as each member's plan names them, and the time limits of their rendezvous."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from muster_node.agent import facts
from muster_node.contract import LABEL
from muster_node.probe import Metric, Param

PORT_MAX = 65535

PARAMS: dict[str, Param] = {
    "rank": Param(None, "this node's place in members, counted from 0"),
    "members": Param(None, "the nodes' names, by rank"),
    "master_addr": Param(None, "address of the first member, as the others reach it"),
    "master_ports": Param(None, "TCP ports on the first member, open to the others: the first that is free there"),
    "session": Param(None, "secret text of this block and run: who does not know it is not let in"),
    "join_timeout_s": Param(60.0, "real seconds that a member is waited for before the others go home"),
    "stall_timeout_s": Param(15.0, "real seconds without a sign of life after which a member counts as lost"),
    "progress_timeout_s": Param(120.0, "real seconds without progress after which a living member counts as stuck"),
    "interface": Param(None, "network interface of the collectives' bootstrap; None: the one that leads to the master"),
}
"""What every probe of a block takes. All but rank must be the same for all members."""

METRICS: dict[str, Metric] = {
    "member_missing": Metric(
        "count", "1 for a member that is not there or was lost (part: the device that failed), else 0"
    ),
    "block_intact": Metric("bool", "whether all members that came up ended the block together"),
    "join_lag": Metric("s", "real time by which this member joined later than the first"),
}
"""What every probe of a block reports, on "node"."""

_NAMED_MAX = 8
_TEXTS = ("master_addr", "session")
_LIMITS = ("join_timeout_s", "stall_timeout_s", "progress_timeout_s")


@dataclasses.dataclass(frozen=True)
class Block:
    """One member's view of the block. Times are real seconds. ``terms`` is a digest of what all must agree on."""

    rank: int
    members: tuple[str, ...]
    master_addr: str
    master_ports: tuple[int, ...]
    session: str
    join_timeout_s: float
    stall_timeout_s: float
    progress_timeout_s: float
    interface: str
    terms: str

    @property
    def name(self) -> str:
        """This member."""
        return self.members[self.rank]

    @property
    def master(self) -> str:
        """The member that the others meet at."""
        return self.members[0]

    @property
    def heartbeat_s(self) -> float:
        """Seconds between two heartbeats: a member is given up after six without one."""
        return min(1.0, self.stall_timeout_s / 6.0)


def block_of(probe: str, params: Mapping[str, Any], seed: int) -> Block:
    """The block that a probe's parameters describe. Raises ValueError, in one sentence, where they do not fit."""
    members = params["members"]
    if not isinstance(members, (list, tuple)) or not all(isinstance(m, str) and LABEL.fullmatch(m) for m in members):
        raise ValueError(f"members must be a list of node names, not {members!r}")
    if len(members) < 2 or len(set(members)) != len(members) or "" in members:
        raise ValueError(f"a block takes at least two members, each named once, not {members!r}")
    rank = params["rank"]
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < len(members):
        raise ValueError(f"rank must be a number from 0 to {len(members) - 1}, not {rank!r}")
    for name in _TEXTS:
        if not isinstance(params[name], str) or not params[name]:
            raise ValueError(f"{name} must be a text, not {params[name]!r}")
    limits = {name: _seconds(name, params[name]) for name in _LIMITS}
    return Block(
        rank=rank,
        members=tuple(members),
        master_addr=params["master_addr"],
        master_ports=ports_of("master_ports", params),
        session=params["session"],
        interface=params["interface"] or "",
        terms=_terms(probe, params, seed),
        **limits,
    )


def ports_of(name: str, params: Mapping[str, Any]) -> tuple[int, ...]:
    """The TCP ports that a parameter lists. Raises ValueError, in one sentence, where it does not."""
    ports = params[name]
    if not isinstance(ports, (list, tuple)) or not ports or not all(map(_is_port, ports)):
        raise ValueError(f"{name} must be a list of numbers from 1 to {PORT_MAX}, not {ports!r}")
    return tuple(ports)


def _is_port(port: Any) -> bool:
    return isinstance(port, int) and not isinstance(port, bool) and 0 < port <= PORT_MAX


def check_same(what: str, values: Sequence[tuple[str, str]]) -> None:
    """Raises ValueError if ``what`` differs from what most (node, value) say, or if there is no majority.

    One outlier is thus named, and does not keep the others in a collective that cannot work.
    """
    usual, count = collections.Counter(value for _, value in values).most_common(1)[0]
    if what != usual or 2 * count <= len(values):
        found = sorted({f"{name}: {value}" for name, value in values})
        raise ValueError("these members cannot work together ({})".format("; ".join(found[:_NAMED_MAX])))


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
        raise ValueError(f"{name} must be a positive number of seconds, not {value!r}")
    return float(value)


def _terms(probe: str, params: Mapping[str, Any], seed: int) -> str:
    """Members with different plans would compute different results, and look like faulty hardware."""
    shared = {name: value for name, value in params.items() if name not in ("rank", "session")}
    text = json.dumps([probe, shared, seed, facts.agent_sha256()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
