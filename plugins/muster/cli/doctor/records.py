"""Problems of the controller that the fleet records show: nodes that refuse its jobs, a key that did not sign."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping

from muster.cli.doctor.checks import Check, Mark
from muster.errors import ControllerFault, DatabaseNotReady, MusterError
from muster.settings import Settings


def fences() -> Iterator[Check]:
    """No node refused its latest job for having seen a newer one that the records do not know; silent if so."""
    from muster import store

    try:
        fenced = store.leases.fenced_nodes()
    except MusterError:  # reported by ``database``
        return
    if fenced:
        seen = f"{', '.join(fenced)} refused a job as older than one seen there: the records were restored, or another "
        yield Check(
            Mark.MISSING, "fences", f"{seen}controller tests these nodes",
            f"end the other controller; then muster node unfence {fenced[0]} --reason WHY",
        )  # fmt: skip


def frozen(paused: Mapping[str, bool]) -> Iterator[Check]:
    """No DAG is paused whose runs hold nodes: these runs do not go on, and free no node; silent if so."""
    from muster import store

    try:
        held = collections.Counter(lease.dag_id for lease in store.leases.live() if paused.get(lease.dag_id))
    except MusterError:  # reported by ``database``
        return
    for name, nodes in sorted(held.items()):
        are = "1 node is" if nodes == 1 else f"{nodes} nodes are"
        seen = f"{name} is paused: {are} held by its runs, which do not go on"
        yield Check(Mark.MISSING, "DAGs", seen, f"airflow dags unpause {name}")


def mail_rules(current: Settings) -> Iterator[Check]:
    """The labels of each rule of mail are those of some node; silent if so."""
    from muster import store
    from muster.reporting import mail_rules as rules

    try:
        nodes = [node.labels for node in store.nodes.find()]
    except MusterError:  # reported by ``database``
        return
    if found := rules.unmatched(rules.read(current.mail_rules)[0], nodes):
        yield Check(Mark.ADVICE, "mail rules", "; ".join(found), "correct the labels: of the rule, or of the nodes")


def signing_key() -> Iterator[Check]:
    """The key signs certificates, and signed the last one; silent before it is made."""
    from muster import store

    path = store.signing.key_path()
    copy = "copy one key to all machines of the controller, and name it in MUSTER_CERTIFICATE_KEY_FILE"
    try:
        store.certificates.check_signing_key()
        if not path.exists():
            return
        if store.certificates.newest_is_of_this_key():
            yield Check(Mark.OK, "signing key", str(path))
        else:
            seen = f"{path} did not sign the newest certificate: it was replaced since, or another machine has its own"
            yield Check(Mark.ADVICE, "signing key", seen, copy)
    except DatabaseNotReady:  # reported by ``database``
        return
    except ControllerFault as error:
        yield Check(Mark.MISSING, "signing key", str(error), copy)
