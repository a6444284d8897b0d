"""Bundles of evidence: one archive for each incident, with a manifest of names, sizes and SHA-256."""

from __future__ import annotations

import datetime
import errno
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import muster
from muster import ownership
from muster.errors import ControllerFault
from muster.model.repairs import Bundle, Incident
from muster.remote.evidence import TOTAL_BYTES_MAX, Piece
from muster.settings import settings

SUFFIX = ".muster.tar.gz"
"""Retention deletes no file with another name: the folder may be shared."""
FREE_AFTER = 64 * 1024 * 1024
"""Bytes that a bundle leaves free on the disk of the archive."""
LIST_MAX = 50


def path_of(incident: Incident) -> Path:
    """Where an incident's bundle is kept."""
    node = re.sub(r"[^A-Za-z0-9-]", "_", incident.node)[:60]
    return settings().archive_folder / f"{incident.opened_at:%Y-%m}" / f"{node}_incident-{incident.id}{SUFFIX}"


def room(incident: Incident | None = None) -> Path:
    """Returns the folder of an incident's bundle, or of all of them.

    Raises ControllerFault unless it can be written and the largest bundle fits on the disk: evidence is taken whole or
    not begun.
    """
    folder = path_of(incident).parent if incident else settings().archive_folder
    try:
        ownership.folder(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ControllerFault(f"no evidence can be kept in {folder}: {error.strerror}; see MUSTER_ARCHIVE") from None
    if free < TOTAL_BYTES_MAX + FREE_AFTER:
        need = (TOTAL_BYTES_MAX + FREE_AFTER) // 2**20
        raise ControllerFault(
            f"no evidence can be kept in {folder}: {free // 2**20} MiB are free, and a bundle may need {need} MiB; "
            "make room, or give MUSTER_ARCHIVE another disk"
        )
    return folder


def write(incident: Incident, records: Mapping[str, Any], pieces: Iterable[Piece], profiles: Iterable[str]) -> Bundle:
    """Write the bundle durably, whole or not at all, next to earlier ones of the incident; for an empty file that may
    remain, see ``ownership.give_name``. ``records``: what the records say of it, as JSON.

    Raises ControllerFault if it cannot be written.
    """
    path = path_of(incident)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    taken_at = datetime.datetime.now(datetime.UTC)
    folder, missing, files = f"{path.name.removesuffix(SUFFIX)}_{taken_at:%Y%m%dT%H%M%SZ}", [], []
    mark = {"simulated": incident.simulated} if incident.simulated else {}
    try:
        ownership.folder(path.parent)
        with open(draft, "xb") as file:
            os.chmod(draft, 0o600)
            ownership.give(draft)
            with tarfile.open(fileobj=file, mode="w:gz") as archive:

                def add(name: str, content: bytes) -> None:
                    entry = tarfile.TarInfo(f"{folder}/{name}")
                    entry.size, entry.mtime, entry.mode = len(content), int(taken_at.timestamp()), 0o600
                    archive.addfile(entry, io.BytesIO(content))

                content = json.dumps(records, indent=1, default=str).encode()
                for piece in (Piece("records.json", "the fleet records", content), *pieces):
                    if piece.why:
                        missing.append(f"{piece.name}: {piece.why}")
                    if piece.content:
                        add(piece.name, piece.content)
                        files.append({
                            "name": piece.name, "bytes": len(piece.content), "how": piece.how, "why": piece.why,
                            "sha256": hashlib.sha256(piece.content).hexdigest(),
                        })  # fmt: skip
                manifest = {
                    "incident": incident.id, "node": incident.node, "fault": incident.fault.fault_class,
                    "device": incident.fault.device, "part": incident.fault.part, "why": incident.why, **mark,
                    "opened_at": incident.opened_at.isoformat(), "taken_at": taken_at.isoformat(),
                    "muster": muster.__version__, "profiles": list(profiles), "files": files, "missing": missing,
                }  # fmt: skip
                add("manifest.json", json.dumps(manifest, indent=1).encode())
            file.flush()
            os.fsync(file.fileno())
        path = _named(draft, path)
        whole = path.read_bytes()
    except OSError as error:
        raise ControllerFault(
            f"the evidence cannot be written to {path}: {error.strerror}; see MUSTER_ARCHIVE"
        ) from None
    finally:
        draft.unlink(missing_ok=True)
    return Bundle(str(path), hashlib.sha256(whole).hexdigest(), len(whole), tuple(missing[:LIST_MAX]))


def _named(draft: Path, path: Path) -> Path:
    """Give the draft the path, with a number if there is a file: another bundle may hold what this one lacks."""
    stem, number, free = path.name.removesuffix(SUFFIX), 1, path
    while True:
        try:
            ownership.give_name(draft, free)
        except FileExistsError:
            number += 1
            free = path.with_name(f"{stem}-{number}{SUFFIX}")
        else:
            return free
