"""Carries out one rung of the ladder on a node or through its BMC, and returns the outcome.

``TRANSIENT`` is for what was certainly not carried out: refused, or never sent. Whatever is unclear is ``PERMANENT``.
The caller holds the node, has reserved the attempt, and knows from the scheduler that the node is free.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any

from muster.errors import MusterError
from muster.model.nodes import Node
from muster.model.repairs import Fault, Outcome
from muster.remote.bmc.bmc import BadBmc, login, parse_bmc
from muster.remote.bmc.redfish_client import BmcSilent, Client, without_refused
from muster.remote.bmc.redfish_documents import ROOT, Document, linked, other_machine, paths_of
from muster.remote.connection import ssh
from muster.remote.connection.ssh import Connect
from muster.remote.job import scripts
from muster.remote.job.zipapp import AgentFile
from muster.remote.node_side import NodeSide
from muster.settings import settings
from muster_criteria.repair.ladder import Rung
from muster_criteria.text import one_line

COMMAND_S = 120.0
USAGE_S = 240.0
"""The node side itself waits up to a minute for hardware to open, and for each of three readings."""
RETURN_S = 900.0
"""How long a node may take to come back: servers with eight GPUs and terabytes of memory boot in up to ten minutes."""

BOOT = f'{scripts.BOOT_ID}\nprintf %s "$boot"'
NOT_BEGUN = 97
AS_ROOT = f"""export LC_ALL=C
if [ "$(id -u)" = 0 ]; then exec "$@"; fi
why=$(sudo -n -l "$@" 2>&1) || case $why in
*"password is required"*|*"authentication is required"*) ;;
*) echo "sudo does not allow it, or it is not there${{why:+: $why}}" >&2; exit {NOT_BEGUN} ;;
esac
exec sudo -n "$@"
"""
"""Run a command as root; exits ``NOT_BEGUN`` if sudo refuses it, in whatever words.

