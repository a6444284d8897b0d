"""The SSH servers of the demo's fleet: one for each simulated node, and a real one for this machine."""

from __future__ import annotations

import dataclasses
import getpass
import os
import pathlib
import pwd
import shutil
import sys
from collections.abc import Mapping

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from muster_demo.services import ServiceFailed, Supervisor, free_port, port_is_open
from muster_demo.sshserver import Config

LISTENING_S = 30.0


@dataclasses.dataclass(frozen=True)
class Keys:
    """The controller's key pair: the private file for clients, the authorized_keys file for servers."""

    private: pathlib.Path
    authorized: pathlib.Path


def make_key(path: pathlib.Path) -> str:
    """Write a new Ed25519 private key; returns the public half as "ssh-ed25519 AAAA…"."""
    key = Ed25519PrivateKey.generate()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return public.decode()


def make_client_keys(folder: pathlib.Path) -> Keys:
    """The key pair that opens every node of the demo."""
    keys = Keys(folder / "id_ed25519", folder / "authorized_keys")
    public = make_key(keys.private)
    keys.authorized.write_text(public + "\n")
    keys.authorized.chmod(0o600)
    return keys


@dataclasses.dataclass(frozen=True)
class Server:
    """A running SSH server: the service's name, its port, and its kind in words."""

    name: str
    port: int
    kind: str


class Hosts:
    """Starts the SSH servers as services."""

    def __init__(self, supervisor: Supervisor, folder: pathlib.Path, keys: Keys, mark: Mapping[str, str]) -> None:
        self.supervisor = supervisor
        self.folder = folder
        self.keys = keys
        self.mark = dict(mark)

    def start_python_server(self, name: str, home: pathlib.Path, environment: Mapping[str, str]) -> pathlib.Path:
        """Start an asyncssh server for one node; returns the file that will hold its port. Does not wait."""
        folder = self.folder / name
        home.mkdir(parents=True, exist_ok=True)
        make_key(folder / "host_key")
        user = getpass.getuser()
        config = Config(
            host_key=str(folder / "host_key"),
            authorized_keys=str(self.keys.authorized),
            port_file=str(folder / "port"),
            home=str(home),
            environment={
                "PATH": os.environ.get("PATH", os.defpath),
                "LANG": "C.UTF-8",
                "USER": user,
                "LOGNAME": user,
                "SHELL": "/bin/bash",
                "HOME": str(home),
                **self.mark,
                **environment,
            },
        )
        config.save(folder / "config.json")
        command = [sys.executable, "-m", "muster_demo.sshserver", str(folder / "config.json")]
        self.supervisor.start(name, command, {**config.environment, "PYTHONPATH": os.environ.get("PYTHONPATH", "")})
        return folder / "port"

    def wait_for_port(self, name: str, port_file: pathlib.Path) -> int:
        """The port of a server that was started, once it listens."""
        self.supervisor.wait_until(f"the SSH server of {name}", port_file.exists, LISTENING_S)
        return int(port_file.read_text())

    def start_host_server(self, name: str) -> Server:
        """A real SSH server for this machine: OpenSSH's where it is installed and lets us in, else asyncssh's."""
        sshd = find_sshd()
        if sshd is not None:
            port = self._start_sshd(name, sshd)
            if port is not None and self._lets_us_in(port):
                return Server(name, port, f"OpenSSH's server ({sshd})")
            self.supervisor.stop([name])
            why = "OpenSSH's server is installed but does not let this user in"
        else:
            why = "OpenSSH's server is not installed"
        home = pathlib.Path(pwd.getpwuid(os.getuid()).pw_dir)
        port = self.wait_for_port(name, self.start_python_server(name, home, {}))
        return Server(name, port, f"asyncssh's server, since {why}")

    def _start_sshd(self, name: str, sshd: str) -> int | None:
        folder = self.folder / name
        make_key(folder / "host_key")
        if os.geteuid() == 0:
            # sshd started by root will not run without its privilege separation directory; a package's own start-up
            # script makes it, but in a container that script never ran.
            pathlib.Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        port = free_port()
        (folder / "sshd_config").write_text(sshd_config(port, folder, self.keys.authorized, self.mark))
        self.supervisor.start(name, [sshd, "-D", "-e", "-f", str(folder / "sshd_config")], os.environ)
        try:
            self.supervisor.wait_until("sshd", lambda: port_is_open(port), LISTENING_S)
        except ServiceFailed:
            return None
        return port

    def _lets_us_in(self, port: int) -> bool:
        """Whether the login works: a locked account or a login shell like nologin would refuse it."""
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        try:
            client.connect(
                "127.0.0.1",
                port,
                username=getpass.getuser(),
                key_filename=str(self.keys.private),
                allow_agent=False,
                look_for_keys=False,
                timeout=10,
            )
            _stdin, stdout, _stderr = client.exec_command("echo mustered", timeout=10)
            return stdout.read().strip() == b"mustered"
        except (OSError, paramiko.SSHException):
            return False
        finally:
            client.close()


def find_sshd() -> str | None:
    """OpenSSH's server as an absolute path (it insists on one), or None."""
    return shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


def sshd_config(port: int, folder: pathlib.Path, authorized_keys: pathlib.Path, mark: Mapping[str, str]) -> str:
    """A configuration for an sshd that the current user runs: this user's keys only, on loopback only."""
    # Below a shell, as this says that it is, bash reads no ~/.bashrc: that of a developer may wait minutes for a lock.
    environment = " ".join(f'{name}="{value}"' for name, value in {**mark, "SHLVL": "1"}.items())
    return "\n".join(
        [
            f"Port {port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {folder / 'host_key'}",
            f"PidFile {folder / 'sshd.pid'}",
            f"AuthorizedKeysFile {authorized_keys}",
            f"AllowUsers {getpass.getuser()}",
            f"SetEnv {environment}",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "MaxStartups 100",
            "Subsystem sftp internal-sftp",
            "",
        ]
    )
