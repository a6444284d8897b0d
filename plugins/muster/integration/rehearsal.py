"""Importing this module stores a node's whole run and undoes it, before task processes are forked.

SQLAlchemy compiles each statement at its first use and keeps it with the engine, which forks inherit. All of it is one
transaction, which is rolled back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from muster import store
from muster.integration import closing
from muster.integration.warm import LEVEL, RESULT, SKU
from muster.judging import verdict
from muster.judging.case import Collected, fresh_case
from muster.model.dags import NODE_QUALIFICATION
from muster.model.nodes import NewNode
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.remote.job import attempt as remote
from muster.remote.job import outcome
from muster.remote.job.attempt import Programme, Task
from muster.remote.job.outcome import Ended, Kind
from muster.settings import settings
from muster_criteria.measured import parse_result
from muster_criteria.model import Coverage, Judgement, Verdict
from muster_criteria.sku_files.skus import current_sku

NODE = "muster-rehearsal"
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
KEY = RunKey(NODE_QUALIFICATION, NODE)


def rehearse() -> None:
    """Store a run and undo it. Raises MusterError where the records are away, or have another schema."""
    engine = store.engine
    try:
        # Waits its turn, since workers that start at once all store the same node; not for ever: nothing starts before.
        limit = engine.hurried(engine.BUSY_TIMEOUT_MS)
        with limit, engine.rehearsal(), engine.transaction(), engine.reading() as session:
            for _ in _tasks():
                session.expunge_all()  # each task reads for itself
    finally:
        engine.engine().dispose()  # no connection goes through a fork; what is compiled stays


def _tasks() -> Iterator[None]:
    """Does what the run's tasks do with the records. Yields after each task."""
    store.nodes.add(NewNode(NODE, "localhost", HOST_KEY, SKU))
    store.leases.acquire_all([NODE], KEY)
    store.runs.begin(KEY, NODE, LEVEL, "")
    yield
    sku = current_sku(SKU, settings().sku_folders)
    for stage in STAGES:
        task, run = Task(KEY.dag_id, KEY.run_id, stage, stage, 1, 0), store.runs.get(KEY)
        remote.renew(task)
        attempt = remote.claim(task, run, sku, lambda *_: Programme((), 1.0), begin=True)
        store.runs.record_job(attempt.job, only_from=outcome.UNJUDGED)
        if stage == STAGES[0]:  # once is enough
            raw = json.dumps({**RESULT, "stage": stage, "simulated": False}).encode()
            case = fresh_case(run, attempt.node, sku, stage, Collected(parse_result(raw)))
            verdict.record(KEY, case, store.stages.Sent(case.result, raw))
        passed = Judgement(stage, LEVEL, Verdict.PASS, "", Coverage(1, 1, 1), (), (), False, SKU, sku.revision)
        verdict.record(KEY, passed, store.stages.Sent())
        remote.record_end(attempt, Ended(Kind.DONE, ""), outcome.FINAL)
        yield
    store.attempts.faulty_stages(KEY)
    store.reporting.judgements(KEY)
    store.runs.finish(KEY, Verdict.PASS, NODE)
    yield
    store.runs.find_jobs(KEY, {outcome.RUNNING})
    store.leases.live(KEY)
    closing.release(KEY, "")
    yield
    store.reporting.run(KEY)
    store.reporting.reported(KEY)


rehearse()
