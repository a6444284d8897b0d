"""The known SKUs and the pinning of host keys, the same for the command line and for events."""

from __future__ import annotations

from muster.enrolment import inventory
from muster.enrolment.inventory import InventoryNode
from muster.model.nodes import NewNode
from muster.model.states import State
from muster.settings import settings


def pinned(nodes: list[tuple[str, InventoryNode]]) -> list[tuple[str, NewNode]]:
    """Returns the nodes to enrol, each with its host key.

    That is the given one, the recorded one of a node at this address (it may be down), or the one that answers now; a
    retired node has none on record. Raises BadInventory.
    """
    from muster import store
    from muster.remote.ssh import scan_host_key

    timeout = settings().ssh_timeout_s
    known = {
        (node.name, node.host, node.port): node.host_key
        for node in store.nodes.find()
        if node.state is not State.RETIRED
    }
    nodes = [
        (at, node.model_copy(update={"host_key": node.host_key or known.get((node.name, node.host, node.port), "")}))
        for at, node in nodes
    ]
    return inventory.pin(nodes, lambda host, port: scan_host_key(host, port, timeout))


def skus() -> list[str]:
    """Returns the hardware models that a node can be enrolled as."""
    from muster_criteria.sku_files.skus import list_skus

    return list_skus(settings().sku_folders)
