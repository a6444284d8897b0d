"""Airflow's SSH hooks, both halves, trusting one host key: the node's own, pinned at enrolment.

Who we are comes from the Airflow connection that MUSTER_SSH_CONN_ID names; where there is none, from MUSTER_SSH_USER
and MUSTER_SSH_KEY_FILE. Whatever that connection says about hosts and host keys is set aside.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import asyncssh
import paramiko
from airflow.providers.common.compat.connection import get_async_connection
from airflow.providers.ssh.hooks.ssh import SSHHook, SSHHookAsync
from airflow.sdk.exceptions import AirflowNotFoundException

from muster.remote import ssh

RETRY_SECONDS = 3.0


@dataclasses.dataclass(frozen=True)
class NodeAddress:
    """Where a node is and who it must prove to be, in a form that travels with a trigger."""

    name: str
    host: str
    port: int
    user: str
    host_key: str

    @classmethod
    def of(cls, node: ssh.Address) -> NodeAddress:
        """The address part of a node's record."""
        return cls(node.name, node.host, node.port, node.user or "", node.host_key)


class NodeSSHHook(SSHHook):
    """paramiko to one node. ``get_conn`` raises what ``muster.remote.ssh.connect`` raises."""

    def __init__(self, node: ssh.Address, ssh_conn_id: str, *, timeout: float = 15.0, attempts: int = 3) -> None:
        place: dict[str, Any] = {
            "remote_host": node.host,
            "port": node.port,
            "conn_retry_attempts": attempts,
            "no_host_key_check": False,
        }
        try:
            # Looks the connection up, which asks the API server: once.
            super().__init__(ssh_conn_id=ssh_conn_id, username=node.user or None, **place)
        except AirflowNotFoundException:
            who = ssh.settings_credentials()
            super().__init__(username=node.user or who.username, key_file=who.key_file, **place)
        self.node = NodeAddress.of(node)
        self.timeout = timeout
        self.allow_host_key_change = False

    def get_conn(self) -> paramiko.SSHClient:
        """Log in, again after a moment if nothing answers (a server that is being flooded drops connections)."""
        who = ssh.Credentials(self.username, self.key_file, self.password or None, self.pkey)
        options: dict[str, Any] = {"sock": self.host_proxy}
        if self.disabled_algorithms:
            options["disabled_algorithms"] = self.disabled_algorithms
        for _ in range(self.conn_retry_attempts - 1):
            try:
                return ssh.connect(self.node, who, timeout=self.timeout, options=options)
            except ssh.Unreachable as error:
                self.log.info("%s; trying again", error)
                time.sleep(RETRY_SECONDS)
        return ssh.connect(self.node, who, timeout=self.timeout, options=options)


class NodeSSHHookAsync(SSHHookAsync):
    """asyncssh to one node, for triggers."""

    def __init__(self, node: NodeAddress, ssh_conn_id: str, *, timeout: float = 15.0) -> None:
        super().__init__(ssh_conn_id=ssh_conn_id, host=node.host, port=node.port, username=node.user or None)
        self.node = node
        self.timeout = timeout

    async def _get_conn(self) -> asyncssh.SSHClientConnection:
        options: dict[str, Any] = {
            "host": self.node.host,
            "port": self.node.port,
            "known_hosts": ([asyncssh.import_public_key(self.node.host_key)], [], []),
            "keepalive_interval": self.keepalive_interval,
            "compression_algs": ["none"],
            "connect_timeout": self.timeout,
            "login_timeout": self.timeout,
        }
        username = await self._add_credentials(options)
        if username:
            options["username"] = username
        return await asyncssh.connect(**options)

    async def _add_credentials(self, options: dict[str, Any]) -> str | None:
        """Put the keys or the password into ``options``; gives the login."""
        try:
            connection = await get_async_connection(self.ssh_conn_id)
        except AirflowNotFoundException:
            who = ssh.settings_credentials()
            if who.key_file:
                options["client_keys"] = [who.key_file]
            return self.username or who.username
        if connection.extra:
            self._parse_extras(connection)
        if connection.password:
            options["password"] = connection.password
        if self.key_file:
            options["client_keys"] = [self.key_file]
        if self.private_key:
            options["client_keys"] = [asyncssh.import_private_key(self.private_key, self.passphrase or None)]
        if self.passphrase:
            options["passphrase"] = self.passphrase
        return self.username or connection.login
