"""The configured clusters: from MUSTER_SCHEDULERS to backends, by name. A further kind is one more line in KINDS."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pydantic

from muster.admission.backend import AdmissionBackend, RightsKnown, Seen
from muster.admission.kubernetes import Kubernetes, KubernetesSettings
from muster.admission.records_only import RecordsOnly
from muster.admission.slurm import Slurm, SlurmSettings
from muster.admission.webhook import Webhook, WebhookSettings
from muster.errors import BadScheduler, BadSettings, MusterError, SchedulerDown
from muster.settings import settings
from muster_criteria.text import one_line

KINDS: dict[str, tuple[type[pydantic.BaseModel], Callable[[Any], AdmissionBackend]]] = {
    "slurm": (SlurmSettings, Slurm),
    "kubernetes": (KubernetesSettings, Kubernetes),
    "webhook": (WebhookSettings, Webhook),
}
"""Kind: (its settings, its backend made of them). Settings with a field ``cluster`` get the cluster's name in it."""


def backend_of(cluster: str) -> AdmissionBackend:
    """Returns the backend of a cluster; of "", the records alone. Raises BadScheduler, BadSettings."""
    if not cluster:
        return RecordsOnly()
    chosen = settings().schedulers.get(cluster)
    if chosen is None:
        known = ", ".join(sorted(settings().schedulers)) or "none"
        raise BadScheduler(f"there is no cluster {cluster!r}; MUSTER_SCHEDULERS names {known}")
    kind = str(chosen.get("kind", ""))
    if kind not in KINDS:
        raise BadSettings(f"MUSTER_SCHEDULERS: {cluster} is of kind {kind!r}; it is one of {', '.join(KINDS)}")
    model, make = KINDS[kind]
    if "cluster" in model.model_fields:
        chosen = {**chosen, "cluster": cluster}
    try:
        return make(model.model_validate(chosen))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadSettings(f"MUSTER_SCHEDULERS: {cluster}.{where} cannot be used: {first['msg']}") from None


def unreadable(cluster: str, error: Exception) -> str:
    """Returns the sentence for whatever a backend raises but a MusterError: one answer must not stop all others."""
    return f"{cluster} answered what Muster cannot read: {type(error).__name__} {one_line(str(error))[:200]}"


def ask(cluster: str, names: Collection[str]) -> Mapping[str, Seen]:
    """Returns the nodes as the cluster shows them, by name there. Raises MusterError, also if it cannot be read."""
    try:
        return backend_of(cluster).look(names)
    except MusterError:
        raise
    except Exception as error:
        raise SchedulerDown(unreadable(cluster, error)) from error


def check(cluster: str, names: Collection[str]) -> None:
    """Raise BadScheduler unless the cluster knows the nodes and jobs preempt its tests, SchedulerDown, BadSettings."""
    backend, seen = backend_of(cluster), ask(cluster, names)
    for name in names:
        if name not in seen:
            raise BadScheduler(f"{cluster} does not know a node {name!r}: give the name that its scheduler uses")
    if backend.tests:
        backend.tests.check(names)


def check_rights(cluster: str) -> None:
    """Raise SchedulerDown if our login may not change the cluster's nodes, as far as it can be asked; BadSettings."""
    backend = backend_of(cluster)
    if isinstance(backend, RightsKnown):
        backend.check_rights()
