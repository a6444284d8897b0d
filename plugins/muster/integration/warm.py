"""Importing this module does, before task processes are forked, what each of them would do again for itself.

Great Expectations is set up, SKU files are parsed, templates compiled, fonts read, and the statements of a run compiled
for the records' own database: seconds of CPU, of which a task needs a part. A made-up run goes through the records in
one transaction that is rolled back. The overhead bar needs it (``python -m tests.bench.overhead``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import gzip
import json
import logging
import threading
from collections.abc import Callable

from sqlalchemy import text
from tqdm import tqdm

from muster import store
from muster.errors import first_line
from muster.integration import closing
from muster.judging import verdict
from muster.judging.case import Collected, fresh_case
from muster.model.nodes import NewNode
from muster.model.runs import Job, RunKey
from muster.settings import settings
from muster_criteria.measured import parse_result
from muster_criteria.sku_files.model import SkuError
from muster_criteria.sku_files.skus import list_skus, load_sku
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import judge
from muster_criteria.stage.verdict import overall
from muster_reports import mail
from muster_reports.model import RunReport, Series, StageReport

log = logging.getLogger(__name__)

SKU, LEVEL, STAGES = "cpu-generic", "demo", ("intake", "burn_in")
NODE, RUN = "muster-rehearsal", RunKey("muster_rehearsal", "muster_rehearsal")
LOCK_S = 2.0
HOST_KEY = f"ssh-ed25519 {'A' * 68}"


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
    case = Case(load_sku(SKU), STAGES[1], LEVEL, parse_result(json.dumps(_RESULT).encode()), simulated=True)
    now = datetime.datetime.now(datetime.UTC)
    lines = (Series("load", "node", "count", (0.0, 1.0), (1.0, 2.0)),)
    judgement = judge(case)
    report = RunReport(
        node="warm", sku=SKU, run_id="warm", dag_id="warm", reason="", simulated=True, verdict=judgement.verdict,
        headline=judgement.reason, state_before="", state_after="", started_at=now, ended_at=now, identity=(),
        environment=(), stages=(StageReport(judgement, now, 1.0, (), lines),),
    )  # fmt: skip
    mail.build_message(mail.render(report), "muster@localhost", ["nobody@localhost"])


def rehearse() -> None:
    """Take a made-up node through a run in one transaction that is rolled back; nothing without records to use."""
    steps: list[Callable[[], None]] = [_claim]
    steps += [functools.partial(step, stage) for stage in STAGES for step in (_measure, _judge)]
    try:
        with store.engine.rehearsal(), store.engine.transaction():
            with store.engine.writing() as session:
                if session.get_bind().dialect.name == "postgresql":
                    # The scheduler does not wait for another writer: without a rehearsal its tasks are only slower.
                    session.execute(text(f"SET LOCAL lock_timeout = '{LOCK_S:g}s'"))
            for step in (*steps, _conclude):
                step()
                with store.engine.writing() as session:
                    session.expunge_all()  # the next step reads what it needs, as another process would
    except Exception as error:
        log.warning("the rehearsal of a run was left out, so that tasks will be slower: %s", first_line(error))


def _claim() -> None:
    store.nodes.add(NewNode(NODE, "localhost", HOST_KEY, SKU, simulated=True))
    store.leases.acquire(NODE, RUN)
    store.runs.begin(RUN, NODE, LEVEL, "rehearsal", required_stages=STAGES)


def _measure(stage: str) -> None:
    store.attempts.forget_fault(RUN, stage)
    store.runs.get(RUN)
    store.runs.stages(RUN)
    store.runs.begin_stage(RUN, stage)
    lease = store.leases.get(NODE)
    store.runs.get_job(RUN, stage)
    job = Job(RUN.dag_id, RUN.run_id, stage, "0.0", "submitted", "", fence=lease.token if lease else 0)
    store.runs.record_job(job)
    store.schedulers.place(NODE)
    began = datetime.datetime.now(datetime.UTC)
    store.runs.record_job(
        dataclasses.replace(job, state="running", remote_dir="/rehearsal", boot_id="b", started_at=began)
    )
    store.nodes.touch_contact(NODE)


def _judge(stage: str) -> None:
    run, node = store.runs.get(RUN), store.nodes.get(NODE)
    store.leases.get(NODE)
    job = store.runs.get_job(RUN, stage)
    store.raw.stage_bytes(RUN, stage)
    raw = json.dumps(_RESULT | {"stage": stage, "node": NODE}).encode()
    case = fresh_case(run, node, load_sku(SKU, settings().sku_folders), stage, Collected(parse_result(raw)))
    verdict.record(RUN, case, store.stages.Sent(case.result, raw, _TELEMETRY))
    if job is not None:
        ended = datetime.datetime.now(datetime.UTC)
        store.runs.record_job(dataclasses.replace(job, state="final", ended_at=ended, note="ended"))


def _conclude() -> None:
    run, judgements = store.runs.get(RUN), list(store.reporting.judgements(RUN).values())
    store.runs.finish(RUN, *overall(judgements, run.required_stages))
    store.reporting.run(RUN)
    store.schedulers.claim(NODE)
    store.outbox.add("rehearsal", b"")
    store.outbox.pending()
    closing.release(RUN, "the run is over")


_TELEMETRY = gzip.compress(
    b"".join(
        json.dumps({"series": "load", "device": "node", "t": second, "value": 1.0}).encode() + b"\n"
        for second in (1.0, 2.0)
    )
)

_RESULT = {
    "schema": "muster.result/1", "job_id": "warm", "node": "warm", "stage": STAGES[1], "level": LEVEL, "fence": 1,
    "agent_sha256": "", "simulated": True, "started_at": 1.0, "ended_at": 2.0, "end": "completed", "partial": False,
    "identity": {"boot_id": "b", "serials": {"system": "s"}}, "environment": {"kernel": "k"},
    "guard": {"busy": False, "evidence": []}, "telemetry": [], "telemetry_file": None, "notes": [],
    "probes": [{"probe": "inventory", "status": "completed", "reason": "", "started_at": 1.0, "duration_s": 1.0}],
    "measurements": [
        {"probe": "inventory", "device": "node", "metric": "cpu_sockets", "unit": "count", "value": 0.0, "text": None,
         "samples": 1, "spread": None, "note": "", "labels": {}},
    ],
}  # fmt: skip

warm()
rehearse()
