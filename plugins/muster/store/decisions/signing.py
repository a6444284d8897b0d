"""The key that signs certificates: one file, readable by its owner alone. Its public key is with each certificate."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from muster import ownership
from muster.errors import BadCertificate, ControllerFault
from muster.rules.lifecycle.decisions import check_decision
from muster.settings import settings
from muster.store.database import access
from muster.store.database.engine import writing

_PEM = serialization.Encoding.PEM


def key_path() -> Path:
    """The file of MUSTER_CERTIFICATE_KEY_FILE, by default in MUSTER_HOME."""
    return settings().certificate_key_file or settings().home / "certificate.key"


def signing_key(*, create: bool) -> Ed25519PrivateKey:
    """The key. ``create``: make one if the default file is missing. Raises ControllerFault if it cannot be used."""
    path = key_path()
    try:
        if create and not path.exists() and settings().certificate_key_file is None:
            new_key()
        if way := ownership.closing(path):
            raise ControllerFault(f"the signing key {path} can be read by others: {way}")
        return secret_of(path.read_bytes())
    except FileNotFoundError:
        raise ControllerFault(
            f"the signing key {path} is missing: restore it, or make another with "
            "`muster certificate key --new --reason …`"
        ) from None
    except OSError as error:
        raise ControllerFault(
            f"the signing key {path} cannot be read: {error.strerror}; let the user who runs the components own it"
        ) from None
    except (ValueError, TypeError):
        raise ControllerFault(f"the signing key {path} is no Ed25519 key without passphrase, in PEM") from None


def new_key() -> Path:
    """Make a key. Returns its file.

    Raises ControllerFault if there is one, or if the controller's user could not read it.
    """
    return _write(Ed25519PrivateKey.generate())


def read_secret() -> bytes:
    """The key as PEM, for a back-up. Raises ControllerFault if it cannot be used."""
    return _secret(signing_key(create=False))


def secret_of(secret: bytes) -> Ed25519PrivateKey:
    """Parse the key in PEM, as its file and a back-up hold it. Raises ValueError or TypeError."""
    key = serialization.load_pem_private_key(secret, None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("its key is no Ed25519 key")
    return key


def keep_secret(secret: bytes) -> None:
    """Write the key of a back-up where the key belongs. Raises ControllerFault if another key is there."""
    key = secret_of(secret)
    if not key_path().exists():
        _write(key)
    elif read_secret() != _secret(key):
        raise ControllerFault(
            f"the signing key {key_path()} is not the one of the back-up, which signed its certificates: move it away"
        )


def _secret(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _write(key: Ed25519PrivateKey) -> Path:
    path = key_path()
    if user := ownership.foreign():
        raise ControllerFault(
            f"no signing key is made: {settings().home} belongs to {user}, who could not read it; run this as {user}: "
            "docs/deploying.md has the command that does"
        )
    ownership.folder(path.parent)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.touch(mode=0o600)
        part.write_bytes(_secret(key))
        ownership.give(part)
        ownership.give_name(part, path)  # of two processes, one makes the key
    except FileExistsError:
        raise ControllerFault(f"there is a signing key already: {path}; move it away first") from None
    finally:
        part.unlink(missing_ok=True)
    return path


def replace_key(person: str, reason: str) -> Path:
    """``new_key`` on a person's decision, which is recorded. Raises NoPerson without a named person and a reason."""
    check_decision(person, reason, "no signing key is made")
    with writing() as session:
        access.write_decision(session, person, reason, f"signing key {key_path()} made", {"key": str(key_path())})
        return new_key()


def public_text(key: Ed25519PrivateKey) -> str:
    """The public key in PEM."""
    return key.public_key().public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


def public_key(pem: bytes) -> Ed25519PublicKey:
    """Parse a public key in PEM. Raises ValueError."""
    key = serialization.load_pem_public_key(pem)
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("it is no Ed25519 key")
    return key


def read_public(path: Path) -> Ed25519PublicKey:
    """The public key in a file. Raises BadCertificate."""
    try:
        return public_key(path.read_bytes())
    except OSError as error:
        raise BadCertificate(f"the public key {path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise BadCertificate(f"{path} is no public Ed25519 key in PEM; `muster certificate key` prints it") from None
