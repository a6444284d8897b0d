"""A webhook receiver's own state, up to what is known of each node.

One node in trouble and one that is free are among them: the first never counts as free, the second is always read.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from muster.admission.backends.webhook import Webhook, WebhookSettings
from muster.errors import MusterError
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken

NODES = [
    {"name": "n3", "open": False, "closed_by": "muster", "reason": "failed", "closed_at": "2026-06-01T00:00:00Z"},
    {"name": "n4", "open": False, "closed_by": "ada", "reason": "muster:verify", "apart": "", "used_by": ""},
    {"name": "n5", "open": True},
]
FREE = {"name": "n2", "open": True}
TROUBLE: dict[str, list[dict[str, Any]]] = {
    "closed by a person": [{"name": "n1", "open": False, "closed_by": "ada"}],
    "apart": [{"name": "n1", "open": True, "apart": "down"}],
    "in use": [{"name": "n1", "open": True, "used_by": "job 7"}],
    "shown twice": [{"name": "n1", "open": False, "closed_by": "ada"}, {**FREE, "name": "n1"}],
    "that cannot be read": [{"name": "n1", "open": "ajar", "closed_by": "muster"}],
}


class _Receiver(Webhook):
    """Answers with a state of our own."""

    state = b""

    def _request(self, method: str, url: str, message: str, body: bytes) -> tuple[int, bytes]:
        return 200, self.state


def _draw(rng: random.Random) -> Sample:
    what, trouble = rng.choice(list(TROUBLE.items()))
    nodes = mutate.document(rng, copy.deepcopy(NODES)) if rng.random() < 0.8 else copy.deepcopy(NODES)
    if isinstance(nodes, list):
        nodes = [*nodes, *trouble, FREE]
    answer = {"nodes": nodes} if rng.random() < 0.95 else mutate.anything(rng)
    sent = json.dumps(answer).encode()
    return Sample(sent if rng.random() < 0.9 else mutate.raw(rng, sent), what, large=len(sent) > 100_000)


def _read(sample: Sample) -> Taken:
    receiver = _Receiver(WebhookSettings(kind="webhook", url="https://r", connection="r", state_url="https://r/s"))
    receiver.state = sample.data
    seen = receiver.look(["n1", "n2", "n3", "n4", "n5"])
    try:
        named = [
            each for each in json.loads(sample.data)["nodes"] if isinstance(each, dict) and each.get("name") == "n2"
        ]
    except (ValueError, KeyError, TypeError):
        named = []
    whole = named == [FREE]
    lost = ["a free node is not read beside others"] if whole and not ("n2" in seen and seen["n2"].idle.idle) else []
    return Taken([each.idle.why for each in seen.values()], lost, well="n1" in seen and seen["n1"].idle.idle)


EDGE = Edge(_draw, _read, (MusterError,), peak_bytes=32 * 2**20)
