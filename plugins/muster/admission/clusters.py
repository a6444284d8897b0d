"""The configured clusters: from MUSTER_SCHEDULERS to backends, by name. Each kind is a module of ``backends``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pydantic

from muster.admission import backends
from muster.admission.backend import AdmissionBackend, Seen
from muster.admission.records_only import RecordsOnly
from muster.errors import BadScheduler, BadSettings, MusterError, SchedulerDown, first_refused
from muster.settings import settings
from muster_criteria.text import one_line

_TEST_MINUTES = 60
"""Shortest time limit to check for: a whole test of a GPU node takes longer at any level."""


def backend_of(cluster: str) -> AdmissionBackend:
    """Returns the backend of a cluster; ``RecordsOnly`` for "". Raises BadScheduler, BadSettings."""
    if not cluster:
        return RecordsOnly()
    chosen = settings().schedulers.get(cluster)
    if chosen is None:
        known = ", ".join(sorted(settings().schedulers)) or "none"
        raise BadScheduler(f"there is no cluster {cluster!r}; MUSTER_SCHEDULERS names {known}")
    model, make = _found(cluster, str(chosen.get("kind", "")))
    if "cluster" in model.model_fields:
        chosen = {**chosen, "cluster": cluster}
    try:
        return make(model.model_validate(chosen))
    except pydantic.ValidationError as error:
        raise BadSettings(f"MUSTER_SCHEDULERS: {cluster} cannot be used: {first_refused(error)}") from None


def _found(cluster: str, kind: str) -> tuple[type[pydantic.BaseModel], Callable[[Any], AdmissionBackend]]:
    """Returns (the settings, the backend made of them) of a kind. Raises BadSettings.

    Settings with a field ``cluster`` get the cluster's name in it.
    """
    name = f"{backends.__name__}.{kind}"
    try:
        if not kind.isidentifier():
            raise ModuleNotFoundError(name=name)
        model, make = importlib.import_module(name).BACKEND
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            known = ", ".join(sorted(each.name for each in pkgutil.iter_modules(backends.__path__)))
            raise BadSettings(f"MUSTER_SCHEDULERS: {cluster} is of kind {kind!r}; it is one of {known}") from None
        why = f"{type(error).__name__}: {one_line(str(error))[:200]}"
        raise BadSettings(f"MUSTER_SCHEDULERS: {cluster}: the backend {kind} cannot be loaded: {why}") from error
    return model, make


def unreadable(cluster: str, error: Exception) -> str:
    """Returns a sentence for an error of a backend other than MusterError: one bad answer must not stop the others."""
    return f"{cluster} answered what Muster cannot read: {type(error).__name__} {one_line(str(error))[:200]}"


def ask(cluster: str, names: Collection[str], *, jobs: bool = True) -> Mapping[str, Seen]:
    """Returns the nodes as the cluster shows them, by name there. Raises MusterError, also if it cannot be read.

    ``jobs``: whether ``Seen.used_by`` is needed.
    """
    try:
        backend = backend_of(cluster)
        return backend.look(names) if jobs else backend.look_without_jobs(names)
    except MusterError:
        raise
    except Exception as error:
        raise SchedulerDown(unreadable(cluster, error)) from error


def check(cluster: str, names: Collection[str]) -> None:
    """Raise BadScheduler unless the cluster knows the nodes, users' jobs preempt tests, and tests may run long enough.

    Raises SchedulerDown, BadSettings."""
    backend, seen = backend_of(cluster), ask(cluster, names)
    for name in names:
        if name not in seen:
            raise BadScheduler(f"{cluster} does not know a node {name!r}: give the name that its scheduler uses")
    if backend.tests:
        backend.tests.check(names, _TEST_MINUTES)