A listing that asks for a password proves nothing: with ``listpw=always`` it does so even if the command needs none.
"""
REFUSED = re.compile(r"In use by another client|being used by one or more other processes", re.IGNORECASE)
"""What nvidia-smi says in the locale C when it did nothing."""
_SUDO_ALONE = re.compile(r"\s*(sudo[\w-]*: .*\s*)+")
"""Output of sudo alone: it wants a password for the command, which its listing may hide (``listpw``)."""
_KINDS = {
    "On": "the On (the machine was off)",
    "PowerCycle": "the PowerCycle",
    "ForceRestart": "the ForceRestart (a restart that does not remove power: the BMC names no PowerCycle)",
}
"""The kinds of reset, none stronger than a power cycle, with their names in the records: the first that is offered is
ordered. On is for a machine that is off, which iLO and iDRAC refuse to restart."""
_GPU = re.compile(r"gpu (?:[0-9A-Za-z-]{1,64}/)?([0-9A-Za-z-]{6,64})")
"""A part that nvidia-smi finds by its serial number, or by the UUID after it where GPUs share their board's. An index
would name another GPU once one fell off the bus."""


@dataclasses.dataclass(frozen=True)
class Done:
    """What became of an attempt; ``detail`` is a sentence."""

    outcome: Outcome
    detail: str


@dataclasses.dataclass(frozen=True)
class Sent:
    """A restart that was ordered. ``before``: the boot id until then; ``what``: how it was ordered."""

    before: str
    what: str


def carry_out(
    rung: Rung,
    node: Node,
    fault: Fault,
    connect: Connect,
    last_boot: str = "",
    agent: AgentFile | None = None,
    serial: str = "",
) -> Done | Sent:
    """Carry out one rung; returns its outcome, or the restart that was ordered, for ``returned`` to check.

    ``last_boot``: the boot id that the records have of the node, for one that does not answer. ``agent``: the node
    side, by which a simulated GPU is reset: no command is sent to a simulated node, since it would concern the machine
    below. ``serial``: the machine's, which its BMC has to report before it gets an order. Raises nothing that a node or
    a BMC causes.
    """
    if node.simulated:
        return _simulated(rung, node, fault, connect, agent)
    if rung is Rung.RESET_GPU:
        return _reset(node, fault, connect)
    if rung is Rung.REBOOT:
        return _reboot(node, connect)
    if rung is Rung.POWER_CYCLE:
        return _power_cycle(node, connect, last_boot, serial)
    return Done(Outcome.CANCELLED, f"{rung} is a person's")


def returned(node: Node, connect: Connect, sent: Sent, waited_s: float, limit_s: float | None = None) -> Done | None:
    """Look once whether the node came back after a restart; None while it may still come, for ``RETURN_S`` at most."""
    limit_s = RETURN_S if limit_s is None else limit_s
    now = _boot_id(node, connect)
    if now and now != sent.before:
        return Done(Outcome.SUCCEEDED, f"{sent.what} gave the boot {now}")
    if waited_s < limit_s:
        return None
    how = f"still shows the boot {now}" if now else "does not answer"
    return Done(Outcome.PERMANENT, f"the node {how} {limit_s:g} s after {sent.what}")


def reachable(node: Node, connect: Connect) -> bool:
    """Whether the node takes a login and answers."""
    return bool(_boot_id(node, connect))


def usage(node: Node, connect: Connect, agent: AgentFile) -> str:
    """Returns why the node may be in use, by its own processes; "" if it is not. Unknown counts as in use."""
    try:
        answer = _answer(node, connect, agent, ["usage", *settings().busy_daemon_names], USAGE_S)
        busy, sentence = answer["busy"], one_line(str(answer["sentence"]))[:300]
    except (MusterError, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"whether the node is in use cannot be read there: {type(error).__name__}: {error}"
    return "" if busy is False else sentence


def _answer(node: Node, connect: Connect, agent: AgentFile, words: Sequence[str], limit_s: float) -> Any:
    """What the node side answers to a command, as JSON. Raises MusterError, ValueError, RecursionError."""
    with contextlib.closing(NodeSide(node, connect, agent)) as side:
        return json.loads(side.run(words, limit_s, 65_536).out)


def _reset(node: Node, fault: Fault, connect: Connect) -> Done:
    found = _GPU.fullmatch(fault.part)
    if found is None:
        return Done(Outcome.CANCELLED, f"no serial number of {fault.device or 'the device'} is known")
    return _command(node, connect, "nvidia-smi", "--gpu-reset", "-i", found[1])


def _simulated(rung: Rung, node: Node, fault: Fault, connect: Connect, agent: AgentFile | None) -> Done:
    found = _GPU.fullmatch(fault.part)
    if rung is not Rung.RESET_GPU or found is None or agent is None:
        return Done(Outcome.CANCELLED, f"the node is simulated, and its simulator cannot do this: {rung}")
    try:
        why = str(_answer(node, connect, agent, ["simulate-reset", found[1]], COMMAND_S)["why"])
    except (MusterError, ValueError, KeyError, TypeError) as error:
        return Done(Outcome.PERMANENT, f"what became of the simulated reset is not known: {type(error).__name__}")
    if why:
        return Done(Outcome.TRANSIENT, f"the simulator did not reset the GPU: {one_line(why)[:300]}")
    return Done(Outcome.SUCCEEDED, f"the simulator reset the GPU {found[1]}")


def _command(node: Node, connect: Connect, *command: str) -> Done:
    """Run a command as root."""
    line = " ".join(command)
    try:
        client = connect(node)
    except MusterError as error:
        return Done(Outcome.TRANSIENT, f"it was not begun: {error}")
    with client:
        try:
            done = ssh.run(client, ssh.shell(AS_ROOT, *command), COMMAND_S)
        except MusterError as error:
            return Done(Outcome.PERMANENT, f"what became of {line} is not known: {error}")
    if done.rc != 0:
        return Done(Outcome.TRANSIENT if _not_begun(done) else Outcome.PERMANENT, f"{line}: {done.complaint}")
    return Done(Outcome.SUCCEEDED, f"{line} ended well")


def _not_begun(done: ssh.Completed) -> bool:
    """Whether a command that failed under ``AS_ROOT`` has certainly done nothing."""
    said = ssh.clean((done.out + done.err).decode("utf-8", "replace"))
    refused = done.rc in (127, NOT_BEGUN) or (done.rc == 1 and _SUDO_ALONE.fullmatch(said) is not None)
    return refused or REFUSED.search(said) is not None


def _reboot(node: Node, connect: Connect) -> Done | Sent:
    before = _boot_id(node, connect)
    if not before:
        return Done(Outcome.TRANSIENT, "the node was not rebooted, since its boot id cannot be read")
    asked = _command(node, connect, "systemctl", "reboot")
    # Only a new boot id proves the reboot, whatever the command said and even if its connection broke.
    return asked if asked.outcome is Outcome.TRANSIENT else Sent(before, "the reboot")


def _power_cycle(node: Node, connect: Connect, last_boot: str, serial: str) -> Done | Sent:
    before = _boot_id(node, connect) or last_boot
    if not before:
        return Done(Outcome.TRANSIENT, "nothing was sent: no boot id is known, so a restart could not be recognised")
    if not serial.strip():
        return Done(Outcome.TRANSIENT, "nothing was sent: the records have no system serial of the node, so its BMC "
                    "cannot be recognised")  # fmt: skip
    sent = False
    try:
        bmc = parse_bmc(node.bmc)
        if bmc is None:
            return Done(Outcome.TRANSIENT, "no BMC is enrolled for the node")
        with Client(bmc, login(bmc), timeout_s=10.0, limit_s=120.0) as client:
            client.log_in()
            paths = paths_of(linked(client.get(ROOT) or {}, "Systems", client.get), client.get)
            systems, silent = _readable(client, paths)
            others = [other_machine(system, serial) for system in systems]
            # A baseboard of GPUs is often a second system, without the machine's serial or without a reset.
            ours = [each for each, other in zip(systems, others, strict=True) if not other]
            offers = [(each, reset) for each in ours if (reset := _reset_of(each))]
            if silent is not None and not offers:
                raise silent
            if len(paths) == 1 and others[0]:
                return Done(Outcome.TRANSIENT, f"nothing was sent: {others[0]}")
            if len(offers) != 1:
                return Done(Outcome.TRANSIENT, f"of the BMC's {len(paths)} systems, {len(offers)} have the serial "
                            f"{serial!r} and offer a reset: which is meant is not known")  # fmt: skip
            system, reset = offers[0]
            offered = _offered(client, reset)
            off = system.get("PowerState") == "Off"
            wanted = [each for each in _KINDS if off or each != "On"]
            kind = next((each for each in wanted if each in offered), None)
            if kind is None:
                return Done(Outcome.TRANSIENT, f"the BMC offers none of {', '.join(wanted)}")
            client.within(reset["target"])
            sent = True
            try:
                status, complaint = client.post(reset["target"], {"ResetType": kind})
            except BmcSilent as error:
                return Sent(before, f"{_KINDS[kind]}, whose answer is missing ({error})")
    except Exception as error:  # whatever it is: without an order, this was no attempt
        if sent and not isinstance(error, (BadBmc, BmcSilent)):
            raise
        return Done(Outcome.TRANSIENT, f"nothing was sent: {error}")
    if 400 <= status < 500:
        why = f"{status}: {complaint}" if complaint else str(status)
        return Done(Outcome.TRANSIENT, f"the BMC refused {_KINDS[kind]} with {why}")
    return Sent(before, _KINDS[kind])


def _readable(client: Client, paths: Sequence[str]) -> tuple[list[Document], BmcSilent | None]:
    """Returns the systems at these paths that can be read, and why another cannot (a baseboard without power)."""
    systems: list[Document] = []
    silent = None
    for path in paths:
        try:
            systems.append(client.get(path) or {})
        except BmcSilent as error:
            silent = error
    return systems, silent


def _reset_of(system: Document) -> Document:
    """A system's action that resets it, with its ``target``; empty if it offers none."""
    actions = system.get("Actions")
    reset = actions.get("#ComputerSystem.Reset") if isinstance(actions, dict) else None
    return reset if isinstance(reset, dict) and isinstance(reset.get("target"), str) else {}


def _offered(client: Client, reset: Document) -> Sequence[object]:
    """The kinds of reset that a BMC offers, by the action itself or by its ActionInfo, as OpenBMC's.

    Where neither can be read: those that any BMC may have.
    """
    lists = [reset.get("ResetType@Redfish.AllowableValues")]
    if not lists[0] and isinstance(path := reset.get("@Redfish.ActionInfo"), str):
        parameters = (without_refused(client.get, [])(path) or {}).get("Parameters")
        known = [each for each in parameters if isinstance(each, dict)] if isinstance(parameters, list) else []
        lists = [each.get("AllowableValues") for each in known if each.get("Name") == "ResetType"]
    return next((each for each in lists if isinstance(each, list) and each), ("On", "ForceRestart"))


def _boot_id(node: Node, connect: Connect) -> str:
    """The node's boot id, "" where it cannot be read."""
    try:
        with connect(node) as client:
            return ssh.run(client, ssh.shell(BOOT), 30.0).text.strip()
    except MusterError:
        return ""
