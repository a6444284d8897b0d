"""SSH to a node, trusting exactly one host key: connect, run, fetch, store. Knows no Airflow.

Nothing that a node sends is trusted: output is capped while it is read, and text is cleaned before it is shown. An
invalid packet can make paramiko raise any exception: whatever a node causes becomes a RemoteError.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import logging
import shlex
import socket
import threading
import time
from collections.abc import Callable, Sequence

import paramiko

from muster.errors import MusterError
from muster.model.nodes import NewNode, Node
from muster.remote.connection.login import Credentials, own_fault
from muster.remote.connection.transport import Transport
from muster_criteria.text import cut, one_line, printable

log = logging.getLogger(__name__)
for _library in ("paramiko", "asyncssh"):
    # They log several lines at INFO for each connection, which would bury the verdict in a task's log.
    logging.getLogger(_library).setLevel(logging.WARNING)

SSH_PORT = 22
OUTPUT_BYTES_MAX = 1024 * 1024
CONNECT_STEPS = 4
"""The time limit of a whole login, in multiples of its timeout: TCP, key exchange, banner, authentication."""

RETRY_SECONDS = 3.0
NOT_YET = "pam_nologin"  # part of the message of a node that starts up or shuts down (systemd)
_CHUNK = 32 * 1024


class RemoteError(MusterError):
    """A remote step failed; the message is one sentence with the reason and what to do."""


class Unreachable(RemoteError):
    """Nothing responds, or the connection was lost."""


class WrongHostKey(RemoteError):
    """The host key is not the one pinned at enrolment."""


class LoginRefused(RemoteError):
    """The node refused our user or key; the message has what it said of that."""


class CommandTimedOut(RemoteError):
    """A command did not end in time."""


@dataclasses.dataclass(frozen=True)
class NodeAddress:
    """A node's address, user and pinned host key, which can be sent to another process."""

    name: str
    host: str
    port: int
    user: str
    host_key: str

    @classmethod
    def of(cls, node: Node) -> NodeAddress:
        """Returns the address of a node's record."""
        return cls(node.name, node.host, node.port, node.user, node.host_key)


Address = NewNode | Node | NodeAddress

Connect = Callable[[Node], paramiko.SSHClient]
"""Logs in to a node. Raises RemoteError."""


@dataclasses.dataclass(frozen=True)
class Completed:
    """The exit status and output of a remote command; ``truncated``: its output exceeded the limit."""

    rc: int
    out: bytes
    err: bytes
    truncated: bool = False

    @property
    def text(self) -> str:
        """Standard output as cleaned text."""
        return clean(self.out.decode("utf-8", "replace"))

    @property
    def complaint(self) -> str:
        """The last line of the error output, cleaned, at most 300 characters."""
        lines = clean((self.err or self.out).decode("utf-8", "replace")).strip().splitlines()
        return lines[-1][:300] if lines else f"exit status {self.rc}"


def clean(text: str) -> str:
    """Returns ``text`` with � for what is not printable; newlines and tabs stay."""
    return printable(text, "�", keep="\n\t")


