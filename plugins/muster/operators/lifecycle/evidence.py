"""Takes the evidence of an incident, before anything destroys it."""

from __future__ import annotations

import itertools
import logging

from muster import store
from muster.integration import logins
from muster.judging import incident as records
from muster.model.repairs import Incident
from muster.remote import evidence
from muster.remote.node_side import Connect
from muster.remote.zipapp import build_agent
from muster.reporting import bundles
from muster.settings import settings

log = logging.getLogger(__name__)


def take(incident: Incident, connect: Connect = logins.connect) -> Incident:
    """Take an incident's evidence, unless it was taken; returns the incident with its bundle.

    Whatever the node or its BMC does is a line of the manifest. Raises ControllerFault if the bundle cannot be kept,
    BadSettings for a profile that cannot be used.
    """
    if incident.bundle is not None:
        return incident
    node = store.nodes.get(incident.node)
    profiles = records.profiles_of(node)
    bundles.room(incident)
    agent = build_agent(settings().home / "agents")
    paths = list(dict.fromkeys(path for each in profiles for path in each.redfish))
    pieces = itertools.chain(evidence.of_node(node, profiles, connect, agent), evidence.of_bmc(node, paths))
    bundle = bundles.write(incident, records.of_records(node), pieces, [each.cited for each in profiles])
    log.info("evidence of %s: %s", node.name, bundle.path)
    for each in bundle.missing:
        log.info("missing: %s", each)
    return store.repairs.keep_bundle(incident.id, bundle)
