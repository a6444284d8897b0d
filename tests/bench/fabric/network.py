"""A small fabric on this machine: hosts as network namespaces with two rails, leaves and spines as bridges.

Every namespace belongs to a process of ours that dies with this one, and takes its interfaces with it; nothing is left
behind, also after SIGKILL. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

LEAVES, HOSTS_A_LEAF, RAILS = 4, 3, 2
"""With one host lost, each cell of a round still has three others to be compared with."""
RATE_MBIT = 40
SLOW_MBIT = 14
MTU = 9000
RELAY = Path(__file__).parent / "relay.py"
_PR_SET_PDEATHSIG = 1

# Without it a frame that a relay reads has no checksum yet, and is thrown away behind it.
_NO_OFFLOAD = """
import fcntl, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    for name in sys.argv[1:]:
        for command in (0x17, 0x1f, 0x24):  # ethtool: tx checksum, tcp segmentation, generic segmentation
            import array
            value = array.array("B", struct.pack("II", command, 0))
            ifreq = struct.pack("16sP", name.encode(), value.buffer_info()[0])
            fcntl.ioctl(any_socket.fileno(), 0x8946, ifreq)
"""


def die_with_parent() -> None:
    """In a child before it executes: the kernel ends it when this process ends, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Namespace:
    """A network namespace, held by a process that sleeps in it."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], preexec_fn=die_with_parent)
        until = time.monotonic() + 60
        # The holder is still in our namespace for an instant.
        while os.readlink(f"/proc/{self._holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            if time.monotonic() > until or self._holder.poll() is not None:
                raise RuntimeError("no network namespace can be made here: this needs root")
            time.sleep(0.01)
        self.run("ip", "link", "set", "lo", "up")

    @property
    def pid(self) -> str:
        """The process that holds it, which iproute2 takes for its name."""
        return str(self._holder.pid)

    def enter(self, command: Sequence[str]) -> list[str]:
        """The command that runs another one inside."""
        return ["nsenter", "--net", f"--target={self.pid}", *command]

    def run(self, *command: str) -> None:
        """Runs one command inside. Raises RuntimeError with what it printed if it fails."""
        done = subprocess.run(self.enter(command), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Starts a command inside that ends with this process."""
        return subprocess.Popen(self.enter(command), preexec_fn=die_with_parent)

    def close(self) -> None:
        """Ends the namespace; its interfaces go with it."""
        self._holder.kill()
        self._holder.wait()


class Network:
    """Hosts, leaf switches and one spine for each rail. Use as a context."""

    def __init__(self) -> None:
        self.hosts: list[Namespace] = []
        self._relays: list[subprocess.Popen[bytes]] = []
        self.switches = Namespace()
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends everything."""
        for relay in self._relays:
            relay.kill()
            relay.wait()
        for namespace in (*self.hosts, self.switches):
            namespace.close()

    def _build(self) -> None:
        lines = [
            f"link add {name} mtu {MTU} type bridge" for name in ("mgmt", *(f"spine{rail}" for rail in range(RAILS)))
        ]
        for leaf in range(LEAVES):
            for rail in range(RAILS):
                lines += [
                    f"link add leaf{leaf}r{rail} mtu {MTU} type bridge",
                    f"link add up{leaf}r{rail} mtu {MTU} type veth peer name dn{leaf}r{rail} mtu {MTU}",
                    f"link set up{leaf}r{rail} master leaf{leaf}r{rail}",
                    f"link set dn{leaf}r{rail} master spine{rail}",
                    *(f"link set {name}{leaf}r{rail} up" for name in ("up", "dn", "leaf")),
                ]
        lines += [f"link set {name} up" for name in ("mgmt", *(f"spine{rail}" for rail in range(RAILS)))]
        for host in range(LEAVES * HOSTS_A_LEAF):
            self.hosts.append(Namespace())
            lines += self._cables(host)
        self._batch(self.switches, lines)
        for host, namespace in enumerate(self.hosts):
            inside = [f"addr add {self.management(host)}/24 dev m0", "link set m0 up"]
            for rail in range(RAILS):
                inside += [f"addr add {self.address(host, rail)}/24 dev r{rail}", f"link set r{rail} up"]
            self._batch(namespace, inside)
            namespace.run(sys.executable, "-c", _NO_OFFLOAD, *(f"r{rail}" for rail in range(RAILS)))
            for rail in range(RAILS):
                self.limit_port(host, rail, RATE_MBIT)

    def _cables(self, host: int) -> list[str]:
        pid = self.hosts[host].pid
        lines = [f"link add h{host}m type veth peer name m0 netns {pid}", f"link set h{host}m master mgmt up"]
        for rail in range(RAILS):
            lines += [
                f"link add h{host}r{rail} mtu {MTU} type veth peer name r{rail} mtu {MTU} netns {pid}",
                f"link set h{host}r{rail} master leaf{self.leaf(host)}r{rail} up",
            ]
        return lines

    @staticmethod
    def _batch(namespace: Namespace, lines: Sequence[str]) -> None:
        done = subprocess.run(
            namespace.enter(["ip", "-batch", "-"]), input="\n".join(lines), capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"ip -batch: {done.stderr.strip()}")

    @staticmethod
    def leaf(host: int) -> int:
        """The leaf of a host."""
        return host // HOSTS_A_LEAF

    @staticmethod
    def address(host: int, rail: int) -> str:
        """A host's address on a rail, above the loopback's: of two addresses, gloo calls from the higher one."""
        return f"192.168.{20 + rail}.{host + 1}"

    @staticmethod
    def management(host: int) -> str:
        """A host's address beside the rails."""
        return f"10.10.0.{host + 1}"

    def limit_port(self, host: int, rail: int, mbit: int) -> None:
        """The rate of one host's port, in both directions."""
        _limit(self.hosts[host], f"r{rail}", mbit)
        _limit(self.switches, f"h{host}r{rail}", mbit)

    def limit_uplink(self, leaf: int, rail: int, mbit: int) -> None:
        """The rate between a leaf and the spine, in both directions."""
        _limit(self.switches, f"up{leaf}r{rail}", mbit)
        _limit(self.switches, f"dn{leaf}r{rail}", mbit)

    def cut(self, host: int, rail: int) -> None:
        """Takes a cable out."""
        self.switches.run("ip", "link", "set", f"h{host}r{rail}", "down")

    def corrupt(self, leaf: int, other: int, rail: int) -> None:
        """A relay in a leaf's uplink, which spoils frames between this leaf's hosts and those of one other leaf."""
        ends = f"cu{leaf}r{rail}", f"cd{leaf}r{rail}"
        self._batch(self.switches, [
            f"link set dn{leaf}r{rail} nomaster",
            f"link add {ends[0]} mtu {MTU} type veth peer name {ends[1]} mtu {MTU}",
            f"link set {ends[1]} master spine{rail}", f"link set {ends[0]} up", f"link set {ends[1]} up",
        ])  # fmt: skip
        own, far = (
            ",".join(self.address(host, rail) for host in range(len(self.hosts)) if self.leaf(host) == side)
            for side in (leaf, other)
        )
        names = [f"dn{leaf}r{rail}", ends[0], own, far]
        self._relays.append(self.switches.start(sys.executable, str(RELAY), *names))


def _limit(namespace: Namespace, interface: str, mbit: int) -> None:
    tbf = ["tc", "qdisc", "replace", "dev", interface, "root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb"]
    namespace.run(*tbf, "latency", "60ms")
