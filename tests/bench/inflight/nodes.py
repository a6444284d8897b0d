"""Many nodes in one process, without a machine, a shell or a job behind them; SSH to them is real.

Each has an address of its own in 127/8 and its own host key. They answer as ``muster.remote.job.scripts`` do on a node
that has the node side already. A job ends at once, in the first stage once the gate is open. Its result is what
``tests.support.in_process`` measures on a simulated machine, healthy or faulty, with the job's names and the node's
serials. Run as ``python -m tests.bench.inflight.nodes CONFIG.json``, which ``AnsweringFleet`` writes.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import fcntl
import getpass
import json
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import asyncssh

from muster import store
from muster.model.nodes import NewNode
from muster.remote.connection import ssh
from muster.remote.job import scripts
from muster.remote.job.jobs import State
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stages import STAGES
from muster_demo.hosts import make_key
from muster_demo.services import Supervisor, free_port
from muster_simulator import create_machine
from tests.support import in_process
from tests.support.simulated_fleet import FILES, GATED_STAGE, LISTENING_S, SERVICE, SimulatedFleet

BOOT = "00000000-0000-0000-0000-000000000000"
FAULT = "missing_gpu"
SKU = "fleet-node"


class AnsweringFleet(SimulatedFleet):
    """The nodes as ``tests.bench.fleet`` starts and enrols them. All listen; ``names`` are those to enrol, and the jobs
    of ``ending`` alone come to an end.
    """

    def __init__(
        self, folder: Path, listening: Sequence[str], seed: int, faulty: Collection[str], ending: Collection[str]
    ) -> None:
        super().__init__(folder, (), seed, {})
        self.faulty, self.ending = sorted(faulty), sorted(ending)
        self.port = free_port()
        places = ((number // 62_500, number // 250 % 250, number % 250) for number in range(len(listening)))
        self.hosts = {name: f"127.{1 + a}.{b}.{1 + c}" for name, (a, b, c) in zip(listening, places, strict=True)}
        self.host_keys = {name: make_key(folder / "host_keys" / name) for name in listening}

    def start(self, supervisor: Supervisor, environment: Mapping[str, str]) -> None:
        """Start all nodes as one service; returns once they listen."""
        config, ready = self.folder / "config.json", self.folder / "ready"
        paths = {
            "keys": self.folder / "host_keys",
            "logins": self.keys.authorized,
            "gate": self.gate.path,
            "ready": ready,
        }
        facts = {
            "hosts": self.hosts, "port": self.port, "faulty": self.faulty, "ending": self.ending,
            "results": _measured(self.folder),
        }  # fmt: skip
        config.write_text(json.dumps({**facts, **{name: str(path) for name, path in paths.items()}}))
        supervisor.start(SERVICE, [sys.executable, "-m", __name__, str(config)], environment)
        supervisor.wait_until("the nodes' servers", ready.exists, LISTENING_S + len(self.hosts) / 10)

    def enrol(self, sku: str, labels: Mapping[str, str] = {}) -> None:
        """Write ``names`` into the fleet records."""
        for name in self.names:
            node = NewNode(name, self.hosts[name], self.host_keys[name], sku, port=self.port, user=getpass.getuser(),
                           work_dir="/var/lib/muster", simulated=True, labels=dict(labels))  # fmt: skip
            store.nodes.add(node)


def _measured(folder: Path) -> list[dict[str, Any]]:
    """What a healthy machine answers in each stage, and a faulty one."""
    sku, results = load_sku(SKU, [FILES]), []
    for faults in ((), ({"kind": FAULT, "gpu": 0},)):
        machine = folder / f"machine-{len(faults)}"
        create_machine(machine, seed=1, faults=list(faults))
        stages = ((stage, in_process.measure(machine, sku, stage, "demo", 1)) for stage in STAGES)
        results.append({stage: json.loads(measured.to_json()) for stage, measured in stages})
    return results


class Nodes:
    """All nodes' answers to the controller's commands. ``jobs``: {node: {key: plan}}; ``started``: (node, key)."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config, self.ending = config, frozenset(config["ending"])
        self.names = {host: name for name, host in config["hosts"].items()}
        self.jobs: dict[str, dict[str, dict[str, Any]]] = collections.defaultdict(dict)
        self.started: set[tuple[str, str]] = set()

    async def __call__(self, client: asyncssh.SSHServerProcess[bytes]) -> None:
        """Answer one command."""
        node = self.names[client.get_extra_info("sockname")[0]]
        words = shlex.split(client.command or "")
        script, args = (words[2], words[4:]) if words[0] == "sh" else (words[0], words[1:])
        try:
            status, out = self.answer(node, script, args, await client.stdin.read() if "cat >" in script else b"")
        except (KeyError, IndexError, ValueError) as error:
            status, out = 127, b""
            client.stderr.write(f"{script[:80]!r}: {error!r}\n".encode())
        client.stdout.write(out)
        client.exit(status)

    def answer(self, node: str, script: str, args: Sequence[str], sent: bytes) -> tuple[int, bytes]:
        """(exit status, output) of a command. Raises ValueError for one that is not known here."""
        if script == scripts.LOOK:
            state = f"{self.state(node, args[1])}\njobboot {BOOT}\nends \n"
            return 0, f"work {args[0]}\nboot {BOOT}\nagent ok\nstate {state}".encode()
        if script == scripts.STOP_OTHERS:
            return 0, b""
        key = args[-1].rpartition("/")[2] if script == "rm" else args[0].split("/jobs/")[1].split("/")[0]
        if script == scripts.POLL:
            return 0, f"boot {BOOT}\nstate {self.state(node, key)}\nsize 0\n\n".encode()
        if script == ssh.FETCH:
            return 0, json.dumps(self.result(node, self.jobs[node][key])).encode()
        if "cat >" in script:
            self.jobs[node][key] = json.loads(sent)
        elif script == scripts.START:
            if (node, key) in self.started:
                return 43, b""
            self.started.add((node, key))
        elif script == "rm":
            del self.jobs[node][key]
        else:
            raise ValueError("not a command of the controller")
        return 0, b""

    def state(self, node: str, key: str) -> str:
        """The job's state, and the line of its exit status."""
        plan = self.jobs[node].get(key)
        if plan is None or (node, key) not in self.started:
            return f"{State.ABSENT}\nexit "
        if node not in self.ending:
            return f"{State.RUNNING}\nexit "
        with Path(self.config["gate"]).open() as gate, contextlib.suppress(BlockingIOError):
            if plan["stage"] == GATED_STAGE:
                fcntl.flock(gate, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return f"{State.DONE}\nexit 0"
        return f"{State.RUNNING}\nexit "

    def result(self, node: str, plan: Mapping[str, Any]) -> dict[str, Any]:
        """What the node's machine measured, as the result of the job with this plan."""
        measured = self.config["results"][node in self.config["faulty"]][plan["stage"]]
        named = {field: plan[field] for field in ("job_id", "node", "stage", "level", "fence")}
        serials = {"system": f"S-{node}", **{f"gpu{gpu}": f"G{gpu}-{node}" for gpu in range(8)}}
        return {**measured, **named, "identity": {"boot_id": BOOT, "hostname": node, "serials": serials}}


async def serve(config: Mapping[str, Any]) -> None:
    """Listen as every node until cancelled."""
    answers, logins = Nodes(config), {"authorized_client_keys": config["logins"], "password_auth": False}
    for name, host in config["hosts"].items():
        key = f"{config['keys']}/{name}"
        await asyncssh.listen(
            host,
            config["port"],
            server_host_keys=[key],
            process_factory=answers,
            encoding=None,
            gss_host=None,
            **logins,
        )
    Path(config["ready"]).touch()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_text())))
