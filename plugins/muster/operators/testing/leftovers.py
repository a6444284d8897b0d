"""Stops jobs that a run which is over has left on its nodes."""

from __future__ import annotations

import logging
import math
import time

from muster.errors import apart
from muster.integration import logins
from muster.model.runs import RunKey
from muster.operators.testing import rounds
from muster.remote.job import attempt as remote

log = logging.getLogger(__name__)

STOPPING_S = 300.0
"""Maximum time (s) to stop jobs in before housekeeping releases nodes: an unreachable host costs half a minute."""


def stop(key: RunKey, until: float = math.inf) -> None:
    """Stop the run's jobs on its nodes, none of them later than ``until`` (``time.monotonic``).

    Jobs that are not stopped are logged.
    """
    for name in rounds.members_of(key):
        if time.monotonic() > until:
            log.warning("jobs of run %s may still be running on %s and on: no time was left", key.run_id, name)
            return
        # The node itself stops the job at its deadline, or when a newer run starts one.
        with apart(f"a job of run {key.run_id} may still be running on {name}", []):
            remote.stop_leftovers(key, logins.connect, node=name)
