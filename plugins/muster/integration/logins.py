"""Logins from Airflow's connections: SSH for tasks and triggers, and the BMCs'.

The SSH login comes from the connection that MUSTER_SSH_CONN_ID names; where there is none, from MUSTER_SSH_USER and
MUSTER_SSH_KEY_FILE. The connection's host, host key and compression settings are ignored.
"""

from __future__ import annotations

from typing import Any

import paramiko
from airflow.providers.common.compat.connection import get_async_connection
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from muster.remote import ssh
from muster.remote.bmc import Bmc, Login, login, no_connection, of_connection
from muster.remote.ssh import Credentials
from muster.settings import settings


def connect(node: ssh.Address, *, timeout: float | None = None, attempts: int = 3) -> paramiko.SSHClient:
    """Log in to a node as tasks do. Raises what ``muster.remote.ssh.connect`` raises."""
    current = settings()
    who = credentials(current.ssh_conn_id)
    return ssh.connect(node, who, timeout=current.ssh_timeout_s if timeout is None else timeout, attempts=attempts)


def credentials(conn_id: str) -> Credentials:
    """The SSH login, in a task."""
    try:
        return _of(BaseHook.get_connection(conn_id))
    except AirflowNotFoundException:
        return ssh.settings_credentials()


async def async_credentials(conn_id: str) -> Credentials:
    """The SSH login, in a triggerer."""
    try:
        return _of(await get_async_connection(conn_id))
    except AirflowNotFoundException:
        return ssh.settings_credentials()


async def bmc_login(bmc: Bmc) -> Login:
    """A BMC's login, in a triggerer. Raises BadBmc."""
    if not bmc.connection:
        return login(bmc)
    try:
        return of_connection(bmc, await get_async_connection(bmc.connection))
    except AirflowNotFoundException:
        raise no_connection(bmc) from None


def _of(connection: Any) -> Credentials:
    """The login in a connection of type ``ssh``, by the names that the SSH provider documents for its extras."""
    extra = connection.extra_dejson
    return Credentials(
        username=connection.login or None,
        key_file=extra.get("key_file") or None,
        password=connection.password or None,
        private_key=extra.get("private_key") or None,
        passphrase=extra.get("private_key_passphrase") or None,
        proxy_command=extra.get("host_proxy_cmd") or None,
    )
