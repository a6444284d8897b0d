"""Runs commands of the node side outside jobs, over one SSH connection, each within a time limit."""

from __future__ import annotations

from collections.abc import Sequence

import paramiko

from muster.errors import MusterError
from muster.model.nodes import Node
from muster.remote.connection import ssh
from muster.remote.connection.ssh import Connect
from muster.remote.job import jobs, launch
from muster.remote.job.zipapp import AgentFile


class NodeSide:
    """A connection that is opened when it is needed, and again when a command has broken it."""

    def __init__(self, node: Node, connect: Connect, agent: AgentFile) -> None:
        self._node, self._connect, self._agent = node, connect, agent
        self._client: paramiko.SSHClient | None = None
        self._words: list[str] = []

    def run(self, words: Sequence[str], limit_s: float, bytes_max: int) -> ssh.Completed:
        """Run a command of the node side. Raises MusterError; the next call then connects again."""
        try:
            if self._client is None:
                self._client = self._connect(self._node)
                seen = jobs.look(self._client, self._node.work_dir, jobs.NO_JOB, self._agent.sha256)
                jobs.send_agent(self._client, seen, self._agent.path, self._agent.sha256)
                program = jobs.agent_path(seen.work, self._agent.sha256)
                self._words = ["env", f"MUSTER_WORK={seen.work}", *launch.on_host(self._node.launch, program)]
            return ssh.run(self._client, [*self._words, *words], limit_s, max_bytes=bytes_max)
        except MusterError:
            self.close()
            raise

    def close(self) -> None:
        """Harmless when nothing is open."""
        if self._client is not None:
            self._client.close()
        self._client = None
