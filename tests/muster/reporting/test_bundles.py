"""Bundles of evidence: two takings of one incident at the same time."""

from __future__ import annotations

import datetime
import hashlib
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.model.repairs import Bundle, Fault, Incident
from muster.remote.evidence import Piece
from muster.reporting import bundles

INCIDENT = Incident(1, "n1", Fault("gpu_reset"), "XID 95", datetime.datetime(2026, 11, 25, tzinfo=datetime.UTC), False)


def names(bundle: Bundle) -> set[str]:
    assert hashlib.sha256(Path(bundle.path).read_bytes()).hexdigest() == bundle.sha256
    with tarfile.open(bundle.path) as archive:
        return {each.split("/")[1] for each in archive.getnames()} - {"records.json", "manifest.json"}


@pytest.mark.parametrize("links", [True, False])
def test_two_takings_at_once_keep_both(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setenv("MUSTER_ARCHIVE", str(tmp_path))
    if not links:
        monkeypatch.setattr(os, "link", none)
    others: list[Bundle] = []

    def slow() -> Iterator[Piece]:
        others.append(bundles.write(INCIDENT, {}, [Piece("second", "a command", b"2")], []))
        yield Piece("first", "a command", b"1")

    first = bundles.write(INCIDENT, {}, slow(), [])
    assert (names(first), *map(names, others)) == ({"first"}, {"second"})
    assert {str(each) for each in tmp_path.glob("*/*")} == {first.path, others[0].path}