def pinned_key(node: Address) -> paramiko.PKey:
    """Returns the node's host key, "ssh-ed25519 AAAA…" in the records. Raises RemoteError."""
    try:
        kind, data = node.host_key.split()[:2]
        return paramiko.PKey.from_type_string(kind, base64.b64decode(data, validate=True))
    except (ValueError, binascii.Error, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        raise RemoteError(
            f"the pinned host key {node.host_key[:40]!r} is not a public key; pin the one that answers: "
            f"`muster node reinstalled {node.name} --reason …`"
        ) from error


def host_key_name(host: str, port: int) -> str:
    """Returns the host as in known_hosts: with its port, unless that is 22."""
    return host if port == SSH_PORT else f"[{host}]:{port}"


def scan_host_key(host: str, port: int, who: Credentials, *, timeout: float = 10.0) -> str:
    """Returns the host's current key as "ssh-ed25519 AAAA…", without logging in.

    ``who`` has the proxy command by which it is reached, if any; ``timeout`` (s) limits each step. Raises Unreachable,
    and ControllerFault for a proxy command that cannot be run, or where no connection can be opened here.
    """
    proxy = who.proxy_to(host, port)
    try:
        way = paramiko.ProxyCommand(proxy) if proxy else socket.create_connection((host, port), timeout=timeout)
        with contextlib.closing(way):
            transport = Transport(way)
            try:
                transport.banner_timeout = timeout
                transport.start_client(timeout=timeout)
                key = transport.get_remote_server_key()
                return f"{key.get_name()} {key.get_base64()}"
            finally:
                transport.close()
    except Exception as error:
        raise own_fault(error) or Unreachable(_unreachable(host, port, error)) from error


def pinned_client(node: Address) -> paramiko.SSHClient:
    """Returns a client that trusts only the node's pinned key, not the user's known_hosts."""
    client = paramiko.SSHClient()
    key = pinned_key(node)
    client.get_host_keys().add(host_key_name(node.host, node.port), key.get_name(), key)
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    return client


def connect(node: Address, who: Credentials, *, timeout: float = 15.0, attempts: int = 1) -> paramiko.SSHClient:
    """Log in to a node. The caller closes the client.

    ``timeout`` (s) limits each step of an attempt, ``CONNECT_STEPS`` times it the whole attempt. An overloaded server
    drops logins, so an unreachable node is tried ``attempts`` times. Raises Unreachable, WrongHostKey or LoginRefused,
    and ControllerFault for an invalid or missing key, or where no connection can be opened here.
    """
    for _ in range(attempts - 1):
        try:
            return _connect(node, who, timeout)
        except Unreachable as error:
            log.info("%s; trying again", error)
            time.sleep(RETRY_SECONDS)
    return _connect(node, who, timeout)


def _connect(node: Address, who: Credentials, timeout: float) -> paramiko.SSHClient:
    client = pinned_client(node)
    watchdog = _after(CONNECT_STEPS * timeout, client.close)
    try:
        key, proxy = who.key(), who.proxy_to(node.host, node.port)
        client.connect(
            node.host,
            port=node.port,
            username=node.user or who.username,
            pkey=key,
            look_for_keys=key is None,
            allow_agent=key is None,
            compress=False,
            sock=paramiko.ProxyCommand(proxy) if proxy else None,
            timeout=timeout,
            banner_timeout=timeout,
            auth_timeout=timeout,
            transport_factory=Transport,
        )
    except BaseException as error:
        said = _said(client)
        client.close()
        raise _as_remote_error(node, error, who, said) from error
    finally:
        watchdog.cancel()
    transport = client.get_transport()
    if transport is not None:
        transport.set_keepalive(30)
    return client


def _said(client: paramiko.SSHClient) -> str:
    """The last message that the node showed during the login; "" without one."""
    transport = client.get_transport()
    shown = getattr(transport and transport.auth_handler, "banner", None) or b""
    return bytes(shown).decode("utf-8", "replace")


def _after(seconds: float, act: Callable[[], None]) -> threading.Timer:
    """Call ``act`` from another thread unless the timer is cancelled before."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    return timer


def _as_remote_error(node: Address, error: BaseException, who: Credentials, said: str) -> BaseException:
    if isinstance(error, paramiko.BadHostKeyException):
        return WrongHostKey(wrong_host_key(node, error.key))
    if fault := own_fault(error):
        return fault
    if isinstance(error, MusterError) or not isinstance(error, Exception):
        return error
    if isinstance(error, paramiko.AuthenticationException):
        return refused(node, who, said)
    if isinstance(error, paramiko.SSHException) and "not found in known_hosts" in str(error):
        return WrongHostKey(wrong_host_key(node))
    return Unreachable(_unreachable(node.host, node.port, error, node.name))


def refused(node: Address, who: Credentials, said: str) -> RemoteError:
    """Returns the error for a refused login, with what the node ``said``; Unreachable for a node that is starting."""
    said = cut(one_line(said), 300)
    if NOT_YET in said:
        return Unreachable(_unreachable(node.host, node.port, PermissionError(said), node.name))
    key = who.key_file or ("the key in the connection" if who.private_key else "the keys of the agent and ~/.ssh")
    user = f"{node.user} (the node's own)" if node.user else who.username or "this process's user"
    return LoginRefused(
        f"{node.name} ({node.host}:{node.port}) refused the login of {user} with {key}"
        f"{f', and said {said!r}' if said else ''}; check both in the SSH connection (MUSTER_SSH_CONN_ID)"
        f"{', and whether that user may log in there' if said else ''}"
    )


def wrong_host_key(node: Address, found: paramiko.PKey | None = None) -> str:
    """Returns the sentence of a node that shows another host key than the pinned one. ``found``: that key, if known."""
    # The command comes first, since only the beginning of a long reason is shown.
    sentence = (
        f"{node.name} ({node.host}:{node.port}) has another host key than the pinned one: `muster node reinstalled "
        f"{node.name} --reason …` if its system was installed again, else something intercepts the connection"
    )
    if found is None:
        return sentence
    return f"{sentence} ({_fingerprint(found)} instead of {_fingerprint(pinned_key(node))})"


def _unreachable(host: str, port: int, error: BaseException, name: str = "") -> str:
    where = f"{name} ({host}:{port})" if name else f"{host}:{port}"
    why = one_line(str(error)) or type(error).__name__
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        why = "connection refused or no route"
    return f"{where} cannot be reached over SSH: {why}; check that it is up and that this controller may connect to it"


def _fingerprint(key: paramiko.PKey) -> str:
    return f"{key.get_name()} {key.fingerprint}"


def shell(script: str, *args: str) -> str:
    """Returns a POSIX script as one command for any login shell; ``args`` become ``$1`` and so on."""
    return shlex.join(["sh", "-c", script, "muster", *args])


def run(
    client: paramiko.SSHClient,
    command: str | Sequence[str],
    timeout: float = 30.0,
    stdin: bytes = b"",
    max_bytes: int = OUTPUT_BYTES_MAX,
    *,
    to: str = "",
) -> Completed:
    """Run one command, feed it ``stdin``, and read at most ``max_bytes`` from each of its streams.

    Longer output is ``truncated``. ``timeout`` (s) limits the whole call; after it the connection is closed. ``to``:
    what a script is for; an error says this instead of the script's text. Raises CommandTimedOut, or Unreachable if the
    connection breaks.
    """
    line = command if isinstance(command, str) else shlex.join(command)
    deadline = time.monotonic() + timeout
    transport = client.get_transport()
    if transport is None:
        raise Unreachable("the SSH connection is closed; try again")
    # paramiko waits without a limit for a response and for room in the socket; closing the transport ends that.
    watchdog = _after(timeout, transport.close)
    try:
        channel = transport.open_session(timeout=timeout)
        try:
            channel.settimeout(1.0)
            channel.exec_command(line)
            return _converse(channel, stdin, max_bytes, deadline)
        finally:
            channel.close()
    except Exception as error:
        if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
            transport.close()
            raise CommandTimedOut(_timed_out(line, to, timeout)) from error
        why = one_line(str(error)) or type(error).__name__
        raise Unreachable(f"the SSH connection broke: {why}; try again") from error
    finally:
        watchdog.cancel()


def _timed_out(line: str, to: str, timeout: float) -> str:
    if not to:
        return f"the command {line[:80]!r} did not end within {timeout:g} s"
    return (
        f"the command to {to} did not end within {timeout:g} s, although the node accepts logins: its memory, its disk "
        "or a start-up file of its login shell (~/.bashrc) may hang"
    )


def _converse(channel: paramiko.Channel, stdin: bytes, max_bytes: int, deadline: float) -> Completed:
    out, err = bytearray(), bytearray()
    unsent, pause = memoryview(stdin), 0.0
    sending = True
    while True:
        if time.monotonic() > deadline:
            raise TimeoutError
        moved = False
        if sending and (channel.send_ready() or not unsent):
            if unsent:
                unsent = unsent[channel.send(bytes(unsent[:_CHUNK])) :]
                moved = True
            if not unsent:
                channel.shutdown_write()
                sending = False
        while channel.recv_ready() and len(out) <= max_bytes:
            out += channel.recv(_CHUNK)
            moved = True
        while channel.recv_stderr_ready() and len(err) <= max_bytes:
            err += channel.recv_stderr(_CHUNK)
            moved = True
        if len(out) > max_bytes or len(err) > max_bytes:
            return Completed(-1, bytes(out[:max_bytes]), bytes(err[:max_bytes]), truncated=True)
        if channel.exit_status_ready() and (channel.eof_received or channel.closed) and not _unread(channel):
            return Completed(channel.recv_exit_status(), bytes(out), bytes(err))
        if channel.closed and not channel.exit_status_ready():
            raise EOFError("it was lost before the command ended")
        # Each check costs CPU, so a longer wait is checked less often.
        pause = 0.0 if moved else min(pause + 0.005, 0.05)
        time.sleep(pause)


def _unread(channel: paramiko.Channel) -> bool:
    return channel.recv_ready() or channel.recv_stderr_ready()


FETCH = '[ -e "$1" ] || [ -L "$1" ] || exit 44; [ -f "$1" ] && [ ! -L "$1" ] || exit 45; exec head -c "$2" -- "$1"'
"""$1 a file, $2 the most bytes of it."""


def fetch(client: paramiko.SSHClient, path: str, max_bytes: int, timeout: float = 120.0) -> bytes | None:
    """Returns the content of a remote regular file; None if it does not exist.

    Raises RemoteError if it is larger than ``max_bytes`` or not a plain file: a link could lead anywhere.
    """
    # One byte more than allowed shows that there is more, and leaves no process on the node waiting to send the rest.
    got = run(client, shell(FETCH, path, str(max_bytes + 1)), timeout, max_bytes=max_bytes, to=f"read {path}")
    if got.truncated:
        raise RemoteError(f"the node's file {path} is larger than the {max_bytes} bytes allowed; it was not read")
    if got.rc == 44:
        return None
    if got.rc == 45:
        raise RemoteError(f"the node's {path} is not a plain file; it was not read")
    if got.rc != 0:
        raise RemoteError(f"the node's file {path} cannot be read: {got.complaint}")
    return got.out


def store(client: paramiko.SSHClient, path: str, data: bytes, mode: int = 0o600) -> None:
    """Write a remote file atomically, readable by the login only. Raises RemoteError."""
    script = (
        'umask 077; mkdir -p -- "$(dirname -- "$1")" && t="$1.$$.part" && cat >"$t" && '
        'chmod "$2" "$t" && mv -f -- "$t" "$1" || { rm -f -- "$t"; exit 1; }'
    )
    done = run(client, shell(script, path, f"{mode:o}"), timeout=120.0, stdin=data, to=f"write {path}")
    if done.rc != 0:
        raise RemoteError(f"{path} cannot be written on the node: {done.complaint}")
