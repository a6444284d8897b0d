"""An SSH server for one node: one process, one port, one host key.

Accepts public keys only, and runs commands through /bin/bash as sshd does: a command that detaches itself outlives the
connection, and one that keeps its output open delays the response. Used for each simulated node, and for this
machine where OpenSSH's server is not installed.
Run as ``python -m muster_demo.sshserver CONFIG.json``, where the JSON holds the fields of ``Config``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import pathlib
import signal
import sys

import asyncssh


@dataclasses.dataclass(frozen=True)
class Config:
    """A server's configuration. Paths are absolute; commands see ``environment`` only; port 0 means any free one.

    ``port_file`` gets the port once the server listens.
    """

    host_key: str
    authorized_keys: str
    port_file: str
    home: str
    environment: dict[str, str]
    port: int = 0

    def save(self, path: pathlib.Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))


async def _pump(source: asyncio.StreamReader, target: asyncssh.SSHWriter[bytes]) -> None:
    while block := await source.read(65536):
        target.write(block)
        await target.drain()


async def _feed(source: asyncssh.SSHReader[bytes], target: asyncio.StreamWriter) -> None:
    try:
        while block := await source.read(65536):
            target.write(block)
            await target.drain()
    except (ConnectionError, asyncssh.Error):
        pass
    finally:
        target.close()


class CommandRunner:
    """Runs clients' commands in the node's home and environment."""

    def __init__(self, config: Config) -> None:
        self.config = config

    async def __call__(self, client: asyncssh.SSHServerProcess[bytes]) -> None:
        """Run one command, or a shell reading commands from its input, and pass on its exit status."""
        arguments = ("-c", client.command) if client.command else ("-s",)
        child = await asyncio.create_subprocess_exec(
            "/bin/bash",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.config.home,
            env=self.config.environment,
            start_new_session=True,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        feeding = asyncio.create_task(_feed(client.stdin, child.stdin))
        await asyncio.gather(
            _pump(child.stdout, client.stdout), _pump(child.stderr, client.stderr), return_exceptions=True
        )
        status = await child.wait()
        feeding.cancel()
        if status < 0:
            client.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
        else:
            client.exit(status)


async def serve(config: Config) -> None:
    """Listen on the loopback interface until cancelled."""
    server = await asyncssh.listen(
        "127.0.0.1",
        config.port,
        server_host_keys=[config.host_key],
        authorized_client_keys=config.authorized_keys,
        process_factory=CommandRunner(config),
        sftp_factory=True,
        encoding=None,
        password_auth=False,
        kbdint_auth=False,
        gss_host=None,
    )
    port_file = pathlib.Path(config.port_file)
    unfinished = port_file.with_suffix(".part")
    unfinished.write_text(str(server.get_port()))
    unfinished.replace(port_file)
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve(Config(**json.loads(pathlib.Path(sys.argv[1]).read_text()))))
