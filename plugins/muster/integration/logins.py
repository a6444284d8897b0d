"""Logins from Airflow's connections: SSH for tasks and triggers, and the BMCs'.

The SSH login comes from the connection that MUSTER_SSH_CONN_ID names, whose host, host key and compression settings are
ignored.
"""

from __future__ import annotations

from typing import Any, TypeVar

import paramiko
import pydantic
from airflow.providers.common.compat.connection import get_async_connection
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from muster.errors import BadScheduler, ControllerFault, first_refused
from muster.remote.bmc.bmc import Bmc, Login, login, no_connection, of_connection
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.settings import settings

Extra = TypeVar("Extra", bound=pydantic.BaseModel)


def connect(node: ssh.Address, *, timeout: float | None = None, attempts: int = 3) -> paramiko.SSHClient:
    """Log in to a node as tasks do. Raises what ``credentials`` and ``muster.remote.connection.ssh.connect`` raise."""
    current = settings()
    who = credentials(current.ssh_conn_id)
    return ssh.connect(node, who, timeout=current.ssh_timeout_s if timeout is None else timeout, attempts=attempts)


def credentials(conn_id: str) -> Credentials:
    """The SSH login, in a task. Raises ControllerFault without the connection."""
    try:
        return _of(BaseHook.get_connection(conn_id))
    except AirflowNotFoundException:
        raise _no_login(conn_id) from None


def password(conn_id: str, what: str) -> str:
    """The password of an Airflow connection; ``what`` describes it in the error. Raises BadScheduler without it."""
    try:
        found = BaseHook.get_connection(conn_id).password
    except AirflowNotFoundException:
        found = ""
    if not found:
        raise BadScheduler(f"there is no Airflow connection {conn_id} with a password, which is {what}: add it")
    return found


def extra(conn_id: str, what: str, model: type[Extra]) -> Extra:
    """The extra of an Airflow connection, which holds ``what``, as ``model``. Raises BadScheduler."""
    try:
        return model.model_validate(BaseHook.get_connection(conn_id).extra_dejson)
    except AirflowNotFoundException:
        raise BadScheduler(f"there is no Airflow connection {conn_id} with {what}: add it") from None
    except pydantic.ValidationError as error:
        raise BadScheduler(f"the extra of the Airflow connection {conn_id}: {first_refused(error)}") from None


async def async_credentials(conn_id: str) -> Credentials:
    """The SSH login, in a triggerer. Raises ControllerFault without the connection."""
    try:
        return _of(await get_async_connection(conn_id))
    except AirflowNotFoundException:
        raise _no_login(conn_id) from None


def _no_login(conn_id: str) -> ControllerFault:
    return ControllerFault(f"there is no Airflow connection {conn_id}: `muster doctor` shows how to add it")


async def bmc_login(bmc: Bmc) -> Login:
    """A BMC's login, in a triggerer. Raises BadBmc."""
    if not bmc.connection:
        return login(bmc)
    try:
        return of_connection(bmc, await get_async_connection(bmc.connection))
    except AirflowNotFoundException:
        raise no_connection(bmc) from None


def _of(connection: Any) -> Credentials:
    return Credentials.of_connection(connection.login, connection.password, connection.extra_dejson)
