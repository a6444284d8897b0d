"""A fleet in flight: a node in service, one under test, mail and events on their way. For back-ups and upgrades."""

from __future__ import annotations

import dataclasses
import sqlite3
from pathlib import Path

from muster import store
from muster.model.runs import RunKey
from muster.model.states import State
from muster.remote.job import attempt, outcome
from muster.remote.job.attempt import Attempt, Programme, Task
from muster.rules.lifecycle import certificate
from muster_criteria.model import Verdict
from muster_criteria.sku_files.skus import load_sku
from tests.muster import fleet

SERVING, TESTED, RUN = "gpu-0001", "gpu-0002", RunKey(fleet.DAG, "gpu-0002__new")
STAGE, SINK, MAIL = "burn_in", "siem", "report of gpu-0001"


def begin() -> None:
    """Fill empty records."""
    store.nodes.add(fleet.new_node(SERVING))
    fleet.qualify(SERVING, serials={"system": "CHASSIS1", "gpu0": "SERIAL1"}, environment={"driver": "580.65"})
    store.nodes.move(SERVING, State.PRODUCTION, "Petra", "the first node")
    store.outbox.add(MAIL, b"Subject: PASS\n\nall is well")
    store.audit.delivered(SINK, store.audit.batch(SINK, 3)[-1].id)
    store.nodes.add(fleet.new_node(TESTED))
    lease = fleet.begin(TESTED, RUN.run_id)
    fleet.do_stage(lease, "intake")
    started = attempted(begin=True)
    running = dataclasses.replace(started.job, state=outcome.RUNNING, remote_dir="~/.muster/jobs/1", boot_id="b-1")
    store.runs.record_job(running)


def attempted(*, begin: bool = False) -> Attempt:
    """The attempt at the stage that is under way, as its task finds it."""
    task = Task(RUN.dag_id, RUN.run_id, STAGE, STAGE, 1, 2)
    run = store.runs.get(RUN)
    return attempt.claim(task, run, load_sku(run.sku, ()), lambda _key, _job: Programme((), 60.0), begin=begin)


def assert_goes_on(file: Path) -> None:
    """Assert that the records are those of the back-up ``file``, and that the fleet goes on from there."""
    with sqlite3.connect(file) as held:
        ((token,),) = held.execute("SELECT token FROM leases WHERE released_at IS NULL")
        ((key, fence, boot),) = held.execute("SELECT attempt_key, fence, boot_id FROM jobs WHERE state = 'running'")
        ((document,),) = held.execute("SELECT document FROM certificates WHERE revoked = ''")
        ((accepted,),) = held.execute("SELECT event FROM audit_cursors WHERE sink = ?", (SINK,))
        waiting = [number for (number,) in held.execute("SELECT id FROM events WHERE id > ? ORDER BY id", (accepted,))]
    lease, job, newest = store.leases.get(TESTED), attempted().job, store.certificates.newest(SERVING)
    assert lease is not None
    assert newest is not None
    assert lease.token == token
    assert (job.attempt_key, job.state, job.fence, job.boot_id) == (key, outcome.RUNNING, fence, boot)
    assert newest.document == document
    public = store.signing.signing_key(create=False).public_key()
    assert certificate.verify(document.encode(), public, newest.issued_at)["node"] == SERVING
    assert store.outbox.waiting(MAIL) == 1
    assert [event.id for event in store.audit.batch(SINK, 500)][: len(waiting)] == waiting

    fleet.do_stage(lease, STAGE, Verdict.PASS)
    store.runs.finish(RUN, Verdict.INCONCLUSIVE, "ended here")
    assert store.leases.release(RUN, "over") == [TESTED]
    assert fleet.begin(TESTED, "next").token > token
    later = [event.id for event in store.audit.batch(SINK, 500)][len(waiting) :]
    assert later
    assert min(later) > max(waiting)
