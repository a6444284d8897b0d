"""Takes the evidence of an incident, before anything destroys it."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterable, Iterator

from muster import store
from muster.integration import logins
from muster.judging import incident as records
from muster.model.repairs import NOTHING_READ, Incident
from muster.remote import evidence, repairing
from muster.remote.connection.ssh import Connect
from muster.remote.evidence import Piece
from muster.remote.job.zipapp import build_agent
from muster.reporting import bundles
from muster.settings import settings

log = logging.getLogger(__name__)


def take(incident: Incident, connect: Connect = logins.connect) -> Incident:
    """Take an incident's evidence, unless it was taken; returns the incident with its bundle.

    If the bundle has nothing from the node, another is taken once the node answers. What the node or its BMC fails to
    give becomes a line of the manifest. Raises ControllerFault if the bundle cannot be kept or the controller cannot
    log in to any node, BadSettings for an invalid profile.
    """
    node = store.nodes.get(incident.node)
    if incident.bundle is not None and not (incident.bundle.blank and repairing.reachable(node, connect)):
        return incident
    profiles = records.profiles_of(node)
    bundles.room(incident)
    agent = build_agent(settings().home / "agents")
    paths = list(dict.fromkeys(path for each in profiles for path in each.redfish))
    read: list[str] = []
    of_node = _noted(evidence.of_node(node, profiles, connect, agent), read)
    pieces = itertools.chain(of_node, evidence.of_bmc(node, paths, store.parts.system_serial(node.name)))
    bundle = bundles.write(incident, records.of_records(node), pieces, [each.cited for each in profiles])
    if not read and not node.simulated and any(each.steps for each in profiles):
        bundle = dataclasses.replace(bundle, missing=(NOTHING_READ, *bundle.missing))
    log.info("evidence of %s: %s", node.name, bundle.path)
    for each in bundle.missing:
        log.info("missing: %s", each)
    return store.repairs.keep_bundle(incident.id, bundle)


def _noted(pieces: Iterable[Piece], read: list[str]) -> Iterator[Piece]:
    """The pieces, with the names of those that have content noted in ``read``."""
    for piece in pieces:
        if piece.content:
            read.append(piece.name)
        yield piece
