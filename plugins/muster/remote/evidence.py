"""Takes evidence from a node over SSH and from its BMC, piece by piece: one that hangs delays or stops no other.

Each piece is one command with a time limit of its own, on the node and on the controller: if the node dies meanwhile,
the pieces that arrived are kept. Taking evidence does not change the node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import time
from collections.abc import Iterator, Sequence

from muster.errors import ControllerFault, MusterError
from muster.model.nodes import Node
from muster.remote.bmc import redfish_logs
from muster.remote.bmc.bmc import BadBmc, login, parse_bmc
from muster.remote.bmc.redfish_client import BmcSilent, Client, refuse_another, without_refused
from muster.remote.bmc.redfish_documents import Get, linked, pages, paths_of
from muster.remote.connection.ssh import Connect
from muster.remote.job.zipapp import AgentFile
from muster.remote.node_side import NodeSide
from muster_criteria.repair.evidence import Profile, Step
from muster_criteria.text import one_line

log = logging.getLogger(__name__)

GRACE_S = 20.0
"""How much longer than a step's own limit the controller waits: the node side ends what hangs, and says so."""
TOTAL_BYTES_MAX = 256 * 1024 * 1024
NODE_LIMIT_S, BMC_LIMIT_S = 1200.0, 120.0
DOCUMENTS_MAX = 400
"""Documents of a BMC in one bundle; a page of a log's entries is one."""
LOST_MAX = 2
"""The number of lost connections in a row after which the node is left alone."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """One piece: its name in the bundle, how it was taken, its content, and why it is missing or not whole, else ""."""

    name: str
    how: str
    content: bytes = b""
    why: str = ""


def of_node(node: Node, profiles: Sequence[Profile], connect: Connect, agent: AgentFile) -> Iterator[Piece]:
    """Yields the pieces that the profiles name, in order, within ``NODE_LIMIT_S`` and ``TOTAL_BYTES_MAX`` in all.

    Raises ControllerFault where the controller cannot log in to any node.
    """
    if node.simulated:
        yield Piece("node", "SSH", why="the node is simulated: commands would show the machine below it")
        return
    deadline, left = time.monotonic() + NODE_LIMIT_S, TOTAL_BYTES_MAX
    lost, gone = 0, ""
    with contextlib.closing(NodeSide(node, connect, agent)) as session:
        for profile in profiles:
            missing: set[str] = set()
            whole: set[str] = set()
            for step in profile.steps:
                if step.if_missing and step.if_missing not in missing:
                    continue
                name, how = f"{profile.profile}/{step.name}", " ".join(step.words)
                seconds = min(step.limit_s, deadline - time.monotonic())
                if gone or seconds <= 0 or left <= 0:
                    why = gone or ("no time was left" if seconds <= 0 else "the bundle has no room left")
                    piece = Piece(name, how, why=why)
                elif step.needs and whole.isdisjoint(step.needs):
                    why = f"it may be an earlier report: {', '.join(step.needs)} did not end well"
                    piece = Piece(name, how, why=why)
                else:
                    piece, broke = _take(session, step, name, seconds, min(step.bytes_max, left))
                    lost = lost + 1 if broke else 0
                    gone = f"the node was left alone after {lost} lost connections" if lost >= LOST_MAX else ""
                left -= len(piece.content)
                (missing if piece.why else whole).add(step.name)
                yield piece


def _take(session: NodeSide, step: Step, name: str, limit_s: float, bytes_max: int) -> tuple[Piece, bool]:
    """(the piece, whether the connection broke)."""
    how = " ".join(step.words)
    args = [f"--limit={limit_s:.1f}", f"--max={bytes_max}"]
    args += ["--root"] * step.root + ["--file"] * bool(step.file) + ["--", *step.words]
    try:
        done = session.run(["evidence", *args], limit_s + GRACE_S, bytes_max + 4096)
    except ControllerFault:  # the controller's, so no evidence about the node
        raise
    except MusterError as error:
        return Piece(name, how, why=str(error)), True
    try:
        lines = done.err.decode("utf-8", "replace").strip().splitlines()
        why = one_line(str(json.loads(lines[-1])["why"]))[:300]
    except (IndexError, ValueError, KeyError, TypeError, RecursionError):
        why = f"the node side did not run: {done.complaint}"
    return Piece(name, how, done.out[:bytes_max], why), False


def of_bmc(node: Node, paths: Sequence[str], serial: str) -> Iterator[Piece]:
    """Yields the documents at ``paths`` of the node's BMC, with their members and their logs' entries, as one piece.

    Nothing is taken from a BMC whose machine has another serial than ``serial``.
    """
    name, why = "bmc/redfish.json", ""
    taken = _Taken()
    try:
        bmc = parse_bmc(node.bmc)
        if bmc is None:
            yield Piece(name, "Redfish", why="no BMC is enrolled for the node")
            return
        with Client(bmc, login(bmc), timeout_s=10.0, limit_s=BMC_LIMIT_S) as client:
            client.log_in()
            get = without_refused(client.get, taken.left_out)
            refuse_another(serial, client.get)
            # In this order, since each may take all the time that is left: a DGX H100 lists its firmware for minutes.
            holders = [path for path in paths if path.rpartition("/")[2] in redfish_logs.HOLDERS]
            for path in holders:
                _walk(get, path, taken)
            for service in taken.logs:
                _take_log(get, service, taken)
            for path in paths:
                if path not in holders:
                    _walk(get, path, taken)
            for service in taken.journals:
                _take_log(get, service, taken)
    except (BadBmc, BmcSilent) as error:
        why = str(error)
    except Exception as error:  # whatever a BMC sends costs this piece alone
        log.exception("%s: its BMC cannot be read", node.name)
        why = f"the BMC cannot be read: {type(error).__name__}"
    content = json.dumps(taken.documents, indent=1).encode() if taken.documents else b""
    lacks = one_line("; ".join(filter(None, (why, taken.beyond, *taken.left_out))))[:1000]
    yield Piece(name, "Redfish", content, lacks or ("" if content else "the BMC has none of the documents"))


@dataclasses.dataclass
class _Taken:
    """What was taken of a BMC: ``documents`` by path, and the services of ``logs`` and ``journals`` to be read.

    ``beyond``: what was left out, since there are too many documents; ``left_out``: documents for which the BMC
    returned an error, and surplus entries of a log.
    """

    documents: dict[str, object] = dataclasses.field(default_factory=dict)
    logs: list[dict[str, object]] = dataclasses.field(default_factory=list)
    journals: list[dict[str, object]] = dataclasses.field(default_factory=list)
    beyond: str = ""
    left_out: list[str] = dataclasses.field(default_factory=list)

    def full(self, path: str) -> bool:
        """Whether there is no room for the document at ``path``, which is left out then."""
        if len(self.documents) < DOCUMENTS_MAX:
            return False
        self.beyond = self.beyond or f"{path} and what follows was left out: {DOCUMENTS_MAX} documents are taken"
        return True


def _walk(get: Get, path: str, taken: _Taken) -> None:
    """Add the document, its members, and each member's log services; note their logs."""
    for member_path in paths_of(_keep(get, path, taken), get):
        member = _keep(get, member_path, taken)
        for service_path in paths_of(linked(member, "LogServices", get), get):
            service = _keep(get, service_path, taken)
            if service:
                (taken.journals if redfish_logs.is_journal(service_path) else taken.logs).append(service)


def _take_log(get: Get, service: dict[str, object], taken: _Taken) -> None:
    """Add the pages of a log, with whole entries in place of links; if a page has too many, the newest."""
    first = linked(service, "Entries", get)
    path = str(first.get("@odata.id"))
    for page in pages(first, get):
        if taken.full(path):
            return
        taken.documents[path] = dict(page)
        if isinstance(page.get("Members"), list):
            kept, left_out, _ = redfish_logs.newer_end(page, get)
            taken.documents[path] = {**page, "Members": [redfish_logs.fetched(each, get) for each in kept]}
            if left_out:
                taken.left_out.append(f"{left_out} of the {len(kept) + left_out} entries of {path} were left out")
        path = str(page.get("Members@odata.nextLink"))


def _keep(get: Get, path: str, taken: _Taken) -> dict[str, object]:
    if path in taken.documents or taken.full(path):
        return {}
    found = dict(get(path) or {})
    if found:
        taken.documents[path] = found
    return found
