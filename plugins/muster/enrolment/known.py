"""The known SKUs and the pinning of host keys, the same for the command line and for events."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from muster.enrolment import inventory
from muster.enrolment.inventory import InventoryNode
from muster.model.nodes import NewNode, Node
from muster.model.states import State
from muster.settings import settings

if TYPE_CHECKING:
    from muster.remote.connection.login import Credentials


def pinned(
    nodes: list[tuple[str, InventoryNode]], login: Callable[[], Credentials], *, accepted: bool = False
) -> list[tuple[str, NewNode]]:
    """Returns the nodes to enrol, each with its host key.

    The key is the given one, the recorded one of a node at this address (it may be down), or the one that answers now;
    that of a retired node is not used. A known node keeps its recorded port if its line has none. ``login``: called if
    a host has to answer. ``accepted``: the host has to accept that login too, which an installer, with a host key of
    its own, does not. Raises BadInventory, and ControllerFault.
    """
    from muster import store
    from muster.remote.connection.login import Credentials
    from muster.remote.connection.ssh import connect, scan_host_key

    timeout = settings().ssh_timeout_s
    known = {node.name: node for node in store.nodes.find()}
    nodes = [(at, _as_recorded(node, known[node.name]) if node.name in known else node) for at, node in nodes]
    who = Credentials() if all(node.host_key for _, node in nodes) else login()

    def scan(node: InventoryNode) -> str:
        key = scan_host_key(node.host, node.port, who, timeout=timeout)
        if accepted:
            connect(node.pinned(key), who, timeout=timeout).close()
        return key

    return inventory.pin(nodes, scan)


def _as_recorded(node: InventoryNode, known: Node) -> InventoryNode:
    port = node.port if "port" in node.model_fields_set else known.port
    same = known.state is not State.RETIRED and (known.host, known.port) == (node.host, port)
    return node.model_copy(update={"port": port, "host_key": node.host_key or (known.host_key if same else "")})


def skus() -> list[str]:
    """Returns the hardware models that a node can be enrolled as."""
    from muster_criteria.sku_files.skus import list_skus

    return list_skus(settings().sku_folders)
