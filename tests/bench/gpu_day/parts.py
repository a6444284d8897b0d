"""The parts of the day, in order of value, with the seconds that each may take. Standard library only: it travels."""

from __future__ import annotations

import dataclasses

ALL_S = 900.0
"""A machine with a GPU may be lent for a quarter of an hour; no part takes as long as it may."""
COMMAND_S = 600.0
"""The longest command there."""
SHARED = "@shared@"
"""Stands in the plans of a block for the folder that its members share, which only the machine knows."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A command of its own. ``bars``: (metric, labels that the measurement must carry, least value)."""

    name: str
    limit_s: float
    what: str
    bars: tuple[tuple[str, dict[str, str], float], ...] = ()


PARTS = (
    Part("stages", 200.0, "each stage by the zipapp; its results are judged afterwards"),
    Part("record", 45.0, "NCCL's log on one GPU, and what the tools print, as recorded files"),
    Part("block", 80.0, "two members on the one GPU by NCCL: collectives, training by DDP and by FSDP2, checkpoints"),
    Part("integrity", 120.0, "checked products to raw ones, memory patterns to copies, planted faults found"),
    Part("rates", 110.0, "products in all formats, memory and host copies"),
    Part(
        "soak",
        150.0,
        "time under load, T.Limit, clocks, throttling, power pulses",
        (("load_share", {}, 95.0), ("sensor_share", {}, 95.0)),
    ),
    Part("train", 80.0, "the training's model alone on the GPU, plain and by torch.compile"),
)
PART = {part.name: part for part in PARTS}
REHEARSAL_S = 900.0
"""A part of a rehearsal may take this long: on a CPU under other load, the real limits measure the machine alone."""


def part_of(name: str, *, rehearse: bool) -> Part:
    """The part of this name, with the limit that holds here."""
    return dataclasses.replace(PART[name], limit_s=REHEARSAL_S) if rehearse else PART[name]
