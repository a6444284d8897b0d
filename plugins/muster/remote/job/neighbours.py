"""Evidence on whether a node, its network or our login failed: reachable neighbours, and earlier lost jobs."""

from __future__ import annotations

import datetime
from collections.abc import Callable

from muster import store
from muster.errors import ControllerFault
from muster.model.nodes import Node
from muster.model.states import BROKEN, State
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.settings import settings

RECENT = datetime.timedelta(minutes=5)
"""Triggers record a contact once a minute; a neighbour with a contact within this time was reachable."""

TRIED = 4
"""Maximum number of neighbours to contact: one that responds is enough."""

AWAY = BROKEN | {State.RETIRED}


def reachable_neighbours(node: Node, who: Callable[[], Credentials]) -> str:
    """Returns the names of other nodes that respond or did recently, "" if none; of the same rack, if it has others.

    Retired and broken nodes do not count, since their machines may be away, nor do simulated ones for a real node.
    ``who``: gives the login; where it raises ControllerFault, no node responds.
    """
    others = [
        each
        for each in store.nodes.find()
        if each.name != node.name and each.state not in AWAY and (node.simulated or not each.simulated)
    ]
    near = [each for each in others if node.rack and each.rack == node.rack] or others
    near.sort(key=lambda each: str(each.contact_at or ""), reverse=True)
    since = store.clock.now() - RECENT
    reachable = [each.name for each in near if each.contact_at and each.contact_at >= since]
    if not reachable:
        reachable = [each.name for each in near[:TRIED] if _responds(each, who)]
    return ", ".join(reachable[:TRIED])


def that_refuse_too(node: Node, connect: ssh.Connect) -> str:
    """Returns the names of the nodes that refuse the login as ``node`` does, "" if one of them accepts it.

    The nodes that last accepted it are tried, since one that never did is no evidence about the login.
    """
    others = [each for each in store.nodes.find() if each.name != node.name and each.contact_at]
    refusing = []
    for other in sorted(others, key=lambda each: str(each.contact_at), reverse=True)[:TRIED]:
        try:
            connect(other).close()
            return ""
        except ssh.LoginRefused:
            refusing.append(other.name)
        except ssh.RemoteError:
            continue
    return ", ".join(refusing)


def _responds(node: Node, who: Callable[[], Credentials]) -> bool:
    try:
        ssh.scan_host_key(node.host, node.port, who(), timeout=settings().ssh_timeout_s)
    except (ssh.Unreachable, ControllerFault):
        return False
    return True
