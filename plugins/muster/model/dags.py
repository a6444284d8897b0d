"""The ids of Muster's DAGs, the pools of their tasks, and how often two of them run, each written here alone."""

from __future__ import annotations

import datetime
from typing import Literal

NODE_QUALIFICATION = "node_qualification"
NODE_REVALIDATION = "node_revalidation"
CLUSTER_QUALIFICATION = "cluster_qualification"
IDLE_REVALIDATION = "idle_revalidation"
HEALTH_SWEEP = "health_sweep"
NEW_HARDWARE = "new_hardware"
ADMISSION: Literal["admission"] = "admission"
REPAIR = "repair"
HELD_VERDICT: Literal["held_verdict"] = "held_verdict"
PEER_STATISTICS = "peer_statistics"
FLEET_DIGEST = "fleet_digest"
HOUSEKEEPING = "housekeeping"

ALL = (
    NODE_QUALIFICATION, CLUSTER_QUALIFICATION, ADMISSION, NODE_REVALIDATION, IDLE_REVALIDATION, HELD_VERDICT,
    REPAIR,
    NEW_HARDWARE, HEALTH_SWEEP, PEER_STATISTICS, HOUSEKEEPING, FLEET_DIGEST,
)  # fmt: skip

ASKING = (ADMISSION, HELD_VERDICT)
"""DAGs whose runs ask a person."""

HOLDERS = frozenset({NODE_QUALIFICATION, NODE_REVALIDATION, CLUSTER_QUALIFICATION, REPAIR, *ASKING})
"""DAGs whose runs hold nodes, to be released when the run is over."""

STOPPED_AFTER = {
    IDLE_REVALIDATION: datetime.timedelta(hours=1), HEALTH_SWEEP: datetime.timedelta(hours=1),
    HOUSEKEEPING: datetime.timedelta(hours=1), PEER_STATISTICS: datetime.timedelta(hours=3),
    FLEET_DIGEST: datetime.timedelta(days=2),
}  # fmt: skip
"""The DAGs with a schedule: one whose last run ended longer ago than this has stopped."""

HOUSEKEEPING_EVERY = datetime.timedelta(minutes=5)
SWEPT_EVERY = datetime.timedelta(minutes=10)
"""How often the sweep reads a node in service that no run holds and whose tests are not paused."""

BURN_POOL = "muster_burn"
"""The pool of every stage of a qualification, unless the node has one of its own."""

POOL_CHARACTERS = 256
"""The longest name of a pool in Airflow's database."""

MAPPED_MAX = 1000
"""The most runs that one task starts: it fails and starts none beyond Airflow's ``[core] max_map_length``, which is
1,024 as shipped."""
