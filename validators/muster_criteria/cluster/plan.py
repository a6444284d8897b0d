"""The programme of a block: the probe calls of each member, the job's deadline, and what must be measured."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator

from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import LEVELS, ProbeUse, Requirement
from muster_criteria.sku_files.programme import START_AND_COLLECT_S, CallSpec
from muster_criteria.sku_files.skus import SHIPPED
from muster_criteria.written import Written, as_tuple

JOIN_TIMEOUT_S = 60.0
"""Seconds after which the others report a member that did not join."""

FILE = SHIPPED / "programmes" / "block.yaml"


class BlockProgramme(Written):
    """The steps of every member of a block, in order, its required measurements, and the limits of its pace."""

    programme: str
    title: str
    probes: dict[str, ProbeUse]
    limits: Annotated[tuple[Limit, ...], BeforeValidator(as_tuple)]

    @property
    def needs(self) -> Iterator[tuple[str, Requirement, Mapping[str, str]]]:
        """(probe, requirement, labels) of each metric that a member must have measured."""
        for probe, use in self.probes.items():
            for requirement in use.require:
                keys = sorted(requirement.labels)
                for values in itertools.product(*(requirement.labels[key] for key in keys)):
                    yield probe, requirement, dict(zip(keys, values, strict=True))

    def limit(self, metric: str, breach: str, **labels: str) -> Limit:
        """The limit of this metric with these labels whose breach means ``breach``. Raises StopIteration."""
        return next(each for each in self.limits if (each.metric, each.breach, each.labels) == (metric, breach, labels))


@functools.cache
def block_programme() -> BlockProgramme:
    """The shipped programme ``programmes/block.yaml``."""
    return BlockProgramme.model_validate(yaml.safe_load(FILE.read_text()))


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

    ``overrides``: parameters by probe, the same for all members, since members with different parameters refuse each
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
    probes = block_programme().probes
    params = {
        probe: {**shared, **_set(use.params_at(level)), **(overrides or {}).get(probe, {})}
        for probe, use in probes.items()
    }
    return {
        name: tuple(
            CallSpec(probe, {**given, "rank": rank}, probes[probe].timeout_at(level) + JOIN_TIMEOUT_S, seed)
            for probe, given in params.items()
        )
        for rank, name in enumerate(members)
    }


def cluster_deadline_s(level: str) -> float:
    """Seconds after which each member ends its job by itself."""
    return START_AND_COLLECT_S + sum(
        use.timeout_at(level) + JOIN_TIMEOUT_S for use in block_programme().probes.values()
    )


def _set(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}
