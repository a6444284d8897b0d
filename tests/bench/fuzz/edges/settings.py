"""Settings of the environment, up to what each room makes of them: a sentence without their secrets, or settings."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

from muster import blackout
from muster.admission import clusters
from muster.errors import BadSettings, MusterError
from muster.integration import report_sources
from muster.reporting import mail_rules
from muster.settings import settings
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken

SECRET = "hunter2-of-the-receiver"
TOKEN = "0123456789abcdef" * 4
WELL: dict[str, Any] = {
    "MUSTER_AUDIT_SINKS": {"siem": {"kind": "http", "url": f"https://user:{SECRET}@siem.example/in", "token": SECRET}},
    "MUSTER_REPORT_SOURCES": {"slurm": {"sha256": TOKEN, "nodes": ["n*"], "most": "test_sooner", "per_minute": 60}},
    "MUSTER_SCHEDULERS": {"alpha": {"kind": "slurm", "sudo": True}, "hook": {"kind": "records"}},
    "MUSTER_MAIL_RULES": [{"name": "rack", "to": ["ops@example.org"], "verdicts": ["FAIL"]}],
    "MUSTER_REVALIDATION_DOMAIN_KW": {"r1": 40.0},
    "MUSTER_REVALIDATION_SHARE": 0.02,
    "MUSTER_BREAKER_SHARE": 0.2,
    "MUSTER_AIRFLOW_TOKEN": SECRET,
    "MUSTER_REVALIDATION_BLACKOUTS": "Mon-Fri 08:00-18:00",
    "MUSTER_SWEEP_SECONDS": 45,
}
BAD = {
    "MUSTER_REVALIDATION_SHARE": "1.5",
    "MUSTER_BREAKER_SHARE": "-1",
    "MUSTER_SWEEP_SECONDS": "nan",
    "MUSTER_AUDIT_SINKS": "{",
    "MUSTER_SCHEDULERS": '{"alpha": []}',
    "MUSTER_REPORT_SOURCES": '{"slurm": {"sha256": "short"}}',
    "MUSTER_RETENTION_RESULTS_DAYS": "0",
}


def _draw(rng: random.Random) -> Sample:
    document = {name: value for name, value in WELL.items() if rng.random() < 0.5}
    document = json.loads(json.dumps(document))
    drawn = mutate.document(rng, document) if document else {}
    chosen = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in (drawn.items() if isinstance(drawn, dict) else ())
        if isinstance(name, str)
        and name.startswith("MUSTER_")
        and name.isascii()
        and name.isprintable()
        and "=" not in name
    }
    what = ""
    if rng.random() < 0.3:
        name = rng.choice(list(BAD))
        what, chosen[name] = f"{name}={BAD[name]}", BAD[name]
    # What no process can have in its environment, no operator can set.
    chosen = {name: text for name, text in chosen.items() if "\0" not in text and text.isprintable()}
    return Sample(chosen, what)


def _used() -> Iterator[str]:
    """Everything that the rooms read of them."""
    current = settings()
    yield from (str(current.mail_recipients), repr(current.airflow_token))
    yield from mail_rules.read(current.mail_rules)[1]
    if wrong := report_sources.sources()[1]:
        raise BadSettings("; ".join(wrong))
    blackout.closed(current.revalidation_blackouts, blackout.datetime.datetime.now(blackout.datetime.UTC))
    for name in current.schedulers:
        clusters.backend_of(name)


def _read(sample: Sample) -> Taken:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("MUSTER_")}
    with mock.patch.dict(os.environ, {**kept, **sample.data}, clear=True):
        try:
            texts, well = list(_used()), True
        except MusterError as refused:
            texts, well = [str(refused)], False
    told = [f"a secret in {text[:200]!r}" for text in texts if SECRET in text]
    return Taken(texts, told, well=well)


EDGE = Edge(_draw, _read, (MusterError,), peak_bytes=32 * 2**20)
