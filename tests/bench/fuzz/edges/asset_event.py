"""Asset events that announce new hardware, up to the node, its delivery and the inventory line that would enrol it."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from muster.errors import MusterError
from muster.operators.lifecycle import arrival
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken

KEY = "gpu-0001__PO-4711"
EXTRA = {"level": "long", "inventory": {"host": "10.0.0.1", "sku": "h100-sxm-8", "rack": 12, "labels": {"team": "a"}}}
BAD: dict[str, tuple[Any, list[Any]]] = {
    "no key": (None, [{}]),
    "a path as a node": ("../gpu__PO", [{}]),
    "no delivery": ("gpu-0001__ ", [{}]),
    "two events that differ": (KEY, [{"level": "short"}, {"level": "long"}]),
    "a level that is none": (KEY, [{"level": "none"}]),
    "an unknown field": (KEY, [{"force": True}]),
    "one good event and one bad": (KEY, [{}, {"level": 7}]),
}


def _draw(rng: random.Random) -> Sample:
    if rng.random() < 0.3:
        what, (key, extras) = rng.choice(list(BAD.items()))
        return Sample((key, copy.deepcopy(extras)), what)
    key = KEY if rng.random() < 0.5 else str(mutate.text(rng, KEY))
    extras = [mutate.document(rng, copy.deepcopy(EXTRA)) for _ in range(rng.choice((1, 1, 2)))]
    return Sample((key, json.loads(json.dumps(extras))))


def _read(sample: Sample) -> Taken:
    found = arrival.read(*sample.data)
    return Taken([found.node, found.reason], well=True)


EDGE = Edge(_draw, _read, (MusterError,), peak_bytes=32 * 2**20)
