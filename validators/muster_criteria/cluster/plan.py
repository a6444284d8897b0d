"""What a block is asked to do: the probe calls of each member, equal but for its rank, and the job's deadline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster_criteria.cluster.model import COLLECTIVES, TRAINING
from muster_criteria.sku_files.model import LEVELS
from muster_criteria.sku_files.programme import START_AND_COLLECT_S, CallSpec

JOIN_TIMEOUT_S = 60.0
"""A member that does not come up is named by the others after so long."""

_TIMEOUTS_S = {"demo": 120.0, "short": 300.0, "standard": 1200.0, "long": 3600.0}

_PARAMS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    COLLECTIVES: {
        "demo": {"mib": [1], "repeats": 5},
        "short": {"mib": [1, 64], "repeats": 10},
        "standard": {"mib": [1, 64, 512], "repeats": 20},
        "long": {"mib": [1, 64, 512, 2048], "repeats": 50},
    },
    TRAINING: {
        "demo": {"same_steps": 3, "steps": 5, "layers": 2, "step_s": 0.7},
        "short": {"same_steps": 10, "steps": 10},
        "standard": {"same_steps": 50, "steps": 50},
        "long": {"same_steps": 500, "steps": 200},
    },
}


def cluster_calls(
    members: Sequence[str],
    *,
    master_addr: str,
    master_port: int,
    session: str,
    level: str,
    seed: int,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, tuple[CallSpec, ...]]:
    """The calls of each member, by name; ``members`` in order of rank, the first being the master.

    ``overrides`` are parameters by probe, for all members alike: members that are told different things refuse each
    other. Raises ValueError for an unknown level, or fewer than two members.
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
    params = {
        probe: {**shared, **levels[level], **(overrides or {}).get(probe, {})} for probe, levels in _PARAMS.items()
    }
    return {
        name: tuple(
            CallSpec(probe, {**given, "rank": rank}, _TIMEOUTS_S[level] + JOIN_TIMEOUT_S, seed)
            for probe, given in params.items()
        )
        for rank, name in enumerate(members)
    }


def cluster_deadline_s(level: str) -> float:
    """Seconds after which each member ends its job by itself."""
    return START_AND_COLLECT_S + len(_PARAMS) * (_TIMEOUTS_S[level] + JOIN_TIMEOUT_S)
