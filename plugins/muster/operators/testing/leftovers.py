"""What a run that is over has left on its nodes."""

from __future__ import annotations

from muster.errors import apart
from muster.integration import logins
from muster.model.runs import RunKey
from muster.operators.testing import rounds
from muster.remote import attempt as remote


def stop(key: RunKey) -> None:
    """Stop the run's jobs on its nodes. Of one that cannot be stopped the log says so."""
    for name in rounds.members_of(key):
        # The node itself stops the job at its deadline, or when a newer run starts one.
        with apart(f"a job of run {key.run_id} may still be running on {name}", []):
            remote.stop_leftovers(key, logins.connect, node=name)
