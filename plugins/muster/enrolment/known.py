"""The known SKUs and the pinning of host keys, the same for the command line and for events."""

from __future__ import annotations

from muster.enrolment import inventory
from muster.enrolment.inventory import InventoryNode
from muster.model.nodes import NewNode
from muster.settings import settings


def pinned(nodes: list[tuple[str, InventoryNode]]) -> list[tuple[str, NewNode]]:
    """Returns the nodes to enrol, each with its host key or the host's current one. Raises BadInventory."""
    from muster.remote.ssh import scan_host_key

    timeout = settings().ssh_timeout_s
    return inventory.pin(nodes, lambda host, port: scan_host_key(host, port, timeout))


def skus() -> list[str]:
    """Returns the hardware models that a node can be enrolled as."""
    from muster_criteria.sku_files.skus import list_skus

    return list_skus(settings().sku_folders)
