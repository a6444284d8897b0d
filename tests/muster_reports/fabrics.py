"""What the rounds of an invented block found, of any size: a slow NIC, a slow uplink, a path that corrupts."""

from __future__ import annotations

import random

from muster_criteria.cluster.fabric.decoding.parts import PartKind, Symptom
from muster_criteria.cluster.fabric.judging.found import Fabric, FaultyPart, MatrixCell, RailMatrix


def fabric(nodes: int = 8, rails: int = 2, *, faults: bool = True) -> Fabric:
    """Three rounds of random pairs, both directions."""
    draw, names = random.Random(1), tuple(f"gpu-{at:04d}" for at in range(nodes))
    return Fabric(
        3, _parts(names) if faults else (), ("2 cells were low and no part explains them: passing hot spots.",),
        tuple(_matrix(draw, names, rail, faults=faults) for rail in range(rails)),
    )  # fmt: skip


def _parts(names: tuple[str, ...]) -> tuple[FaultyPart, ...]:
    return (
        FaultyPart(PartKind.NIC, Symptom.SLOW, names[5], "r1", names[5], 0.4, (1, 2, 3), names[:3], (names[5],), True),
        FaultyPart(PartKind.UPLINK, Symptom.SLOW, "leaf-2", "r0", "", 0.6, (2, 3), names[:4], names[4:8], True),
        FaultyPart(
            PartKind.PATH, Symptom.CORRUPTS, "leaf-0 – leaf-1", "r0", "", 0.0, (2,), names[:2], names[:2], False
        ),
    )


def _matrix(draw: random.Random, names: tuple[str, ...], rail: int, *, faults: bool) -> RailMatrix:
    cells: dict[tuple[str, str], MatrixCell] = {}
    for _ in range(3):
        order = draw.sample(names, len(names))
        for one, other in zip(order[::2], order[1::2], strict=False):
            for pair in ((one, other), (other, one)):
                share = draw.gauss(1.0, 0.01) * (0.4 if faults and rail == 1 and names[5] in pair else 1.0)
                wrong = faults and rail == 0 and pair[0] == names[2]
                cells[pair] = MatrixCell(*pair, 390 * share, share, wrong)
    return RailMatrix(f"r{rail}", names, tuple(cells.values()))
