"""The programme of a block: the probe calls of each member, the job's deadline, and what must be measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muster_criteria.cluster.model import TRAINING
from muster_criteria.sku_files.model import BlockProgramme
from muster_criteria.sku_files.programme import START_AND_COLLECT_S, CallSpec, Need, needs_of
from muster_criteria.stages import LEVELS

JOIN_TIMEOUT_S = 60.0
"""Seconds after which the others report a member that did not join."""


def block_needs(block: BlockProgramme) -> Iterator[Need]:
    """Each metric, with labels, that a member of a block must have measured."""
    for probe, use in block.probes.items():
        yield from needs_of(probe, use.require)


def cluster_calls(
    block: BlockProgramme,
    members: Sequence[str],
    *,
    master_addr: str,
    master_port: int,
    session: str,
    level: str,
    seed: int,
    shared_path: str = "",
) -> dict[str, tuple[CallSpec, ...]]:
    """The calls of each member, by name; ``members`` in order of rank, the first being the master.

    ``shared_path``: the folder that all of them share, "" if there is none.

    Raises ValueError for an unknown level, or fewer than two members.
    """
    if level not in LEVELS:
        raise ValueError(f"there is no level {level!r}: it is one of {', '.join(LEVELS)}.")
    if len(members) < 2 or len(set(members)) != len(members):
        raise ValueError(f"a block is at least two members, each named once, not {list(members)!r}.")
    shared = {
        "members": list(members),
        "world_size": len(members),
        "master_addr": master_addr,
        "master_port": master_port,
        "session": session,
        "join_timeout_s": JOIN_TIMEOUT_S,
    }
    probes = block.probes
    params = {probe: {**shared, **_set(use.params_at(level))} for probe, use in probes.items()}
    if shared_path and TRAINING in params:
        params[TRAINING]["shared_path"] = shared_path
    return {
        name: tuple(
            CallSpec(probe, {**given, "rank": rank}, probes[probe].timeout_at(level) + JOIN_TIMEOUT_S, seed)
            for probe, given in params.items()
        )
        for rank, name in enumerate(members)
    }


def cluster_deadline_s(block: BlockProgramme, level: str) -> float:
    """Seconds after which each member ends its job by itself."""
    return START_AND_COLLECT_S + sum(use.timeout_at(level) + JOIN_TIMEOUT_S for use in block.probes.values())


def _set(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}
