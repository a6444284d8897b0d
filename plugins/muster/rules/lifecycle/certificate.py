"""Certificates of admission: signed JSON that anyone with the public key can check. Pure.

A document is ``{"certificate": {…}, "key": ID, "signature": BASE64}``; signed (Ed25519) are the bytes of ``canonical``.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from muster.errors import BadCertificate
from muster_node.contract import BETWEEN_VERSIONS, OF_EACH_DEVICE

WATCHED = ("driver", "vbios", "inforom", "nvswitch", "fabric_manager", "bmc", "bios", "nic")
"""Names in a node's environment that a certificate attests in addition to its serials: driver and firmware."""

_NONE = "it is no certificate of Muster: `muster certificate show NODE` writes one"


def canonical(value: object) -> bytes:
    """Returns ``value`` as JSON in its one canonical form."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest(value: object) -> str:
    """Returns the SHA-256 of ``canonical``, in hexadecimal."""
    return hashlib.sha256(canonical(value)).hexdigest()


def key_id(key: Ed25519PublicKey) -> str:
    """Returns the first 16 digits of the SHA-256 of the raw public key."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


def sign(content: Mapping[str, Any], key: Ed25519PrivateKey) -> str:
    """Returns the document."""
    signature = base64.b64encode(key.sign(canonical(content))).decode()
    document = {"certificate": content, "key": key_id(key.public_key()), "signature": signature}
    return json.dumps(document, sort_keys=True, indent=1)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the object. Raises ValueError if a name stands twice: readers differ in which of the two they show."""
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def why_invalid(revoked: str, expires_at: datetime.datetime, now: datetime.datetime) -> str:
    """Returns why a certificate no longer holds, "" while it does."""
    return revoked or (f"it expired on {expires_at:%Y-%m-%d %H:%M} UTC" if now >= expires_at else "")


def without_one(why: Mapping[str, str], simulated: Collection[str]) -> str:
    """Returns what people read of the nodes in service without a valid certificate, {node: why}; "" without any."""
    if not why:
        return ""
    (first, its), apart = next(iter(why.items())), len(why.keys() & simulated)
    count = f"{len(why):,}{f' ({apart:,} simulated)' if apart else ''}"
    return (
        f"Nodes in service without a valid certificate: {count}, first {first} ({its}). "
        "They are tested again when idle; `muster certificate list` names all."
    )


def signed_by(document: str | bytes) -> str:
    """Returns the id of the key that a document says it is signed by. Raises BadCertificate if it names none."""
    try:
        return str(json.loads(document)["key"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadCertificate(_NONE) from None


def verify(document: str | bytes, key: Ed25519PublicKey, now: datetime.datetime) -> dict[str, Any]:
    """Returns a document's content. Raises BadCertificate if it is malformed, another key's, altered, or expired."""
    try:
        parsed = json.loads(document, object_pairs_hook=_once)
        content, signature = parsed["certificate"], base64.b64decode(parsed["signature"], validate=True)
        if (named := str(parsed["key"])) != key_id(key):
            raise BadCertificate(
                f"it was signed by key {named[:16]!r}, and this is key {key_id(key)}: give the public key of that id, "
                "or test the node again"
            )
        key.verify(signature, canonical(content))
        expires = datetime.datetime.fromisoformat(content["expires_at"])
    except InvalidSignature:
        raise BadCertificate("it was altered: its signature is of other content") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadCertificate(_NONE) from None
    if why := why_invalid("", expires, now):
        raise BadCertificate(f"{why}: test the node again")
    return dict(content)


def changes(certified: Mapping[str, Any], serials: Mapping[str, str], environment: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each part, firmware and driver that differs from ``certified``.

    ``certified``: {"serials": …, "environment": …} of the certificate. What is not reported now has not changed.
    """
    before = [*certified["serials"].items(), *certified["environment"].items()]
    present = {**environment, **serials}
    return [f"{name} is {present[name]}, was {was}" for name, was in before if is_another(name, present.get(name), was)]


def is_another(name: str, now: str | None, was: str) -> bool:
    """Whether the part, firmware or driver ``name`` has changed; False if it is not reported now.

    Where each device has its own version, only a version that no device had is a change: some may not be read, and the
    last may be cut off.
    """
    if not now:
        return False
    if name not in OF_EACH_DEVICE:
        return now != was
    known = was.split(BETWEEN_VERSIONS)
    return any(each not in known for each in now.split(BETWEEN_VERSIONS) if not each.endswith("…"))
