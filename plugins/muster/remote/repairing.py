"""Carries out one rung of the ladder on a node or through its BMC, and says what became of it.

``TRANSIENT`` is for what was certainly not carried out: refused, or never sent. Whatever is unclear is ``PERMANENT``.
The caller holds the node, has reserved the attempt, and knows from the scheduler that nobody uses the node.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Sequence

import paramiko

from muster.errors import MusterError
from muster.model.nodes import Node
from muster.model.repairs import Fault, Outcome
from muster.remote import scripts, ssh
from muster.remote.bmc import BadBmc, Login, login, parse_bmc
from muster.remote.redfish_client import ROOT, BmcSilent, Client
from muster.remote.redfish_documents import linked, paths_of
from muster_criteria.repair.ladder import Rung

Connect = Callable[[Node], paramiko.SSHClient]

COMMAND_S = 120.0
RETURN_S = 900.0
"""How long a node may take to come back: servers with eight GPUs and terabytes of memory boot in up to ten minutes."""
POLL_S = 10.0

BOOT = f'{scripts.BOOT_ID}\nprintf %s "$boot"'
AS_ROOT = 'if [ "$(id -u)" = 0 ]; then exec "$@"; else exec sudo -n "$@"; fi'
MODULES = ("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")
REFUSED = re.compile(r"a password is required|not allowed to execute|may not run sudo|In use by another client"
                     r"|is in use|being used by one or more other processes", re.IGNORECASE)  # fmt: skip
"""What sudo, nvidia-smi and modprobe say when they did nothing."""
_GPU = re.compile(r"gpu([0-9]{1,3})")


@dataclasses.dataclass(frozen=True)
class Done:
    """What became of an attempt; ``detail`` is a sentence."""

    outcome: Outcome
    detail: str


@dataclasses.dataclass(frozen=True)
class Patience:
    """How long, in seconds, a node may take to come back, and the pause between two looks."""

    return_s: float = RETURN_S
    poll_s: float = POLL_S


def carry_out(
    rung: Rung, node: Node, fault: Fault, connect: Connect, who: Callable[..., Login] = login,
    patience: Patience | None = None,
) -> Done:  # fmt: skip
    """Carry out one rung; returns what became of it, and raises nothing that a node or a BMC causes."""
    patience = patience or Patience()
    if rung is Rung.RESET_GPU:
        return _reset(node, fault, connect)
    if rung is Rung.RELOAD_DRIVER:
        return _reload(node, connect)
    if rung is Rung.REBOOT:
        return _reboot(node, connect, patience)
    if rung is Rung.POWER_CYCLE:
        return _power_cycle(node, connect, who, patience)
    return Done(Outcome.CANCELLED, f"{rung} is a person's")


def reachable(node: Node, connect: Connect) -> bool:
    """Whether the node takes a login and answers."""
    return bool(_boot_id(node, connect))


def _reset(node: Node, fault: Fault, connect: Connect) -> Done:
    found = _GPU.fullmatch(fault.device)
    if found is None:
        return Done(Outcome.CANCELLED, f"{fault.device or 'the device'} is no GPU with a number")
    return _commands(node, connect, [("nvidia-smi", "--gpu-reset", "-i", found[1])])


def _reload(node: Node, connect: Connect) -> Done:
    return _commands(node, connect, [("modprobe", "-r", *MODULES), ("modprobe", "nvidia")])


def _commands(node: Node, connect: Connect, commands: Sequence[Sequence[str]]) -> Done:
    """Run commands as root, one after another, until one fails."""
    try:
        client = connect(node)
    except MusterError as error:
        return Done(Outcome.TRANSIENT, f"it was not begun: {error}")
    with client:
        for number, command in enumerate(commands):
            line = " ".join(command)
            try:
                done = ssh.run(client, ssh.shell(AS_ROOT, *command), COMMAND_S)
            except MusterError as error:
                return Done(Outcome.PERMANENT, f"what became of {line} is not known: {error}")
            if done.rc != 0:
                said = ssh.clean((done.out + done.err).decode("utf-8", "replace"))
                nothing = number == 0 and (done.rc == 127 or REFUSED.search(said) is not None)
                return Done(Outcome.TRANSIENT if nothing else Outcome.PERMANENT, f"{line}: {done.complaint}")
    return Done(Outcome.SUCCEEDED, f"{' and '.join(' '.join(each) for each in commands)} ended well")


def _reboot(node: Node, connect: Connect, patience: Patience) -> Done:
    before = _boot_id(node, connect)
    if not before:
        return Done(Outcome.TRANSIENT, "the node was not rebooted, since its boot id cannot be read")
    asked = _commands(node, connect, [("systemctl", "reboot")])
    if asked.outcome is Outcome.TRANSIENT:
        return asked
    # Whatever the command said, and whether its connection broke: a new boot id is the proof.
    return _returned(node, connect, before, patience, "the reboot")


def _power_cycle(node: Node, connect: Connect, who: Callable[..., Login], patience: Patience) -> Done:
    before = _boot_id(node, connect)
    try:
        bmc = parse_bmc(node.bmc)
        if bmc is None:
            return Done(Outcome.TRANSIENT, "no BMC is enrolled for the node")
        with Client(bmc, who(bmc), timeout_s=10.0, limit_s=120.0) as client:
            client.log_in()
            systems = paths_of(linked(client.get(ROOT) or {}, "Systems", client.get))
            if len(systems) != 1:
                return Done(Outcome.TRANSIENT, f"the BMC has {len(systems)} systems: which is meant is not known")
            actions = (client.get(systems[0]) or {}).get("Actions")
            reset = actions.get("#ComputerSystem.Reset") if isinstance(actions, dict) else None
            target = reset.get("target") if isinstance(reset, dict) else None
            if not isinstance(reset, dict) or not isinstance(target, str):
                return Done(Outcome.TRANSIENT, "the BMC offers no reset of the system")
            offered = reset.get("ResetType@Redfish.AllowableValues") or ["ForceRestart"]
            kind = "PowerCycle" if "PowerCycle" in offered else "ForceRestart"
            try:
                status = client.post(target, {"ResetType": kind})
            except BmcSilent as error:
                if (came := _returned(node, connect, before, patience, kind)).outcome is not Outcome.SUCCEEDED:
                    return Done(Outcome.PERMANENT, f"what became of the {kind} is not known: {error}")
                return came
    except (BadBmc, BmcSilent) as error:
        return Done(Outcome.TRANSIENT, f"nothing was sent: {error}")
    if 400 <= status < 500:
        return Done(Outcome.TRANSIENT, f"the BMC refused the {kind} with {status}")
    return _returned(node, connect, before, patience, f"the {kind}")


def _returned(node: Node, connect: Connect, before: str, patience: Patience, what: str) -> Done:
    """Wait until the node answers with another boot id than ``before``; "" where that was not readable."""
    deadline = time.monotonic() + patience.return_s
    while time.monotonic() < deadline:
        now = _boot_id(node, connect)
        if now and now != before:
            return Done(Outcome.SUCCEEDED, f"{what} gave the boot {now}")
        time.sleep(patience.poll_s)
    return Done(Outcome.PERMANENT, f"the node did not come back within {patience.return_s:g} s of {what}")


def _boot_id(node: Node, connect: Connect) -> str:
    """The node's boot id, "" where it cannot be read."""
    try:
        with connect(node) as client:
            return ssh.run(client, ssh.shell(BOOT), 30.0).text.strip()
    except MusterError:
        return ""
