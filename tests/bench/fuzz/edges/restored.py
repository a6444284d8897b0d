"""Documents that the records keep, as a broken disk or a restore of another version may give them back."""

from __future__ import annotations

import datetime
import functools
import json
import random
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from muster.errors import MusterError
from muster.rules.idle import hazard
from muster.rules.idle.past import Learned
from muster.rules.lifecycle import certificate
from muster_criteria.fleet.peers.snapshot import Snapshot
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.skus import load_sku
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken
from tests.muster import fleet

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
CONTENT = {
    "id": "c-1", "node": "gpu-0001", "verdict": "PASS", "expires_at": (NOW + datetime.timedelta(days=30)).isoformat(),
    "serials": {"system": "S1", "gpu0": "G0"}, "environment": {"driver": "570.1"},
}  # fmt: skip


@functools.cache
def _kept() -> dict[str, bytes]:
    prior = hazard.public_prior().model
    learned = Learned(prior, tuple(tuple(f"v{each}" for each in range(len(ratios))) for ratios in prior.labels))
    return {
        "snapshot": fleet.peers([600.0 + each for each in range(20)]).to_bytes(),
        "certificate": certificate.sign(CONTENT, KEY).encode(),
        "learned": learned.to_json().encode(),
        "revision": load_sku("cpu-generic").model_dump_json().encode(),
    }


def _draw(rng: random.Random) -> Sample:
    kind = rng.choice(sorted(_kept()))
    before = _kept()[kind]
    if kind == "snapshot" or rng.random() < 0.3:
        drawn = mutate.raw(rng, before)
    else:
        drawn = json.dumps(mutate.document(rng, json.loads(before))).encode("utf-8", "surrogatepass")
    altered = kind in ("snapshot", "certificate") and drawn != before
    return Sample((kind, drawn), f"an altered {kind}" if altered else "")


def _read(sample: Sample) -> Taken:
    kind, drawn = sample.data
    try:
        well = _differs(kind, drawn)
    except ValueError as refused:  # which each reader of the records turns into one sentence
        return Taken([str(refused).split("\n")[0]] if kind == "snapshot" else [])
    return Taken(well=well)


def _differs(kind: str, drawn: bytes) -> bool:
    """Whether it is taken for what was kept although it says something else."""
    if kind == "snapshot":
        return Snapshot.from_bytes(drawn).to_bytes() != _kept()[kind]
    if kind == "certificate":
        found: dict[str, Any] = certificate.verify(drawn, KEY.public_key(), NOW)
        return found != CONTENT
    if kind == "learned":
        Learned.from_json(drawn.decode("utf-8", "replace"))
    else:
        Sku.model_validate_json(drawn)
    return False


EDGE = Edge(_draw, _read, (MusterError,), peak_bytes=128 * 2**20)
