"""Importing this module warms up the process that task processes are forked from.

It takes a made-up node through a run in a temporary database: libraries load their remaining modules, mappings and
statements are compiled, templates and fonts are read. It contacts no node, no mail server and not the fleet's records,
takes about a second, and saves each task process 0.1 s or more.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import threading
from pathlib import Path
from typing import Any

from tqdm import tqdm

from muster import store
from muster.model.nodes import NewNode
from muster.model.runs import Job
from muster.settings import settings
from muster_criteria.measured import parse_result
from muster_criteria.model import Judgement
from muster_criteria.sku_files import programme
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import judge
from muster_criteria.stage.verdict import overall
from muster_reports import mail

NODE = "rehearsal"
SKU = "cpu-generic"
LEVEL = "demo"
STAGES = programme.STAGES[:2]
RUN = ("rehearsal", "rehearsal")
HOST_KEY = f"ssh-ed25519 {'A' * 68}"


def rehearse() -> None:
    """Take a node through a run as tasks do, in a temporary database."""
    # Great Expectations creates progress bars even if hidden. By default they start a thread, which a fork
    # would lack, and share a lock with all forks, which one that is killed might never give back.
    tqdm.monitor_interval = 0
    tqdm.set_lock(threading.RLock())
    with (
        tempfile.TemporaryDirectory(prefix="muster-rehearsal-") as folder,
        store.engine.scratch(Path(folder) / "muster.db"),
    ):
        store.nodes.add(NewNode(NODE, "localhost", HOST_KEY, SKU, simulated=True))
        lease = store.leases.acquire(NODE, *RUN)
        store.runs.begin(*RUN, NODE, LEVEL, "warming up", required_stages=STAGES)
        judgements = [_rehearse_stage(stage, lease.token) for stage in STAGES]
        store.runs.finish(*RUN, *overall(judgements, STAGES))
        rendered = mail.render(store.reporting.run(*RUN))
        message = mail.build_message(rendered, "muster@localhost", ["nobody@localhost"])
        store.outbox.add(rendered.report_id, message.as_bytes())
        for waiting in store.outbox.pending():
            store.outbox.sent(waiting.id)
        store.leases.release(*RUN, "warm")


def _rehearse_stage(stage: str, fence: int) -> Judgement:
    """Run one stage from its begin to its verdict."""
    run = store.runs.get(*RUN)
    store.runs.stages(*RUN)
    sku = load_sku(run.sku, settings().sku_folders)
    node = store.runs.begin_stage(*RUN, stage)
    store.leases.get(node.name)
    store.runs.get_job(*RUN, stage)
    store.runs.record_job(Job(*RUN, stage, "0.0", "running", "", fence=fence))
    store.nodes.touch_contact(node.name)
    raw, telemetry = json.dumps(_result(stage)).encode(), _telemetry()
    result = parse_result(raw)
    judgement = judge(Case.of(result, sku))
    store.stages.record(*RUN, result, judgement, raw, telemetry)
    store.runs.record_job(Job(*RUN, stage, "0.0", "final", "", fence=fence))
    return judgement


def _result(stage: str) -> dict[str, Any]:
    """Returns an example result: a text, and a number outside its limits."""
    plain = {"probe": "inventory", "device": "node", "samples": 1, "spread": None, "note": "", "labels": {}}
    return {
        "schema": "muster.result/1", "job_id": "rehearsal", "node": NODE, "stage": stage, "level": LEVEL, "fence": 1,
        "agent_sha256": "", "simulated": True, "started_at": 1.0, "ended_at": 2.0, "end": "completed",
        "partial": False, "identity": {"boot_id": "b", "serials": {"system": "s"}}, "environment": {"kernel": "k"},
        "guard": {"busy": False, "evidence": []}, "telemetry": [], "telemetry_file": None, "notes": [],
        "probes": [{"probe": "inventory", "status": "completed", "reason": "", "started_at": 1.0, "duration_s": 1.0}],
        "measurements": [
            plain | {"metric": "cpu_model", "unit": "text", "value": None, "text": "a CPU"},
            plain | {"metric": "cpu_threads", "unit": "count", "value": 0.0, "text": None},
        ],
    }  # fmt: skip


def _telemetry() -> bytes:
    """Returns two samples of one series, enough for a chart."""
    rows = ({"series": "load", "device": "node", "t": second, "value": 1.0} for second in (1.0, 2.0))
    return gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())


rehearse()
