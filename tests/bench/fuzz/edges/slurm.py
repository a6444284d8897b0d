"""Slurm's answers, of its versions' two forms, up to what is known of each node.

One node in trouble and one that is free are among them: the first never counts as free, the second is always read.
"""

from __future__ import annotations

import copy
import json
import os
import random
from typing import Any

from muster.admission.backends.slurm.backend import Slurm, SlurmSettings
from muster.admission.runner import Runner
from muster.errors import MusterError
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken

OLD = {"name": "n3", "state": "idle", "state_flags": ["DRAIN"], "reason": "muster: FAIL", "reason_set_by_user": "root",
       "reason_changed_at": 1_780_000_000, "extra": "muster: PASS", "features": "muster,h100",
       "alloc_cpus": 0}  # fmt: skip
NEW = {"name": "n4", "state": ["IDLE", "DRAIN"], "features": ["muster", "h100"], "reason": "a disk", "alloc_cpus": 0,
       "reason_set_by_user": "ada",
       "reason_changed_at": {"set": True, "infinite": False, "number": 1_780_000_000},
       "extra": ""}  # fmt: skip
FREE = {"name": "n2", "state": "idle", "state_flags": [], "reason": "", "features": "muster", "alloc_cpus": 0}
TROUBLE: dict[str, dict[str, Any]] = {
    "down": {"state": "down"},
    "drained by a person": {"state_flags": ["DRAIN"], "reason": "a disk", "reason_set_by_user": "ada"},
    "not responding": {"state_flags": ["NOT_RESPONDING"]},
    "allocated": {"state": "allocated", "alloc_cpus": 8},
    "of a state that no version had": {"state_flags": ["QUARANTINED"]},
    "newer form, failing": {"state": ["IDLE", "FAIL"]},
    "without a state": {"state": None},
    "a state in a list of lists": {"state": [["IDLE"]]},
}


class _Answers(Runner):
    """Answers sinfo with what was drawn, and squeue with no jobs."""

    answer = b""

    def run(self, *words: str) -> bytes:
        return self.answer if words[0] in ("sinfo", "scontrol") else b""


def _draw(rng: random.Random) -> Sample:
    document: Any = {
        "nodes": [copy.deepcopy(each) for each in rng.choices((OLD, NEW), k=rng.choice((1, 5)))],
        "errors": [],
    }
    document = mutate.document(rng, document)
    what, change = rng.choice(list(TROUBLE.items()))
    whole = isinstance(document, dict) and isinstance(document.get("nodes"), list) and not document.get("errors")
    if whole:
        others = [
            each for each in document["nodes"] if not isinstance(each, dict) or each.get("name") not in ("n1", "n2")
        ]
        document["nodes"] = [*others, {**FREE, "name": "n1", **change}, FREE]
    raw = json.dumps(document).encode("utf-8", "surrogatepass")
    if rng.random() < 0.2:
        raw, whole = mutate.raw(rng, raw), False
    return Sample((raw, whole), what)


def _read(sample: Sample) -> Taken:
    raw, whole = sample.data
    os.environ.setdefault("MUSTER_HOME", "/nonexistent")
    slurm = Slurm(SlurmSettings(kind="slurm", user="root"))
    answers = _Answers(1.0)
    answers.__dict__["answer"] = raw
    slurm._runner = answers
    seen = slurm.look(["n1", "n2", "n3", "n4"])
    alone = (
        [] if not whole or (seen.get("n2") and seen["n2"].open) else ["a free node is not read as free beside others"]
    )
    texts = [str(each.idle.why) for each in seen.values()]
    in_trouble = seen.get("n1")
    return Taken(texts, alone, well=whole and in_trouble is not None and in_trouble.idle.idle)


EDGE = Edge(_draw, _read, (MusterError,), peak_bytes=32 * 2**20)
