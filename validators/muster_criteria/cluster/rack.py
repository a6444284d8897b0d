"""A rack that is one NVLink domain, as a unit with a state of its own."""

from __future__ import annotations

import dataclasses
import enum


class Trouble(enum.StrEnum):
    """What can be wrong with the NVLink domain of a node or rack, by the metric that shows it."""

    NOT_JOINED = "fabric_state"
    UNHEALTHY = "fabric_healthy"
    IDENTITY = "nvlink_domain"
    SPLIT = "nvlink_domain_split"
    IMEX = "imex"
    NO_GAIN = "domain_busbw"


@dataclasses.dataclass(frozen=True)
class RackState:
    """One rack-scale domain as a block saw it. ``troubles``: the rack's own, as (code, sentence); empty if it is good.

    ``held``: nodes whose domain has a trouble: all of them unless the rack is partitioned.
    """

    rack: str
    nodes: tuple[str, ...]
    troubles: tuple[tuple[Trouble, str], ...] = ()
    held: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The troubles in a sentence."""
        return f"rack {self.rack or 'without a name'}: {'; '.join(words for _, words in self.troubles)}"
