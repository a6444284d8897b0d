"""The parts of the day, in order of value, with the seconds that each may take. Standard library only: it travels."""

from __future__ import annotations

import dataclasses

ALL_S = 1500.0
"""A machine with a GPU is lent for half an hour, of which starting it and the transfers take a part."""
COMMAND_S = 600.0
"""The longest command there."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A command of its own. ``bars``: (metric, labels that the measurement must carry, least value)."""

    name: str
    limit_s: float
    what: str
    bars: tuple[tuple[str, dict[str, str], float], ...] = ()


PARTS = (
    Part("integrity", 420.0, "checked products to raw ones, memory patterns to copies, planted faults found"),
    Part(
        "rates",
        210.0,
        "products against their shape search, memory and host copies",
        (("gemm_rate_to_best", {"dtype": "bf16"}, 98.0),),
    ),
    Part(
        "soak",
        270.0,
        "time under load, T.Limit, clocks, throttling, power pulses",
        (("load_share", {}, 95.0), ("sensor_share", {}, 95.0)),
    ),
    Part("stages", 480.0, "each stage by the zipapp; its results are judged afterwards"),
    Part("record", 90.0, "NCCL's log on one GPU, and what the tools print, as recorded files"),
)
PART = {part.name: part for part in PARTS}
