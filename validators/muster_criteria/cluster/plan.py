"""The programme of a block: the probe calls of each member, the job's deadline, and what must be measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muster_criteria.cluster.model import COLLECTIVES, TRAINING
from muster_criteria.sku_files.model import BlockProgramme, ProbeUse
from muster_criteria.sku_files.programme import START_AND_COLLECT_S, CallSpec, Need, needs_of
from muster_criteria.stages import LEVELS

PAIRS = "pair_rails"
"""The probe of the rounds; the other probes of a block run after them."""

MEETING = (COLLECTIVES, TRAINING)
"""The probes in which the members meet; any other is each member's own."""

JOIN_TIMEOUT_S = 60.0
"""Seconds after which the others report a member that did not join."""

PATH_NODE_S = 30.0
"""Extra seconds for each node in which a block may save and load: each load reads the whole checkpoint once for each
node. For the largest model that is trained (8 B parameters and their moments) this is 96 GB, so 3.2 GB/s for one load.
Chosen here."""

MEMBERS_MAX = 256
"""Members of a block, at most. Chosen here."""
SOAK_MINUTES_MAX = 2880
"""Two days: an error rate of one in a day has shown by then."""
FAULT_STEPS = 60
"""Steps of a training in which ranks are killed, if the programme has none at its longest level."""
FAULT_RUN_S = 1800.0
"""Extra seconds for a training in which ranks are killed: three starts of all ranks, and the steps between them."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a person requests for one block beyond its level. ``soak_minutes``: least duration of the collectives;
    ``fault_run``: whether ranks are killed, as at level long."""

    soak_minutes: int = 0
    fault_run: bool = False


def block_needs(block: BlockProgramme) -> Iterator[Need]:
    """Each metric, with labels, that a member of a block must have measured."""
    for probe, use in block.probes.items():
        yield from needs_of(probe, use.require)


def cluster_calls(
    block: BlockProgramme,
    members: Sequence[str],
    *,
    master_addr: str,
    master_ports: Sequence[int],
    session: str,
    level: str,
    seed: int,
    shared_path: str = "",
    asked: Asked = Asked(),
) -> dict[str, tuple[CallSpec, ...]]:
    """The calls of each member, by name; ``members`` in order of rank, the first being the master.

    ``shared_path``: the folder that all of them share, "" if there is none. ``asked``: beyond the level.

    Raises ValueError for an unknown level, or fewer than two members.
    """
    if level not in LEVELS:
        raise ValueError(f"there is no level {level!r}: it is one of {', '.join(LEVELS)}.")
    if len(members) < 2 or len(set(members)) != len(members):
        raise ValueError(f"a block is at least two members, each named once, not {list(members)!r}.")
    shared = {
        "members": list(members),
        "master_addr": master_addr,
        "master_ports": list(master_ports),
        "session": session,
        "join_timeout_s": JOIN_TIMEOUT_S,
    }
    probes = together(block)
    params = {probe: _params(probe, use, level, asked) for probe, use in probes.items()}
    for probe in MEETING:
        params[probe] = {**shared, **params.get(probe, {})}
    if shared_path:
        params[TRAINING]["shared_path"] = shared_path
    if "path_s" in params[TRAINING]:
        params[TRAINING]["path_s"] += PATH_NODE_S * len(members)
    limits = {probe: _limit_s(probe, use, level, len(members), asked) for probe, use in probes.items()}
    return {
        name: tuple(
            CallSpec(probe, {**params[probe], **({"rank": rank} if probe in MEETING else {})}, limits[probe], seed)
            for probe in probes
        )
        for rank, name in enumerate(members)
    }


def together(block: BlockProgramme) -> dict[str, ProbeUse]:
    """The probes that all members run at once, after the rounds of pairs."""
    return {probe: use for probe, use in block.probes.items() if probe != PAIRS}


def domains_grow(block: BlockProgramme, level: str) -> bool:
    """Whether the programme has collectives over the NVLink domains that nodes share at this level."""
    return COLLECTIVES in block.probes and block.probes[COLLECTIVES].params_at(level).get("grow") is not False


def has_rounds(block: BlockProgramme, level: str) -> bool:
    """Whether the programme has rounds of pairs at this level."""
    return PAIRS in block.probes and level in block.probes[PAIRS].levels


def pair_deadline_s(block: BlockProgramme, level: str) -> float:
    """Seconds after which either side of a pair ends its own job."""
    return START_AND_COLLECT_S + block.probes[PAIRS].timeout_at(level) + JOIN_TIMEOUT_S


def pair_call(block: BlockProgramme, level: str, params: Mapping[str, Any], seed: int) -> CallSpec:
    """The call of one side of a pair. ``params``: of ``fabric.observed.pair_params``."""
    limit_s = block.probes[PAIRS].timeout_at(level) + JOIN_TIMEOUT_S
    return CallSpec(PAIRS, {**params, "join_timeout_s": JOIN_TIMEOUT_S}, limit_s, seed)


def cluster_deadline_s(block: BlockProgramme, level: str, nodes: int, asked: Asked = Asked()) -> float:
    """Seconds after which each member of a block of ``nodes`` nodes ends its own job."""
    limits = (_limit_s(probe, use, level, nodes, asked) for probe, use in together(block).items())
    return START_AND_COLLECT_S + sum(limits)


def _params(probe: str, use: ProbeUse, level: str, asked: Asked) -> dict[str, Any]:
    given = {name: value for name, value in use.params_at(level).items() if value is not None}
    if probe == COLLECTIVES and asked.soak_minutes:
        given["soak_minutes"] = max(asked.soak_minutes, given.get("soak_minutes", 0))
    if probe == TRAINING and asked.fault_run:
        given["fault_steps"] = use.params_at(LEVELS[-1]).get("fault_steps") or FAULT_STEPS
    return given


def _limit_s(probe: str, use: ProbeUse, level: str, nodes: int, asked: Asked) -> float:
    """Seconds that a probe may take, including the wait for other members where they meet."""
    more = {
        COLLECTIVES: 60.0 * asked.soak_minutes,
        TRAINING: FAULT_RUN_S * asked.fault_run + PATH_NODE_S * nodes,
    }.get(probe, 0.0)
    return use.timeout_at(level) + more + (JOIN_TIMEOUT_S if probe in MEETING else 0.0)
