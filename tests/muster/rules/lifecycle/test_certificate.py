"""Certificates: what is altered, expired or signed by another key is refused; what changed in a machine is found."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import BadCertificate
from muster.rules.lifecycle import certificate

NOW = datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC)
KEY = Ed25519PrivateKey.generate()
CONTENT: dict[str, Any] = {
    "id": "c-1", "node": "gpu-0001", "expires_at": (NOW + datetime.timedelta(days=1)).isoformat(),
    "serials": {"gpu0": "S1"}, "environment": {"driver": "580"},
}  # fmt: skip
DOCUMENT = certificate.sign(CONTENT, KEY)


def test_a_certificate_is_valid_until_it_expires_and_under_its_own_key_alone() -> None:
    assert certificate.verify(DOCUMENT, KEY.public_key(), NOW) == CONTENT
    for key, now in ((Ed25519PrivateKey.generate(), NOW), (KEY, NOW + datetime.timedelta(days=1))):
        with pytest.raises(BadCertificate):
            certificate.verify(DOCUMENT, key.public_key(), now)


def test_another_key_is_named_and_is_no_alteration() -> None:
    other = Ed25519PrivateKey.generate().public_key()
    with pytest.raises(BadCertificate) as refused:
        certificate.verify(DOCUMENT, other, NOW)
    assert all(certificate.key_id(key) in str(refused.value) for key in (KEY.public_key(), other))


@given(st.sampled_from(sorted(CONTENT)), st.text(max_size=5))
def test_an_altered_certificate_is_refused(name: str, value: str) -> None:
    parsed = json.loads(DOCUMENT)
    parsed["certificate"][name] = value
    with pytest.raises(BadCertificate):
        certificate.verify(json.dumps(parsed), KEY.public_key(), NOW)


@given(st.one_of(st.binary(max_size=40), st.just(b'{"certificate": {}, "signature": "????"}'), st.just(b"[" * 100_000)))
def test_what_is_no_certificate_is_one_sentence(document: bytes) -> None:
    with pytest.raises(BadCertificate):
        certificate.verify(document, KEY.public_key(), NOW)


@pytest.mark.parametrize(
    ("serials", "environment", "count"),
    [
        ({"gpu0": "S1"}, {"driver": "580"}, 0),
        ({}, {}, 0),
        ({"gpu0": "S2"}, {"driver": "580"}, 1),
        ({"gpu0": "S1"}, {"driver": "590"}, 1),
        ({"gpu0": "S2", "gpu1": "S3"}, {"driver": "590"}, 2),
    ],
)
def test_another_part_or_driver_is_a_change(serials: dict[str, str], environment: dict[str, str], count: int) -> None:
    assert len(certificate.changes(CONTENT, serials, environment)) == count


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        ("28.39.1002+8.72+9.10", False),
        ("28.39.1002+8.72", False),  # one NIC was not readable
        ("9.10", False),
        ("28.39.1002+8.72+9.11", True),
        ("28.39.1002+8.72+9.10+9.11", True),
        ("28.39.1002+8.72+9…", False),  # cut off
        (None, False),
    ],
)
def test_a_device_whose_version_was_not_readable_is_no_change(now: str | None, changed: bool) -> None:
    certified = {"serials": {}, "environment": {"nic": "28.39.1002+8.72+9.10"}}
    assert bool(certificate.changes(certified, {}, {"nic": now})) is changed


def test_only_where_each_device_has_its_own_version_are_there_several() -> None:
    certified = {"serials": {}, "environment": {"driver": "580.1+fix"}}
    assert certificate.changes(certified, {}, {"driver": "580.1"})


def test_a_name_that_stands_twice_is_no_certificate() -> None:
    """One reader shows the first of two, another the last: the signature would be of what only one of them shows."""
    document = certificate.sign(CONTENT, KEY)
    forged = document.replace('"certificate": {', '"certificate": {"node": "another"}, "certificate": {', 1)
    assert forged != document
    with pytest.raises(BadCertificate):
        certificate.verify(forged, KEY.public_key(), NOW)
