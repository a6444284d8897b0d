"""Every morning: mails the fleet's digests that are due; real and simulated nodes have one each.

Those of a week go on Mondays, or on the first later day if Airflow was down; those of a day to rules that ask for them.
`muster digest` shows the same for any period, and for the nodes with a label.
"""

from __future__ import annotations

import datetime

from airflow.sdk import DAG, CronTriggerTimetable, task

from muster.model import dags
from muster.operators import forms
from muster.reporting import mailing

with DAG(
    dag_id=dags.FLEET_DIGEST,
    description="Mails what happened to the fleet in the last week or day",
    # Without a start date, and with this zero, it waits for the next morning: a new installation has nothing to report.
    schedule=CronTriggerTimetable("0 6 * * *", timezone="UTC", run_immediately=datetime.timedelta(0)),
    max_active_runs=1,
    dagrun_timeout=datetime.timedelta(minutes=30),
    doc_md=__doc__,
    tags=["muster", "manager"],
    **forms.DAG_DEFAULTS,
):

    @task
    def send() -> list[str]:
        """Queue the digests; housekeeping sends what a mail server does not take at once."""
        return mailing.send_digests()

    send()
