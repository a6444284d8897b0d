"""Claims: a run claims all nodes that it tests or none, and a node in use only by force."""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from muster import acting, store
from muster.admission import service
from muster.errors import ControllerFault, IllegalMove, LeftAlone, MusterError, NodeLeased, SchedulerDown, first_line
from muster.integration import logins
from muster.model.dags import BURN_POOL
from muster.model.nodes import Lease, Node
from muster.model.runs import RunKey
from muster.remote.job.launch import parse_launch
from muster.remote.job.zipapp import build_agent
from muster.reporting import notices
from muster.settings import settings
from muster_criteria.sku_files.model import SkuError
from muster_criteria.sku_files.skus import current_sku
from muster_criteria.stages import LEVELS
from muster_criteria.text import closest

log = logging.getLogger(__name__)

BEGIN_BY = "begin_by"
"""Key in a run's conf: the time by which the run must begin (``beginning_within``)."""


@contextlib.contextmanager
def failing_at_once() -> Iterator[None]:
    """Raise AirflowFailException for errors that a person has to resolve; ControllerFault passes, to be retried."""
    try:
        yield
    except ControllerFault:
        raise
    except (MusterError, SkuError) as error:
        # Airflow logs a traceback for every failed task: log the sentence above it, and drop the cause for brevity.
        log.error("%s", error)
        raise AirflowFailException(str(error)) from None


@contextlib.contextmanager
def noting_refusal(names: Iterable[str], but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Note in the nodes' history, which `muster status` reads, why a run of them does not begin.

    ``but``: errors that are not noted. What cannot be noted (no such node, no records) is only in the task's log.
    """
    try:
        yield
    except AirflowSkipException:
        raise
    except but:
        raise
    except Exception as error:
        known = isinstance(error, (MusterError, SkuError))
        for name in names:
            with contextlib.suppress(MusterError):
                why = str(error) if known else f"{type(error).__name__}: {first_line(error)}"
                store.signs.note_refusal(name, why, busy=isinstance(error, (LeftAlone, NodeLeased)))
        raise


def refuse_unknown(params: Mapping[str, Any], *known: str) -> None:
    """Raise MusterError for a key of a run's conf that its DAG does not read.

    Airflow accepts such a key, and a misspelt one would silently leave the default, such as another level.
    """
    for key in params:
        if key not in (*known, BEGIN_BY):
            raise MusterError(f"the run's conf has the unknown key {key!r}{closest(key, known)}")


def testable(name: str, level: str, key: RunKey, run_after: datetime.datetime | None) -> Node:
    """Returns the node. Raises MusterError or SkuError if its record, SKU, launch settings or ``level`` are invalid, or
    the run may not begin there (``store.runs.check_same``).
    """
    node = store.nodes.get(name)
    store.runs.check_same(key, name, run_after)
    current_sku(node.sku, settings().sku_folders)
    parse_launch(node.launch)
    if level not in LEVELS:
        raise MusterError(f"there is no level {level!r}; it is one of {', '.join(LEVELS)}")
    return node


def beginning_within(time: datetime.timedelta, conf: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the conf of a run that Muster starts, and that begins within this time or not at all (``late``).

    Runs queue up while no worker is free or their DAG is paused. Later they would all begin at once, although the
    reasons for which they were chosen may no longer hold.
    """
    # By the records' clock: Airflow's time of the run comes from another machine.
    return {**conf, BEGIN_BY: (store.clock.now() + time).isoformat()}


def late(key: RunKey, params: Mapping[str, Any]) -> str:
    """Returns why the run may no longer begin; "" if it is in time, has begun, or has no deadline (a person's run).

    Raises MusterError for an invalid time.
    """
    until = params.get(BEGIN_BY)
    if not until or store.runs.find(run=key):
        return ""
    try:
        over = store.clock.now() > (by := datetime.datetime.fromisoformat(until))
    except (TypeError, ValueError):
        raise MusterError(f"{BEGIN_BY} is a time with its zone, as {store.clock.now().isoformat()}") from None
    return f"its run was to begin by {by:%Y-%m-%d %H:%M} UTC" if over else ""


def controller_ready() -> None:
    """Raise ControllerFault unless certificates can be signed, the SSH key parsed, and the node side packed.

    Called before a run takes a node: no node leaves service for a test that the controller cannot make. Writing the
    lease proves that the records can be written. No run reports such a fault, so it is mailed, once a day.
    """
    try:
        store.certificates.check_signing_key()
        logins.credentials(settings().ssh_conn_id).key()
        build_agent(settings().home / "agents")
    except ControllerFault as fault:
        notices.notify("controller fault", f"No node can be tested: {fault}", of=False, each=True)
        raise


def refuse_other_pool(node: Node, params: Mapping[str, Any]) -> None:
    """Raise MusterError if the run would test a new node outside its own pool, which bounds a rack's power."""
    pool = str(params.get("pool") or "")
    if node.pool and pool != node.pool:
        raise MusterError(
            f"{node.name} is tested in pool {node.pool} only, and this run is in {pool or BURN_POOL}; "
            f"start it with pool {node.pool}"
        )


def forced(params: Mapping[str, Any]) -> str | None:
    """Returns the reason to test a node in use, from a run's parameters; None without one."""
    return str(params.get("force_reason") or "").strip() or None


@contextlib.contextmanager
def leased(names: Collection[str], key: RunKey) -> Iterator[list[Lease]]:
    """Hold the nodes for the run; release them if the block raises anything. Raises NodeLeased, NodePaused."""
    leases = store.leases.acquire_all(names, key)
    try:
        yield leases
    except Exception as error:
        store.leases.release(key, f"not begun: {error}")
        raise


def refuse_in_use(names: Collection[str], force: str | None) -> None:
    """Raise LeftAlone if a node is in use and no ``force`` reason is given.

    A test job left by an earlier run does not count. It is ended, since this run's stages would become its job steps.
    Raises SchedulerDown if it cannot be ended.
    """
    for name in names:
        if trouble := service.end_test(name):
            raise SchedulerDown(f"{name} is not tested, since its last test job could not be ended: {trouble}")
        allocation = service.allocation(name)
        if allocation and not force:
            raise LeftAlone(
                f"{name} is in use: {allocation}; wait until it is free, or give a force_reason to test it anyway"
            )


@contextlib.contextmanager
def leased_for_decision(node: str, key: RunKey, option: str, user: str) -> Iterator[None]:
    """Hold the node while a person's decision is carried out, which is recorded under that ``user`` of Airflow.

    Raises AirflowException while another run holds it (tried again: that run ends), AirflowFailException for a move
    that the lifecycle does not allow.
    """
    try:
        store.leases.acquire(node, key, decision=True)
        try:
            with acting.under(acting.airflow_login(user)):
                yield
        finally:
            store.leases.release(key, f"{option} was carried out")
    except NodeLeased as error:
        raise AirflowException(str(error)) from error
    except IllegalMove as error:
        raise AirflowFailException(str(error)) from error
