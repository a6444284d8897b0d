"""The fleet records: nodes, leases, runs, measurements, verdicts, events. Each module is a namespace.

Other packages write ``from muster import store`` and ``store.nodes.get(name)``.

Each function opens one short session; a change of state and its event are one transaction. All raise DatabaseNotReady,
in one sentence, if the database is away or not at this version's schema. Values are frozen.
"""

from __future__ import annotations

from muster.store.database import clock as clock
from muster.store.database import engine as engine
from muster.store.database import patience as patience
from muster.store.database import retention as retention
from muster.store.decisions import admission as admission
from muster.store.decisions import certificates as certificates
from muster.store.decisions import questions as questions
from muster.store.decisions import replacing as replacing
from muster.store.decisions import signing as signing
from muster.store.decisions import verdicts as verdicts
from muster.store.decisions import waivers as waivers
from muster.store.decisions import withdrawals as withdrawals
from muster.store.fleet import bmcs as bmcs
from muster.store.fleet import device_events as device_events
from muster.store.fleet import failures as failures
from muster.store.fleet import goldens as goldens
from muster.store.fleet import health as health
from muster.store.fleet import latest as latest
from muster.store.fleet import measured as measured
from muster.store.fleet import passes as passes
from muster.store.fleet import past_faults as past_faults
from muster.store.fleet import peers as peers
from muster.store.fleet import repairs as repairs
from muster.store.fleet import revisions as revisions
from muster.store.fleet import risk_models as risk_models
from muster.store.fleet import running as running
from muster.store.fleet import signs as signs
from muster.store.machines import adoption as adoption
from muster.store.machines import contested as contested
from muster.store.machines import leases as leases
from muster.store.machines import lemons as lemons
from muster.store.machines import nodes as nodes
from muster.store.machines import parts as parts
from muster.store.machines import pauses as pauses
from muster.store.machines import places as places
from muster.store.machines import racks as racks
from muster.store.output import attention as attention
from muster.store.output import backup as backup
from muster.store.output import export as export
from muster.store.output import figures as figures
from muster.store.output import ledger as ledger
from muster.store.output import node_metrics as node_metrics
from muster.store.output import numbers as numbers
from muster.store.output import overview as overview
from muster.store.output import raw as raw
from muster.store.queues import audit as audit
from muster.store.queues import outbox as outbox
from muster.store.queues import schedulers as schedulers
from muster.store.queues import users_jobs as users_jobs
from muster.store.testing import attempts as attempts
from muster.store.testing import common_causes as common_causes
from muster.store.testing import reevaluations as reevaluations
from muster.store.testing import reporting as reporting
from muster.store.testing import rounds as rounds
from muster.store.testing import runs as runs
from muster.store.testing import stages as stages
from muster.store.testing import trainings as trainings

engine.before_commit[:] = [admission.stand]
