"""Importing this module does, before task processes are forked, what each of them would otherwise repeat.

Great Expectations is set up, SKU files are parsed, the node side packed, templates compiled, fonts read: a second of
CPU, part of which each task needs. It uses no network and no database. The overhead bar needs it (``python -m
tests.bench.overhead``).
"""

from __future__ import annotations

import contextlib
import datetime
import json
import threading

from tqdm import tqdm

from muster.remote.job import zipapp
from muster.settings import settings
from muster_criteria.measured import parse_result
from muster_criteria.sku_files.model import SkuError
from muster_criteria.sku_files.skus import current_sku, list_skus
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import judge
from muster_reports import mail
from muster_reports.model import RunReport, Series, StageReport

SKU, STAGE, LEVEL = "cpu-generic", "burn_in", "demo"


def warm() -> None:
    """Judge and report an example, whose only reading breaks a limit."""
    # Great Expectations creates progress bars even if hidden. By default they start a thread, which a fork
    # would lack, and share a lock with all forks, which one that is killed might never give back.
    tqdm.monitor_interval = 0
    tqdm.set_lock(threading.RLock())
    folders = settings().sku_folders
    for name in list_skus(folders):
        with contextlib.suppress(SkuError):  # reported by the task of a node of this model
            current_sku(name, folders)
    case = Case(current_sku(SKU, ()), STAGE, LEVEL, parse_result(json.dumps(RESULT).encode()), simulated=True)
    now = datetime.datetime.now(datetime.UTC)
    lines = (Series("load", "node", "count", (0.0, 1.0), (1.0, 2.0)),)
    judgement = judge(case)
    report = RunReport(
        node="warm", sku=SKU, run_id="warm", dag_id="warm", reason="", simulated=True, verdict=judgement.verdict,
        headline=judgement.reason, state_before="", state_after="", started_at=now, ended_at=now, identity=(),
        environment=(), stages=(StageReport(judgement, now, 1.0, (), lines),),
    )  # fmt: skip
    mail.build_message(mail.render(report), "muster@localhost", ["nobody@localhost"])
    zipapp.packed()


RESULT = {
    "schema": "muster.result/1", "job_id": "warm", "node": "warm", "stage": STAGE, "level": LEVEL, "fence": 1,
    "agent_sha256": "", "simulated": True, "started_at": 1.0, "ended_at": 2.0, "end": "completed", "partial": False,
    "identity": {"boot_id": "b", "serials": {"system": "s"}}, "environment": {"kernel": "k"},
    "guard": {"busy": False, "evidence": []}, "telemetry_file": None, "notes": [],
    "probes": [{"probe": "inventory", "status": "completed", "reason": "", "started_at": 1.0, "duration_s": 1.0}],
    "measurements": [
        {"probe": "inventory", "device": "node", "metric": "cpu_sockets", "unit": "count", "value": 0.0, "text": None,
         "samples": 1, "spread": None, "note": "", "labels": {}},
    ],
}  # fmt: skip

warm()
