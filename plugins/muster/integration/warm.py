"""Importing this module does, before task processes are forked, what each of them would do again for itself.

Great Expectations is set up, SKU files are parsed, templates and SQL statements compiled, fonts read: a second of
CPU, of which a task needs a part. It uses no network and opens no connection to the records. The overhead bar needs it
(``python -m tests.bench.overhead``).
"""

from __future__ import annotations

import contextlib
import datetime
import json
import threading

from tqdm import tqdm

from muster import store
from muster.integration import closing, logins
from muster.judging import verdict
from muster.judging.case import Collected, fresh_case
from muster.model.dags import NODE_QUALIFICATION
from muster.model.nodes import NewNode
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.operators.testing import claims, faults
from muster.remote import attempt as remote
from muster.remote import outcome
from muster.remote.attempt import Programme, Task
from muster.settings import settings
from muster_criteria.measured import parse_result
from muster_criteria.model import Verdict
from muster_criteria.sku_files.model import SkuError
from muster_criteria.sku_files.skus import list_skus, load_sku
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import judge
from muster_reports import mail
from muster_reports.model import RunReport, Series, StageReport

SKU, STAGE, LEVEL, NODE = "cpu-generic", "burn_in", "demo", "warm"


def warm() -> None:
    """Judge and report an example, whose only reading breaks a limit."""
    # Great Expectations creates progress bars even if hidden. By default they start a thread, which a fork
    # would lack, and share a lock with all forks, which one that is killed might never give back.
    tqdm.monitor_interval = 0
    tqdm.set_lock(threading.RLock())
    folders = settings().sku_folders
    for name in list_skus(folders):
        with contextlib.suppress(SkuError):  # said by the task of a node of this model
            load_sku(name, folders)
    case = Case(load_sku(SKU), STAGE, LEVEL, parse_result(json.dumps(_RESULT).encode()), simulated=True)
    now = datetime.datetime.now(datetime.UTC)
    lines = (Series("load", "node", "count", (0.0, 1.0), (1.0, 2.0)),)
    judgement = judge(case)
    report = RunReport(
        node="warm", sku=SKU, run_id="warm", dag_id="warm", reason="", simulated=True, verdict=judgement.verdict,
        headline=judgement.reason, state_before="", state_after="", started_at=now, ended_at=now, identity=(),
        environment=(), stages=(StageReport(judgement, now, 1.0, (), lines),),
    )  # fmt: skip
    mail.build_message(mail.render(report), "muster@localhost", ["nobody@localhost"])
    with store.engine.compiling():
        _qualify(now)


def _qualify(now: datetime.datetime) -> None:
    """Claim, measure, conclude, report and release a node in the records, for the statements."""
    key, sku = RunKey(NODE_QUALIFICATION, "warm"), load_sku(SKU, settings().sku_folders)
    store.nodes.add(NewNode(NODE, "127.0.0.1", f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'0' * 43}", SKU))
    claims.testable(NODE, LEVEL, key, now)
    with claims.leased([NODE], key) as (lease,):
        store.schedulers.place(NODE)
        store.runs.begin(key, NODE, LEVEL, "", required_stages=(STAGES[0],), run_after=now)
    run, task = store.runs.get(key), Task(key.dag_id, key.run_id, STAGES[0], STAGES[0], 1, 1)
    store.attempts.forget_fault(key, STAGES[0])
    attempt = remote.claim(task, run, sku, lambda *_: Programme((), 1.0), begin=True)
    store.runs.record_job(attempt.job, only_from=outcome.UNJUDGED)
    store.attempts.spent(key, STAGES[0], 1)
    raw = json.dumps({**_RESULT, "node": NODE, "stage": STAGES[0], "fence": lease.token}).encode()
    case = fresh_case(run, attempt.node, sku, STAGES[0], Collected(parse_result(raw)))
    verdict.record(key, case, store.stages.Sent(case.result, raw, b"0"))
    remote.record_end(attempt, outcome.Ended(outcome.Kind.DONE, ""), outcome.FINAL)
    faults.of_run(key)
    store.attempts.faulty_stages(key)
    store.reporting.judgements(key)
    store.runs.finish(key, Verdict.PASS, "")
    store.reporting.run(key)
    remote.stop_leftovers(key, logins.connect)
    closing.release(key, "")


_RESULT = {
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
