"""Every five minutes: mails new questions, drops those whose run is over, sends waiting mails, releases nodes whose run
is over, reports runs that were not, carries out the changes that wait for a scheduler, replaces nodes by spares where
that is allowed, sends the audit stream, removes data past its retention time, and asks a person about each verdict that
the circuit breaker holds.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

from airflow.sdk import DAG, TriggerRule, task

from muster.model import dags
from muster.operators import forms, upkeep
from muster.operators.lifecycle import held
from muster.reporting import notices, sending

LIVE = ["queued", "running"]


def known(ti: Any) -> Callable[[str, Sequence[str]], int]:
    """Returns a function of (DAG id, run ids): how many of these runs Airflow knows."""
    return lambda dag_id, run_ids: int(ti.get_dr_count(dag_id, run_ids=list(run_ids)))


def live(ti: Any) -> Callable[[str, Sequence[str]], int]:
    """Returns a function of (DAG id, run ids): how many of these runs are queued or running; a deleted one is not."""
    # Counts live runs, since reading the state of a deleted run is an error.
    return lambda dag_id, run_ids: int(ti.get_dr_count(dag_id, run_ids=list(run_ids), states=LIVE))


with DAG(
    dag_id=dags.HOUSEKEEPING,
    description=__doc__,
    schedule=dags.HOUSEKEEPING_EVERY,
    start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    max_active_runs=1,
    dagrun_timeout=datetime.timedelta(minutes=15),
    doc_md=__doc__,
    tags=["muster", "system"],
    **forms.DAG_DEFAULTS,
):

    @task
    def deliver_mail() -> tuple[int, int, int]:
        """Send the reports that wait in the outbox: (sent, waiting, refused for good)."""
        return sending.deliver_mail()

    @task
    def tell_of_questions() -> list[str]:
        """Send one mail about the questions that are new; returns the nodes that they are about."""
        if nodes := notices.tell_of_questions():
            sending.deliver_mail()
        return nodes

    @task
    def end_questions(ti: Any = None) -> list[str]:
        """Drop questions whose run was marked or deleted: Airflow no longer has them."""
        return [str(key) for key in upkeep.end_questions(live(ti), known(ti))]

    @task
    def sweep_leases(ti: Any = None) -> list[str]:
        """Release nodes whose run is over or was deleted."""
        upkeep.known_here(known(ti))
        return upkeep.sweep_leases(live(ti))

    @task(trigger_rule=TriggerRule.ALL_DONE)
    def report_ended(ti: Any = None) -> list[str]:
        """Mail the reports of runs that ended without running their own report task: marked, deleted, or swept."""
        return [str(key) for key in upkeep.report_ended(live(ti))]

    @task
    def reconcile_schedulers() -> list[str]:
        """Carry out changes that wait for a scheduler; returns where schedulers differ from the records."""
        return upkeep.reconcile()

    @task
    def replace_nodes() -> list[str]:
        """Let spares take the places of nodes that left production, if the setting says so; returns what was done."""
        return upkeep.replace_nodes()

    @task
    def stream_audit() -> dict[str, int]:
        """Send events to the receivers of the audit stream; returns how many each accepted."""
        return upkeep.stream_audit()

    @task
    def apply_retention() -> str:
        """Remove telemetry, results and measurements that are older than the settings keep them."""
        return str(upkeep.apply_retention())

    @task
    def held_verdicts(ti: Any = None) -> list[dict[str, Any]]:
        """Returns one run of the DAG held_verdict to start per question about a held verdict."""
        count, exist = live(ti), known(ti)
        return held.questions(
            lambda dag_id, run_id: count(dag_id, [run_id]) > 0, lambda dag_id, run_id: exist(dag_id, [run_id]) > 0
        )

    forms.starting("ask", dags.HELD_VERDICT).expand_kwargs(held_verdicts())
    end_questions()
    tell_of_questions()
    deliver_mail()
    swept = sweep_leases()
    swept >> report_ended()
    forms.all_succeed(swept)
    reconcile_schedulers()
    replace_nodes()
    stream_audit()
    apply_retention()
